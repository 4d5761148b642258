"""The encoding of a chunk's sparse update: the largest values of every block, two bits each.

SparseLoCo (arXiv 2508.15706): of each block of 4096 values the `k` of largest magnitude, their
places in 12 bits and their values in 2. For b blocks that keep K values together:

    4 bytes each   a block's two magnitudes, the smaller one first, little-endian bfloat16
    K x 2 bits     values: bit 0 says which magnitude (1: the larger), bit 1 the sign (1: negative)
    K x 12 bits    places in the block, strictly increasing

Bits fill bytes from the lowest on, and what is left of each part's last byte is 0. The last block
may be shorter; of m values it keeps k * m / 4096, rounded up. At k = 64 a whole block takes 928
bits, 0.2266 a value.

A magnitude is 0 or from 2**-50 to 2**100: so whatever a share of at least 2**-50 makes of it in
`contributions.reduce` is far from subnormal. A smaller magnitude is written as 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gossamer.protocol.codecs.bfloat16 import Uint16Array, from_bfloat16, to_bfloat16
from gossamer.protocol.codecs.chunk_values import (
    MAGNITUDE_MAX,
    Buffer,
    Float32Array,
    check_length,
    check_to_encode,
    check_vector,
    magnitude_of,
    padded,
)
from gossamer.protocol.errors import MalformedError

BLOCK_ELEMENTS = 4096
"""2 to the number of bits of a place."""

DEFAULT_K = 64

MAGNITUDE_MIN = 2.0**-50
_MAGNITUDE_MIN_BITS = int(to_bfloat16(np.array([MAGNITUDE_MIN], np.float32))[0])
_MAGNITUDE_MAX_BITS = int(to_bfloat16(np.array([MAGNITUDE_MAX], np.float32))[0])
_TABLE_BYTES = 4

Uint8Array = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]
PlaceArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class SparseVector:
    """The values of a vector that are not left out."""

    places: PlaceArray
    """(K,), strictly increasing."""
    values: Float32Array
    """(K,)"""
    squared_norm: float
    """Rounded once, so the same everywhere."""

    def dense(self, num_elements: int) -> Float32Array:
        """The whole vector: (num_elements,), zero where nothing was sent."""
        vector = np.zeros(num_elements, np.float32)
        vector[self.places] = self.values
        return vector


@dataclass(frozen=True)
class SparseCodec:
    """Keeps `k` values of each block of `BLOCK_ELEMENTS`."""

    k: int = DEFAULT_K

    def __post_init__(self) -> None:
        if not 1 <= self.k <= BLOCK_ELEMENTS:
            raise ValueError(f"k is {self.k}; allowed: 1 to {BLOCK_ELEMENTS}")

    def encoded_bytes(self, num_elements: int) -> int:
        num_kept = self.num_kept(num_elements)
        return self.head_bytes(num_elements) + place_bytes(num_kept)

    def head_bytes(self, num_elements: int) -> int:
        """Bytes of the magnitudes and values, which stand before the places."""
        num_blocks = -(-num_elements // BLOCK_ELEMENTS)
        return _TABLE_BYTES * num_blocks + _code_bytes(self.num_kept(num_elements))

    def num_kept(self, num_elements: int) -> int:
        """Number of the values that an update keeps of so many."""
        return sum(self._kept(num_elements))

    def encode(self, values: Float32Array) -> bytes:
        """Bytes of the largest of `values` (one dimension, at least one element).

        Of equal magnitudes the first ones are kept, so the bytes depend on the values alone. The
        two magnitudes are the means of the smaller and the larger values, parted where the squared
        error is least.

        Raises:
            ValueError: not a vector of fp32, not finite, or above `MAGNITUDE_MAX`.
        """
        check_vector(values)
        check_to_encode(magnitude_of(values))
        num_whole = len(values) // BLOCK_ELEMENTS * BLOCK_ELEMENTS
        parts = []
        for part, kept in zip(
            (values[:num_whole], values[num_whole:]), self._kept(len(values)), strict=True
        ):
            if len(part):
                parts.append(_encode_blocks(part.reshape(-1, min(BLOCK_ELEMENTS, len(part))), kept))
        tables, codes, places = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return b"".join((tables.astype("<u2").tobytes(), _pack_codes(codes), pack_places(places)))

    def decode(self, data: Buffer, num_elements: int) -> SparseVector:
        """Returns the values that `data` encodes.

        Raises:
            MalformedError: wrong length, places that do not increase or lie outside, magnitudes out
                of range or in the wrong order, or bits set that mean nothing.
        """
        check_length("sparse", data, num_elements, self.encoded_bytes(num_elements))
        num_blocks = -(-num_elements // BLOCK_ELEMENTS)
        kept_whole, kept_last = self._kept(num_elements)
        num_kept = kept_whole + kept_last
        tables = np.frombuffer(data, "<u2", count=2 * num_blocks).astype(np.uint16).reshape(-1, 2)
        rest = np.frombuffer(data, np.uint8, offset=_TABLE_BYTES * num_blocks)
        _check_tables(tables)
        codes = _unpack_codes(rest[: _code_bytes(num_kept)], num_kept)
        places = unpack_places(rest[_code_bytes(num_kept) :], num_kept)
        block = self.blocks_of(num_kept)
        flat = places + block * BLOCK_ELEMENTS
        if (np.diff(flat) <= 0).any() or flat[-1] >= num_elements:
            raise MalformedError("the places of a sparse chunk do not increase, or lie outside")
        magnitudes = from_bfloat16(tables)
        is_large = (codes & 1).astype(np.intp)
        values = magnitudes[block, is_large]
        np.negative(values, out=values, where=codes > 1)
        return SparseVector(flat, values, _squared_norm(magnitudes, block, is_large))

    def blocks_of(self, num_kept: int) -> PlaceArray:
        """The block of every value, (num_kept,): `k` each, the last one fewer."""
        return np.arange(num_kept) // self.k

    def _kept(self, num_elements: int) -> tuple[int, int]:
        """Returns the number of values kept of all whole blocks, and of the shorter last one."""
        num_whole, num_rest = divmod(num_elements, BLOCK_ELEMENTS)
        return self.k * num_whole, -(-self.k * num_rest // BLOCK_ELEMENTS)


def _encode_blocks(
    blocks: Float32Array, num_kept: int
) -> tuple[Uint16Array, Uint8Array, Uint16Array]:
    """(tables, codes, places) of the `num_kept` values kept of `blocks` (blocks, elements)."""
    num_blocks, num_elements = blocks.shape
    magnitudes = np.abs(blocks)
    selected = np.flatnonzero(_largest(magnitudes, num_kept // num_blocks))
    places = (selected % num_elements).astype(np.uint16)
    values = blocks.reshape(-1)[selected].reshape(num_blocks, -1)
    kept = np.abs(values)
    is_large = _is_large(kept)
    counts = is_large.sum(axis=1)
    small = np.where(is_large, 0, kept).sum(axis=1, dtype=np.float64) / (kept.shape[1] - counts)
    large = np.where(is_large, kept, 0).sum(axis=1, dtype=np.float64) / np.maximum(counts, 1)
    # Without larger ones both are the same.
    means = np.stack((small, np.maximum(small, large)), axis=1).astype(np.float32)
    tables = to_bfloat16(np.where(means < MAGNITUDE_MIN, np.float32(0), means))
    codes = is_large.astype(np.uint8)
    codes[values < 0] += 2
    return tables.reshape(-1), codes.reshape(-1), places


def _largest(magnitudes: Float32Array, k: int) -> BoolArray:
    """Marks the `k` largest magnitudes of each row; of equal ones the first. Input and result:
    (rows, elements)."""
    num_elements = magnitudes.shape[1]
    least = np.partition(magnitudes, num_elements - k, axis=1)[:, num_elements - k, np.newaxis]
    selected: BoolArray = magnitudes >= least
    excess = np.flatnonzero(selected.sum(axis=1) > k)
    for row in excess:
        ties = np.flatnonzero(magnitudes[row] == least[row])
        num_above = int((magnitudes[row] > least[row]).sum())
        selected[row, ties[k - num_above :]] = False
    return selected


def _is_large(kept: Float32Array) -> BoolArray:
    """Marks the magnitudes of each row that belong to the upper of two groups. The two groups are
    those that lie closest around their means, and the lower one has at least one member. Input and
    result: (rows, k)."""
    rows, k = kept.shape
    if k == 1:
        return np.zeros((rows, 1), bool)
    ordered = np.sort(kept, axis=1).astype(np.float64)
    sums = np.cumsum(ordered, axis=1)
    below, above = sums[:, :-1], sums[:, -1:] - sums[:, :-1]
    count = np.arange(1, k)
    explained = below**2 / count + above**2 / (k - count)
    last_below = ordered[np.arange(rows), explained.argmax(axis=1)]
    is_large: BoolArray = kept > last_below[:, np.newaxis]
    return is_large


def _check_tables(tables: Uint16Array) -> None:
    in_range = (tables >= _MAGNITUDE_MIN_BITS) & (tables <= _MAGNITUDE_MAX_BITS) | (tables == 0)
    if not in_range.all() or (tables[:, 0] > tables[:, 1]).any():
        raise MalformedError("magnitudes of a sparse chunk that are out of range or order")


def _squared_norm(magnitudes: Float32Array, block: PlaceArray, is_large: PlaceArray) -> float:
    """The products are exact in fp64 (13 bits of count, 16 of square), and `fsum` rounds once."""
    counts = np.bincount(2 * block + is_large, minlength=magnitudes.size)
    return math.fsum((counts * magnitudes.reshape(-1).astype(np.float64) ** 2).tolist())


_CODE_SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def _code_bytes(num_kept: int) -> int:
    return (2 * num_kept + 7) // 8


def place_bytes(num_kept: int) -> int:
    """Bytes of so many places."""
    return (12 * num_kept + 7) // 8


def _pack_codes(codes: Uint8Array) -> bytes:
    quads = padded(codes, 4).reshape(-1, 4)
    packed: Uint8Array = np.bitwise_or.reduce(quads << _CODE_SHIFTS, axis=1)
    return packed.tobytes()


def _unpack_codes(data: Uint8Array, num_kept: int) -> Uint8Array:
    codes = (data[:, np.newaxis] >> _CODE_SHIFTS & np.uint8(3)).reshape(-1)
    if codes[num_kept:].any():
        raise MalformedError("a sparse chunk with more values than it keeps")
    return codes[:num_kept]


def pack_places(places: Uint16Array) -> bytes:
    """The encoding of places in their blocks, (num_kept,)."""
    pairs = padded(places, 2).reshape(-1, 2).astype(np.uint32)
    joined = pairs[:, 0] | pairs[:, 1] << 12
    packed = joined.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return packed[: place_bytes(len(places))]


def unpack_places(data: Uint8Array, num_kept: int) -> PlaceArray:
    """The places in their blocks, (num_kept,), of bytes as `pack_places` returns them.

    Raises:
        MalformedError: bits are set that mean nothing.
    """
    triples = padded(data, 3).reshape(-1, 3).astype(np.intp)
    joined = triples[:, 0] | triples[:, 1] << 8 | triples[:, 2] << 16
    places = np.stack((joined & 0xFFF, joined >> 12), axis=1).reshape(-1)
    if places[num_kept:].any():
        raise MalformedError("a sparse chunk with more places than it keeps")
    return places[:num_kept]
