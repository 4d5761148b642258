import struct
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gossamer.protocol import limits
from gossamer.protocol.codecs.block_codecs import BlockCodec
from gossamer.protocol.codecs.chunk_values import MAGNITUDE_MAX, Float32Array
from gossamer.protocol.codecs.tensor_codecs import TensorCodec, codec, codec_names
from gossamer.protocol.errors import MalformedError, VersionError
from gossamer.protocol.manifest import Codec

NAMES = codec_names()


def vector(*values: float) -> Float32Array:
    return np.array(values, dtype=np.float32)


def vectors(max_size: int = 300) -> st.SearchStrategy[Float32Array]:
    """Any shape of distribution: magnitudes over the whole allowed range, zeros, subnormals."""
    return hnp.arrays(
        np.float32,
        st.integers(1, max_size),
        elements=st.floats(-MAGNITUDE_MAX, MAGNITUDE_MAX, width=32),
    )


def test_the_codecs_are_those_of_the_manifest() -> None:
    assert set(NAMES) == set(get_args(Codec))


def test_an_unknown_codec_is_a_version_error() -> None:
    with pytest.raises(VersionError, match=r"'int3'.*fp32"):
        codec("int3")


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_chunk_fits_a_block(name: str) -> None:
    limit = limits.BLOCK_BYTES_MAX
    assert codec(name).encoded_bytes(limits.CHUNK_ELEMENTS_MAX) <= limit


@pytest.mark.parametrize("name", NAMES)
@given(values=vectors())
def test_what_was_encoded_decodes_to_the_same_bits_wherever_it_goes(
    name: str, values: Float32Array
) -> None:
    data = bytes(codec(name).encode(values))
    assert len(data) == codec(name).encoded_bytes(len(values))
    assert bytes(codec(name).encode(values.copy())) == data
    decoded = codec(name).decode(data, len(values))
    writable = codec(name).decode(bytearray(data), len(values))
    # From an odd address too, as in the middle of a network buffer.
    shifted = codec(name).decode(memoryview(b"x" + data)[1:], len(values))
    assert decoded.dtype == np.float32
    assert decoded.tobytes() == writable.tobytes() == shifted.tobytes()


@given(values=vectors())
def test_fp32_is_exact(values: Float32Array) -> None:
    data = codec("fp32").encode(values)
    assert bytes(data) == values.astype("<f4").tobytes()
    assert codec("fp32").decode(data, len(values)).tobytes() == values.tobytes()


def test_fp32_does_not_copy() -> None:
    values = vector(1, 2, 3)
    data = codec("fp32").encode(values)
    assert np.shares_memory(codec("fp32").decode(data, 3), values)


def assert_within_fp16_bound(values: Float32Array) -> None:
    """The bound that `Fp16Codec` promises, in fp64 so that the check itself does not round."""
    decoded = codec("fp16").decode(codec("fp16").encode(values), len(values))
    exact = values.astype(np.float64)
    bound = np.maximum(np.abs(exact) * 2**-11, np.abs(exact).max() * 2**-39)
    error = np.abs(decoded.astype(np.float64) - exact)
    assert (error <= np.maximum(bound, 2.0**-125)).all()


@given(values=vectors())
def test_fp16_keeps_its_error_bound(values: Float32Array) -> None:
    assert_within_fp16_bound(values)


@given(exponent=st.integers(-140, 99), seed=st.integers(0, 2**32 - 1))
def test_fp16_keeps_its_error_bound_for_normal_values_of_any_scale(
    exponent: int, seed: int
) -> None:
    noise = np.random.default_rng(seed).standard_normal(500)
    values = (np.clip(noise, -2, 2) * 2.0**exponent).astype(np.float32)
    assert_within_fp16_bound(values)


def test_fp16_of_tiny_and_huge_values_is_as_exact_as_of_ordinary_ones() -> None:
    """Plain halves would flush the first to zero and overflow on the last."""
    ordinary = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    reference = codec("fp16").decode(codec("fp16").encode(ordinary), 1000)
    for power in (-60, -30, 30, 60):
        scaled = ordinary * np.float32(2.0**power)
        decoded = codec("fp16").decode(codec("fp16").encode(scaled), 1000)
        assert (decoded == reference * np.float32(2.0**power)).all()


def test_fp16_bytes_are_pinned() -> None:
    """A change of these bytes is a change of the protocol."""
    values = vector(1.0, -0.5, 3e-5, 0.0, 1.0 + 2**-11, -2.0)
    scale = struct.pack("<f", 2.0**-13)  # 2.0 becomes 2**14
    halves = struct.pack("<6e", 2**13, -(2**12), 3e-5 * 2**13, 0, 2**13, -(2**14))
    assert bytes(codec("fp16").encode(values)) == scale + halves


def test_fp16_of_zeros() -> None:
    data = codec("fp16").encode(np.zeros(3, np.float32))
    assert bytes(data) == struct.pack("<f", 1.0) + bytes(6)
    assert (codec("fp16").decode(data, 3) == 0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**101, -(2.0**101)])
def test_values_out_of_range_are_not_encoded(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite or above"):
        codec(name).encode(vector(1, bad, 2))


@pytest.mark.parametrize("name", NAMES)
def test_only_vectors_of_fp32_are_encoded(name: str) -> None:
    for values in (np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(0, np.float32)):
        with pytest.raises(ValueError, match="a vector of float32"):
            codec(name).encode(values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("difference", [-4, -1, 1, 4])
def test_a_wrong_length_is_malformed(name: str, difference: int) -> None:
    data = bytes(codec(name).encode(vector(1, 2, 3, 4)))
    data = data[:difference] if difference < 0 else data + bytes(difference)
    with pytest.raises(MalformedError, match="chunk of 4 elements"):
        codec(name).decode(data, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**101])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_fp32_values_out_of_range_are_malformed(bad: float, position: int) -> None:
    values = vector(1, 2, 3)
    values[position] = bad
    with pytest.raises(MalformedError, match="not finite or above"):
        codec("fp32").decode(values.tobytes(), 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_fp16_values_out_of_range_are_malformed(bad: float) -> None:
    with pytest.raises(MalformedError, match="not finite or above"):
        codec("fp16").decode(struct.pack("<f3e", 1.0, 1, bad, 2), 3)
    with pytest.raises(MalformedError, match="not finite or above"):
        codec("fp16").decode(struct.pack("<f3e", 2.0**86, 1, -65504, 2), 3)


@pytest.mark.parametrize("bits", [0x7C01, 0x7DFF, 0xFC01, 0xFDFF])
def test_a_signalling_nan_in_fp16_is_malformed_and_numpy_does_not_warn(bits: int) -> None:
    data = struct.pack("<fe2H", 1.0, 1, bits, 0)
    for read in (codec("fp16").decode, codec("fp16").check):
        with pytest.raises(MalformedError, match="not finite or above"):
            read(data, 3)


@pytest.mark.parametrize("scale", [0.0, -1.0, 3.0, np.nan, np.inf, 2.0**-101, 2.0**87, 1e-45])
def test_fp16_takes_no_other_scale_than_encode_writes(scale: float) -> None:
    with pytest.raises(MalformedError, match="scale"):
        codec("fp16").decode(struct.pack("<f3e", scale, 1, 2, 3), 3)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(min_size=1, max_size=64), num_elements=st.integers(1, 32))
def test_any_bytes_decode_to_values_in_range_or_are_malformed(
    name: str, data: bytes, num_elements: int
) -> None:
    try:
        values = codec(name).decode(data, num_elements)
    except MalformedError:
        return
    assert np.isfinite(values).all()
    assert np.abs(values).max() <= MAGNITUDE_MAX


SUM_CODECS = [codec("int4", is_widening=True).of_sum(members) for members in (9, 33, 200)]
"""5, 6 and 7 bits."""


@pytest.mark.parametrize("coder", [*map(codec, NAMES), *SUM_CODECS], ids=lambda each: each.name)
@given(
    values=vectors(),
    places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
)
def test_a_check_says_what_decoding_says(
    coder: TensorCodec, values: Float32Array, places: list[tuple[int, int]]
) -> None:
    data = bytearray(coder.encode(values))
    for place, byte in places:
        data[place % len(data)] = byte
    found = []
    for read in (coder.decode, coder.check):
        try:
            read(data, len(values))
        except MalformedError as error:
            found.append(str(error) or "malformed")
        else:
            found.append("")
    assert bool(found[0]) == bool(found[1])


@pytest.mark.parametrize("coder", [codec("int8"), codec("int4"), *SUM_CODECS])
def test_a_check_of_codes_makes_no_values(
    coder: TensorCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = coder.encode(np.linspace(1, 2, 1000, dtype=np.float32))
    monkeypatch.setattr(BlockCodec, "_levels_of", None)
    monkeypatch.setattr(type(coder), "_levels_of", None)
    coder.check(data, 1000)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scale", [1.0, 2.0**86])
def test_fp16_is_checked_by_its_largest_half(bad: float, scale: float) -> None:
    halves = np.array([1.0, bad, -3.0], "<f2")
    with pytest.raises(MalformedError):
        codec("fp16").check(struct.pack("<f", scale) + halves.tobytes(), 3)
    at_the_end = np.array([-(2.0**14), 2.0], "<f2")
    codec("fp16").check(struct.pack("<f", 2.0**86) + at_the_end.tobytes(), 2)
    beyond = np.array([1.0, -(2.0**14) * 1.001], "<f2")
    with pytest.raises(MalformedError):
        codec("fp16").check(struct.pack("<f", 2.0**86) + beyond.tobytes(), 2)
