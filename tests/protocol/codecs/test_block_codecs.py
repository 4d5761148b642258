"""`int8` and `int4`: what is special about them beside `test_tensor_codecs.py`."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gossamer.protocol.codecs.block_codecs import BLOCK_ELEMENTS, INT4_LEVELS
from gossamer.protocol.codecs.chunk_values import MAGNITUDE_MAX, Float32Array
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import MalformedError

NAMES = ("int8", "int4")
ERROR_MAX = {"int8": (1 / 252, 2.0**-101), "int4": (0.16, 2.0**-95)}
"""Bounds on the error that the classes promise: a part of the block's largest magnitude, or an
absolute error."""
LEVELS = {"int8": range(-127, 128), "int4": INT4_LEVELS}

both = pytest.mark.parametrize("name", NAMES)


def around(name: str, values: Float32Array) -> Float32Array:
    """The values as the other side has them."""
    return codec(name).decode(codec(name).encode(values), len(values))


def noise(num_elements: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(num_elements).astype(np.float32)


def decode_as_specified(name: str, data: bytes, num_elements: int) -> list[float]:
    """SPEC.md in plain arithmetic, exact in Python's floats."""
    num_blocks = -(-num_elements // 128)
    scales = [
        struct.unpack("<f", b"\0\0" + data[2 * block : 2 * block + 2])[0]
        for block in range(num_blocks)
    ]
    codes = data[2 * num_blocks :]
    values = []
    for i in range(num_elements):
        if name == "int8":
            level = codes[i] - 256 if codes[i] > 127 else codes[i]
        else:
            level = INT4_LEVELS[codes[i // 2] >> 4 if i % 2 else codes[i // 2] & 15]
        values.append(level * scales[i // 128])
    return values


@both
@pytest.mark.parametrize("num_elements", [1, 2, 127, 128, 129, 255, 65_536, 65_537, 131_199])
def test_it_decodes_as_specified(name: str, num_elements: int) -> None:
    """Lengths on both sides of a block, of half a byte and of what is worked on at a time."""
    data = bytes(codec(name).encode(noise(num_elements)))
    decoded = codec(name).decode(data, num_elements)
    assert decoded.tolist() == decode_as_specified(name, data, num_elements)


@both
@given(
    values=hnp.arrays(
        np.float32,
        st.integers(1, 300),
        elements=st.floats(-MAGNITUDE_MAX, MAGNITUDE_MAX, width=32),
    )
)
def test_every_block_keeps_the_error_bound(name: str, values: Float32Array) -> None:
    errors = np.abs(around(name, values).astype(np.float64) - values)
    part, least = ERROR_MAX[name]
    for start in range(0, len(values), BLOCK_ELEMENTS):
        block = slice(start, start + BLOCK_ELEMENTS)
        magnitude = float(np.abs(values[block]).max())
        assert errors[block].max() <= max(part * magnitude, least)


@both
@given(exponent=st.integers(-90, 99), seed=st.integers(0, 2**32 - 1))
def test_the_value_taken_is_the_nearest(name: str, exponent: int, seed: int) -> None:
    """Up to the rounding to whole 127ths that `int4` begins with."""
    values = (np.clip(noise(500, seed), -2, 2) * 2.0**exponent).astype(np.float32)
    decoded = around(name, values).astype(np.float64)
    for start in range(0, len(values), BLOCK_ELEMENTS):
        block = values[start : start + BLOCK_ELEMENTS].astype(np.float64)
        got = decoded[start : start + BLOCK_ELEMENTS]
        extreme = got[np.abs(got).argmax()]
        grid = np.array(LEVELS[name]) * (extreme / 127)
        best = np.abs(block[:, np.newaxis] - grid).min(axis=1)
        slack = 1e-6 if name == "int8" else 1.0
        assert (np.abs(got - block) <= best + slack * abs(extreme) / 127).all()


@both
@given(seed=st.integers(0, 2**32 - 1), num_elements=st.integers(1, 700))
def test_encoding_what_was_decoded_changes_nothing(name: str, seed: int, num_elements: int) -> None:
    values = np.random.default_rng(seed).standard_t(2, num_elements).astype(np.float32)
    data = bytes(codec(name).encode(values))
    assert bytes(codec(name).encode(codec(name).decode(data, num_elements))) == data


@pytest.mark.parametrize(
    ("name", "draw", "error_max"),
    [
        ("int8", "standard_normal", 0.0070),
        ("int8", "laplace", 0.0095),
        ("int4", "standard_normal", 0.0925),
        ("int4", "laplace", 0.1125),
    ],
)
def test_the_relative_error_is_that_of_the_docstring(
    name: str, draw: str, error_max: float
) -> None:
    """A worse grid or scale is found here: seven levels of one distance have 0.118 and 0.161."""
    values = getattr(np.random.default_rng(1), draw)(size=1 << 17).astype(np.float32)
    error = np.linalg.norm(around(name, values) - values) / np.linalg.norm(values)
    assert 0.9 * error_max < error < error_max


@both
def test_a_block_does_not_see_its_neighbours(name: str) -> None:
    values = noise(3 * BLOCK_ELEMENTS)
    alone = around(name, values[BLOCK_ELEMENTS : 2 * BLOCK_ELEMENTS])
    values[:BLOCK_ELEMENTS] *= np.float32(2.0**90)
    values[2 * BLOCK_ELEMENTS :] = 0.0
    decoded = around(name, values)
    assert decoded[BLOCK_ELEMENTS : 2 * BLOCK_ELEMENTS].tobytes() == alone.tobytes()
    assert not decoded[2 * BLOCK_ELEMENTS :].any()


@both
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_magnitude_that_is_allowed_comes_back_in_range(name: str, sign: float) -> None:
    (decoded,) = around(name, np.array([sign * MAGNITUDE_MAX], np.float32))
    assert 0.995 * MAGNITUDE_MAX < sign * decoded <= MAGNITUDE_MAX


@both
def test_what_is_far_below_the_smallest_scale_is_zero(name: str) -> None:
    values = np.full(5, np.finfo(np.float32).smallest_subnormal)
    assert (around(name, values) == 0).all()


@both
def test_a_strided_vector_is_read_and_written(name: str) -> None:
    values = noise(1000)
    wide = np.repeat(values, 2)
    data = codec(name).encode(wide[::2])
    assert bytes(data) == bytes(codec(name).encode(values))
    out = np.zeros(2000, np.float32)
    codec(name).decode(data, 1000, out[::2])
    assert out[::2].tobytes() == codec(name).decode(data, 1000).tobytes()
    assert not out[1::2].any()


def scale_bytes(scale: float) -> bytes:
    """bfloat16 of a value that is one."""
    data = struct.pack("<f", scale)
    assert data[:2] == b"\0\0"
    return data[2:]


SCALE_MIN, SCALE_MAX = 2.0**-100, (1 + 2.0**-7) * 2.0**93


@both
@pytest.mark.parametrize("scale", [SCALE_MIN, 1.0, 1.5, SCALE_MAX, 0.0])
def test_scales_that_are_taken(name: str, scale: float) -> None:
    codes = bytes(128) if scale == 0 or name == "int4" else bytes([1] * 128)
    length = 128 if name == "int8" else 64
    decoded = codec(name).decode(scale_bytes(scale) + codes[:length], 128)
    assert (decoded == (scale if codes[0] else 0.0)).all()


@both
@pytest.mark.parametrize(
    "scale",
    [math.nan, math.inf, -math.inf, -0.0, SCALE_MIN * (1 - 2**-8), SCALE_MAX + 2.0**86,
     -SCALE_MAX - 2.0**86, 2.0**-130],
)  # fmt: skip
@pytest.mark.parametrize("block", [0, 1])
def test_scales_that_are_not(name: str, scale: float, block: int) -> None:
    good = scale_bytes(1.0)
    bad = scale_bytes(scale)
    scales = bad + good if block == 0 else good + bad
    with pytest.raises(MalformedError, match=f"a scale of an {name} chunk"):
        codec(name).decode(scales + bytes(129 if name == "int8" else 65), 129)


def test_a_negative_scale_is_of_int4_only() -> None:
    data = scale_bytes(-1.0) + b"\x08"
    assert codec("int4").decode(data, 1) == [-127.0]
    with pytest.raises(MalformedError, match="a scale of an int8 chunk is -1"):
        codec("int8").decode(data, 1)


@both
@pytest.mark.parametrize("index", [0, 128, 129])
def test_a_block_of_zeros_has_no_codes(name: str, index: int) -> None:
    """`encode` writes no such thing, and -0.0 would be one more way to say 0."""
    codes = bytearray(130 if name == "int8" else 65)
    codes[index if name == "int8" else index // 2] = 1 if name == "int8" or index % 2 == 0 else 16
    scales = [scale_bytes(1.0)] * 2
    scales[index // 128] = scale_bytes(0.0)
    with pytest.raises(MalformedError, match="is zero and has codes"):
        codec(name).decode(b"".join(scales) + codes, 130)


@pytest.mark.parametrize("index", [0, 127, 128])
def test_minus_128_is_no_code_of_int8(index: int) -> None:
    codes = bytearray(129)
    codes[index] = 0x80
    with pytest.raises(MalformedError, match="-128"):
        codec("int8").decode(scale_bytes(1.0) * 2 + codes, 129)


@pytest.mark.parametrize("num_elements", [1, 127, 129])
def test_the_half_byte_behind_the_last_value_is_zero(num_elements: int) -> None:
    num_blocks = -(-num_elements // 128)
    codes = bytearray((num_elements + 1) // 2)
    codes[-1] = 0x10
    with pytest.raises(MalformedError, match="more codes than values"):
        codec("int4").decode(scale_bytes(1.0) * num_blocks + codes, num_elements)
