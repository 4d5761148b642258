"""How DCT coefficients travel in `sync = "distro"`: which ones, and their signs.

DisTrO as deployed (DeMo, arXiv 2411.19870, with signs in place of values): of each chunk of c
coefficients the `k` of largest magnitude, one bit of sign and ceil(log2(c)) bits of index each. The
entries follow each other bit by bit, a chunk's in increasing index, each the bits of its index (the
lowest first) and then its sign (1: negative); bits fill bytes from the lowest on, and what is left
of the last byte is 0. With k = 4 of 4096 a chunk takes 52 bits, 0.0127 a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gossamer.protocol.chunk_values import Buffer, Float32Array, check_length
from gossamer.protocol.errors import MalformedError

CHUNK_COEFFICIENTS_MAX = 4096

IndexArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Signs:
    """Some coefficients of every chunk, of which only the sign is known."""

    indices: IndexArray
    """(num_chunks, k), strictly increasing in each chunk."""
    is_negative: BoolArray
    """(num_chunks, k)"""


@dataclass(frozen=True)
class SignCodec:
    """Writes `k` signs of each of `num_chunks` chunks of `chunk_coefficients` coefficients."""

    num_chunks: int
    chunk_coefficients: int
    k: int

    def __post_init__(self) -> None:
        if self.num_chunks < 1 or not 1 < self.chunk_coefficients <= CHUNK_COEFFICIENTS_MAX:
            raise ValueError(f"{self.num_chunks} chunks of {self.chunk_coefficients} coefficients")
        if not 1 <= self.k <= self.chunk_coefficients:
            raise ValueError(f"k is {self.k} of {self.chunk_coefficients}")

    @property
    def encoded_bytes(self) -> int:
        return (self.num_chunks * self.k * (self._index_bits + 1) + 7) // 8

    @property
    def _index_bits(self) -> int:
        return (self.chunk_coefficients - 1).bit_length()

    def encode(self, signs: Signs) -> bytes:
        """Raises ValueError for indices that do not increase, or of another shape."""
        shape = (self.num_chunks, self.k)
        if signs.indices.shape != shape or signs.is_negative.shape != shape:
            raise ValueError(f"signs of shape {signs.indices.shape} instead of {shape}")
        if not self._is_valid(signs.indices):
            raise ValueError("indices that do not increase, or lie outside")
        bits = np.empty((*shape, self._index_bits + 1), np.uint8)
        for bit in range(self._index_bits):
            bits[:, :, bit] = signs.indices >> bit & 1
        bits[:, :, -1] = signs.is_negative
        return np.packbits(bits, bitorder="little").tobytes()

    def decode(self, data: Buffer) -> Signs:
        """Raises MalformedError for anything that `encode` does not write."""
        num_entries = self.num_chunks * self.k
        check_length("sign", data, num_entries, self.encoded_bytes)
        stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        num_bits = num_entries * (self._index_bits + 1)
        if stream[num_bits:].any():
            raise MalformedError("a sign chunk with more bits than entries")
        bits = stream[:num_bits].reshape(self.num_chunks, self.k, -1)
        indices = np.zeros((self.num_chunks, self.k), np.intp)
        for bit in range(self._index_bits):
            indices |= bits[:, :, bit].astype(np.intp) << bit
        if not self._is_valid(indices):
            raise MalformedError("indices of a sign chunk that do not increase, or lie outside")
        return Signs(indices, bits[:, :, -1].astype(np.bool_))

    def reduce(self, contributions: Iterable[Signs]) -> Float32Array:
        """Of each coefficient the mean sign over the contributions that have it, 0 without any.

        Counts and sums are small integers, and one division is rounded once: the same bits
        everywhere and in any order.

        Returns: (num_chunks, chunk_coefficients)
        """
        shape = (self.num_chunks, self.chunk_coefficients)
        sums, counts = np.zeros(shape, np.int16), np.zeros(shape, np.int16)
        chunk = np.arange(self.num_chunks)[:, np.newaxis]
        for signs in contributions:
            # An index is in a chunk once, so nothing is lost by adding at an index array.
            sums[chunk, signs.indices] += np.where(signs.is_negative, np.int16(-1), np.int16(1))
            counts[chunk, signs.indices] += np.int16(1)
        means = sums.astype(np.float32)
        means /= np.maximum(counts, 1)
        return means

    def _is_valid(self, indices: IndexArray) -> bool:
        return bool(
            (np.diff(indices, axis=1) > 0).all()
            and indices.min() >= 0
            and indices.max() < self.chunk_coefficients
        )
