"""Codecs of blocks: what is special about them beside `test_tensor_codecs.py`."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gossamer.protocol.codecs.block_codecs import (
    BLOCK_ELEMENTS,
    INT4_LEVELS,
    BlockCodec,
    Int4Codec,
    Int8Codec,
)
from gossamer.protocol.codecs.chunk_values import MAGNITUDE_MAX, Float32Array
from gossamer.protocol.codecs.wide_codecs import WideCodec, levels_of
from gossamer.protocol.errors import MalformedError

CODERS: dict[str, BlockCodec] = {
    each.name: each for each in (Int8Codec(), Int4Codec(), *map(WideCodec, (5, 6, 7)))
}
NAMES = tuple(CODERS)
WIDE = ("int5", "int6", "int7")
BITS = {name: int(name[-1]) for name in NAMES}
ERROR_MAX = {
    "int8": (1 / 252, 2.0**-101),
    "int4": (0.16, 2.0**-95),
    "int5": (0.115, 2.0**-95),
    "int6": (0.06, 2.0**-95),
    "int7": (0.036, 2.0**-95),
}
"""Bounds on the error that the classes promise: a part of the block's largest magnitude, or an
absolute error."""
LEVELS: dict[str, Sequence[int]] = {
    "int8": range(-127, 128),
    "int4": INT4_LEVELS,
    **{name: levels_of(BITS[name]) for name in WIDE},
}

each_codec = pytest.mark.parametrize("name", NAMES)


def codec(name: str) -> BlockCodec:
    return CODERS[name]


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
    bits, values = BITS[name], []
    for i in range(num_elements):
        byte, shift = divmod(bits * i, 8)
        code = int.from_bytes(codes[byte : byte + 2], "little") >> shift & (1 << bits) - 1
        level = (code + 128) % 256 - 128 if name == "int8" else LEVELS[name][code]
        values.append(level * scales[i // 128])
    return values


@each_codec
@pytest.mark.parametrize("num_elements", [1, 2, 127, 128, 129, 255, 65_536, 65_537, 131_199])
def test_it_decodes_as_specified(name: str, num_elements: int) -> None:
    """Lengths on both sides of a block, of half a byte and of what is worked on at a time."""
    data = bytes(codec(name).encode(noise(num_elements)))
    decoded = codec(name).decode(data, num_elements)
    assert decoded.tolist() == decode_as_specified(name, data, num_elements)


@each_codec
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


@each_codec
@given(exponent=st.integers(-90, 99), seed=st.integers(0, 2**32 - 1))
def test_the_value_taken_is_the_nearest(name: str, exponent: int, seed: int) -> None:
    """Up to the rounding to whole 127ths that `int4` begins with. In the wide codes there is no
    such slack: the sums of a ring would drift to one side."""
    values = (np.clip(noise(500, seed), -2, 2) * 2.0**exponent).astype(np.float32)
    decoded = around(name, values).astype(np.float64)
    for start in range(0, len(values), BLOCK_ELEMENTS):
        block = values[start : start + BLOCK_ELEMENTS].astype(np.float64)
        got = decoded[start : start + BLOCK_ELEMENTS]
        extreme = got[np.abs(got).argmax()]
        grid = np.array(LEVELS[name]) * (extreme / 127)
        best = np.abs(block[:, np.newaxis] - grid).min(axis=1)
        slack = 1.0 if name == "int4" else 1e-6
        assert (np.abs(got - block) <= best + slack * abs(extreme) / 127).all()


@each_codec
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
        ("int5", "standard_normal", 0.0465),
        ("int5", "laplace", 0.0550),
        ("int6", "standard_normal", 0.0235),
        ("int6", "laplace", 0.0280),
        ("int7", "standard_normal", 0.0125),
        ("int7", "laplace", 0.0150),
    ],
)
def test_the_relative_error_is_that_of_the_docstring(
    name: str, draw: str, error_max: float
) -> None:
    """A worse grid or scale is found here: seven levels of one distance have 0.118 and 0.161."""
    values = getattr(np.random.default_rng(1), draw)(size=1 << 17).astype(np.float32)
    error = np.linalg.norm(around(name, values) - values) / np.linalg.norm(values)
    assert 0.9 * error_max < error < error_max


@each_codec
def test_a_block_does_not_see_its_neighbours(name: str) -> None:
    values = noise(3 * BLOCK_ELEMENTS)
    alone = around(name, values[BLOCK_ELEMENTS : 2 * BLOCK_ELEMENTS])
    values[:BLOCK_ELEMENTS] *= np.float32(2.0**90)
    values[2 * BLOCK_ELEMENTS :] = 0.0
    decoded = around(name, values)
    assert decoded[BLOCK_ELEMENTS : 2 * BLOCK_ELEMENTS].tobytes() == alone.tobytes()
    assert not decoded[2 * BLOCK_ELEMENTS :].any()


@each_codec
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_magnitude_that_is_allowed_comes_back_in_range(name: str, sign: float) -> None:
    (decoded,) = around(name, np.array([sign * MAGNITUDE_MAX], np.float32))
    assert 0.995 * MAGNITUDE_MAX < sign * decoded <= MAGNITUDE_MAX


@each_codec
def test_what_is_far_below_the_smallest_scale_is_zero(name: str) -> None:
    values = np.full(5, np.finfo(np.float32).smallest_subnormal)
    assert (around(name, values) == 0).all()


@each_codec
def test_a_strided_vector_is_read(name: str) -> None:
    values = noise(1000)
    wide = np.repeat(values, 2)
    assert bytes(codec(name).encode(wide[::2])) == bytes(codec(name).encode(values))


def codes_of(name: str, num_elements: int, codes: Mapping[int, int]) -> bytes:
    """The codes of a chunk, all 0 but for these, by their index."""
    stream = sum(code << BITS[name] * index for index, code in codes.items())
    return stream.to_bytes(-(-BITS[name] * num_elements // 8), "little")


def scale_bytes(scale: float) -> bytes:
    """bfloat16 of a value that is one."""
    data = struct.pack("<f", scale)
    assert data[:2] == b"\0\0"
    return data[2:]


SCALE_MIN, SCALE_MAX = 2.0**-100, (1 + 2.0**-7) * 2.0**93


@each_codec
@pytest.mark.parametrize("scale", [SCALE_MIN, 1.0, 1.5, SCALE_MAX, 0.0])
def test_scales_that_are_taken(name: str, scale: float) -> None:
    codes = codes_of(name, 128, {0: 1, 127: 1} if scale else {})
    decoded = codec(name).decode(scale_bytes(scale) + codes, 128)
    level = 1 if name == "int8" else LEVELS[name][1]
    assert decoded[0] == decoded[127] == scale * level
    assert not decoded[1:127].any()


@each_codec
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
        codec(name).decode(scales + codes_of(name, 129, {}), 129)


@pytest.mark.parametrize("name", ["int4", *WIDE])
def test_a_negative_scale_turns_a_block(name: str) -> None:
    data = scale_bytes(-1.0) + codes_of(name, 1, {0: 1 << BITS[name] - 1})
    assert codec(name).decode(data, 1) == [-127.0]


def test_a_negative_scale_is_none_of_int8() -> None:
    data = scale_bytes(-1.0) + b"\x08"
    with pytest.raises(MalformedError, match="a scale of an int8 chunk is -1"):
        codec("int8").decode(data, 1)


@each_codec
@pytest.mark.parametrize("index", [0, 128, 129])
def test_a_block_of_zeros_has_no_codes(name: str, index: int) -> None:
    """`encode` writes no such thing, and -0.0 would be one more way to say 0."""
    codes = codes_of(name, 130, {index: 1})
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


@pytest.mark.parametrize("name", ["int4", *WIDE])
@pytest.mark.parametrize("num_elements", [1, 127, 129])
def test_the_bits_behind_the_last_value_are_zero(name: str, num_elements: int) -> None:
    scales = scale_bytes(1.0) * -(-num_elements // 128)
    codes = bytearray(codes_of(name, num_elements, {}))
    codec(name).decode(scales + codes, num_elements)
    for bit in range(BITS[name] * num_elements, 8 * len(codes)):
        codes[-1] = 1 << bit % 8
        with pytest.raises(MalformedError, match="more codes than values"):
            codec(name).decode(scales + codes, num_elements)


@pytest.mark.parametrize("name", WIDE)
def test_the_levels_of_wide_codes(name: str) -> None:
    levels, m = levels_of(BITS[name]), 1 << BITS[name] - 1
    assert len(set(levels)) == 2 * m
    assert (levels[0], levels[m]) == (0, 127)
    exact = [127 * (9 * i * m**2 + 7 * i**3) / (16 * m**3) for i in range(m)]
    np.testing.assert_allclose(levels[:m], exact, atol=0.5)
    assert levels[m + 1 :] == tuple(-level for level in levels[m - 1 : 0 : -1])


@pytest.mark.parametrize("name", WIDE)
def test_wide_codes_do_not_drift_to_one_side(name: str) -> None:
    """What one encoding shifts on average, a ring shifts once for each member."""
    values = noise(1 << 20)
    error = around(name, values) - values
    by_chance = float(np.std(error)) / 2**10
    assert abs(float(np.mean(error, dtype=np.float64))) < 4 * by_chance
