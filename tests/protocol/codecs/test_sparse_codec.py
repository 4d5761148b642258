from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import MAGNITUDE_MAX, Float32Array
from gossamer.protocol.codecs.sparse_codec import BLOCK_ELEMENTS, SparseCodec
from gossamer.protocol.errors import MalformedError

CODEC = SparseCodec()
SMALL = SparseCodec(1024)
"""Keeps a quarter, so that small vectors show something."""

VECTORS = hnp.arrays(
    np.float32, st.integers(1, 60), elements=st.floats(-MAGNITUDE_MAX, MAGNITUDE_MAX, width=32)
)


def noise(num_elements: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(num_elements).astype(np.float32)


def kept_as_specified(values: Float32Array, k: int) -> list[int]:
    """Returns the places that a stable sort of each block keeps."""
    kept: list[int] = []
    for start in range(0, len(values), BLOCK_ELEMENTS):
        block = values[start : start + BLOCK_ELEMENTS]
        count = -(-k * len(block) // BLOCK_ELEMENTS)
        order = np.argsort(-np.abs(block), kind="stable")[:count]
        kept += sorted((start + order).tolist())
    return kept


@pytest.mark.parametrize("k", [1, 3, 64, 4096])
@pytest.mark.parametrize("num_elements", [1, 63, 64, 65, 4096, 4097, 8191, 12_289])
def test_the_largest_of_every_block_are_kept(k: int, num_elements: int) -> None:
    values, codec = noise(num_elements), SparseCodec(k)
    data = codec.encode(values)
    assert len(data) == codec.encoded_bytes(num_elements)
    sparse = codec.decode(data, num_elements)
    assert sparse.places.tolist() == kept_as_specified(values, k)
    assert (np.sign(sparse.values) == np.sign(values[sparse.places])).all()
    assert np.array_equal(sparse.dense(num_elements)[sparse.places], sparse.values)


@given(values=VECTORS)
def test_equal_magnitudes_are_kept_from_the_first_on(values: Float32Array) -> None:
    values = np.round(values / np.float32(2.0**99))  # few different ones
    places = SMALL.decode(SMALL.encode(values), len(values)).places
    assert places.tolist() == kept_as_specified(values, SMALL.k)


@given(values=VECTORS)
def test_every_vector_comes_back_as_two_magnitudes_near_its_own(values: Float32Array) -> None:
    codec = SparseCodec(4096)
    sparse = codec.decode(codec.encode(values), len(values))
    magnitudes = np.unique(np.abs(sparse.values))
    assert len(magnitudes) <= 2
    error = np.linalg.norm(sparse.values.astype(float) - values)
    # Never worse than sending nothing, but for what bfloat16 rounds and what counts as zero.
    assert error <= np.linalg.norm(values.astype(float)) * (1 + 2**-8) + len(values) * 2.0**-50
    exact = sum(float(value) ** 2 for value in sparse.values)
    assert math.isclose(sparse.squared_norm, exact, rel_tol=1e-12)


def test_the_magnitudes_are_the_means_of_the_two_groups() -> None:
    values = np.zeros(BLOCK_ELEMENTS, np.float32)
    values[[5, 9, 100, 4095]] = (1.0, -3.0, -16.0, 24.0)
    sparse = SparseCodec(4).decode(SparseCodec(4).encode(values), BLOCK_ELEMENTS)
    assert sparse.places.tolist() == [5, 9, 100, 4095]
    assert sparse.values.tolist() == [2.0, -2.0, -20.0, 20.0]
    assert sparse.squared_norm == 2 * 4.0 + 2 * 400.0


def test_bytes_are_pinned() -> None:
    """A change of these bytes is a change of the protocol."""
    values = np.zeros(BLOCK_ELEMENTS, np.float32)
    values[[5, 9, 100, 4095]] = (1.0, -3.0, -16.0, 24.0)
    # bfloat16 of 2 and 20; codes 0, 2, 3, 1; places two by two, the first in the low 12 bits.
    expected = "0040a041" + "78" + "059000" + "64f0ff"
    assert SparseCodec(4).encode(values).hex() == expected


def test_a_value_costs_less_than_a_quarter_of_a_bit() -> None:
    num_elements = 256 * 1024
    assert 8 * CODEC.encoded_bytes(num_elements) / num_elements < 0.2267
    assert CODEC.encoded_bytes(limits.CHUNK_ELEMENTS_MAX) * 128 < limits.BLOCK_BYTES_MAX


def test_parting_the_values_at_half_would_lose_more() -> None:
    """Two magnitudes instead of one, parted where it matters."""
    values = noise(64 * BLOCK_ELEMENTS)
    sparse = CODEC.decode(CODEC.encode(values), len(values))
    kept = values[sparse.places]
    error = np.linalg.norm(sparse.values - kept) / np.linalg.norm(kept)
    magnitudes = np.sort(np.abs(kept).reshape(64, -1), axis=1)
    halves = magnitudes.reshape(64, 2, -1)
    spread = np.linalg.norm(halves - halves.mean(axis=2, keepdims=True)) / np.linalg.norm(kept)
    assert error < 0.85 * spread


@pytest.mark.parametrize("value", [0.0, 1e-20, -1e-38])
def test_what_is_tiny_is_zero(value: float) -> None:
    values = np.full(100, value, np.float32)
    assert not CODEC.decode(CODEC.encode(values), 100).values.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**101])
def test_values_out_of_range_are_not_encoded(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite or above"):
        CODEC.encode(np.array([1, bad], np.float32))


@pytest.mark.parametrize("k", [0, 4097])
def test_k_has_a_range(k: int) -> None:
    with pytest.raises(ValueError, match="k is"):
        SparseCodec(k)


def changed(data: bytes, index: int, value: int) -> bytes:
    return data[:index] + bytes([value]) + data[index + 1 :]


# Of 5000 values with k = 3: two tables, 4 values in a byte, 4 places in 6 bytes.
RISING = np.arange(1, 5001, dtype=np.float32)
RISING[4000] = 1e6
FOUR = SparseCodec(3).encode(RISING)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (FOUR[:-1], "in 14 bytes"),
        (FOUR + b"\0", "in 16 bytes"),
        (changed(FOUR, 1, 0x80), "out of range"),  # a negative magnitude
        (changed(FOUR, 1, 0x7F), "out of range"),  # far above 2**100, or no number
        (changed(FOUR, 1, 0x01), "out of range"),  # below 2**-50, and not 0
        (FOUR[2:4] + FOUR[:2] + FOUR[4:], "order"),
        (changed(FOUR, 9, 0xFF), "do not increase"),
        (FOUR[:9] + FOUR[9:12][::-1] + FOUR[12:], "do not increase"),
        (FOUR[:-2] + b"\xff\xff", "lie outside"),
    ],
)
def test_what_encode_does_not_write_is_malformed(data: bytes, match: str) -> None:
    assert len(FOUR) == 15
    with pytest.raises(MalformedError, match=match):
        SparseCodec(3).decode(data, 5000)


def test_bits_behind_the_last_value_are_zero() -> None:
    data = SparseCodec(3).encode(np.arange(1, 4097, dtype=np.float32))
    assert len(data) == 4 + 1 + 5
    for index in (4, 9):
        with pytest.raises(MalformedError, match="more"):
            SparseCodec(3).decode(changed(data, index, data[index] | 0x80), 4096)


@given(data=st.binary(min_size=15, max_size=15))
def test_any_bytes_are_a_vector_in_range_or_malformed(data: bytes) -> None:
    try:
        sparse = SparseCodec(3).decode(data, 5000)
    except MalformedError:
        return
    assert np.isfinite(sparse.values).all()
    assert (np.diff(sparse.places) > 0).all()
    assert 0 <= sparse.places[0] <= sparse.places[-1] < 5000
