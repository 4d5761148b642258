"""The encoding of DCT coefficients in `sync = "distro"`: the places of the strongest ones, and
their signs.

DisTrO as deployed (DeMo, arXiv 2411.19870, with signs in place of values): of each tile of c
coefficients the `k` of largest magnitude, one bit of sign and ceil(log2(c)) bits of index each. The
entries follow each other bit by bit, a tile's in increasing index, each the bits of its index (the
lowest first) and then its sign (1: negative); bits fill bytes from the lowest on, and what is left
of the last byte is 0. With k = 4 of 4096 a tile takes 52 bits, 0.0127 a parameter.

A model's tensors have tiles of several sizes: `shapes` lists (number of tiles, coefficients of
each), in the order in which their coefficients are numbered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.errors import MalformedError

TILE_COEFFICIENTS_MAX = 4096

Shape = tuple[int, int]
"""(number of tiles, coefficients of each)"""


@dataclass(frozen=True)
class SignUpdate:
    """One peer's part of a step: of each tile its strongest coefficients."""

    places: npt.NDArray[np.int64]
    """(num_sent,) numbers of coefficients, ascending."""
    is_positive: npt.NDArray[np.bool_]
    """(num_sent,)"""


@dataclass(frozen=True)
class _Part:
    """The tiles of one size that follow each other."""

    first: int
    """Number of its first coefficient."""
    num_tiles: int
    coefficients: int
    k: int

    @property
    def num_entries(self) -> int:
        return self.num_tiles * self.k

    @property
    def index_bits(self) -> int:
        return (self.coefficients - 1).bit_length()

    @property
    def num_bits(self) -> int:
        return self.num_entries * (self.index_bits + 1)


class SignCodec:
    """Writes the signs of `k` coefficients (all, of smaller tiles) of every tile."""

    def __init__(self, shapes: Sequence[Shape], k: int) -> None:
        """Raises ValueError for shapes or a k that no tile can have."""
        if not shapes or k < 1:
            raise ValueError(f"{k} signs of each tile of {len(shapes)} tensors")
        self.shapes, self.k = tuple(shapes), k
        self._parts: list[_Part] = []
        first = 0
        for num_tiles, coefficients in shapes:
            if num_tiles < 1 or not 1 <= coefficients <= TILE_COEFFICIENTS_MAX:
                raise ValueError(f"{num_tiles} tiles of {coefficients} coefficients")
            self._parts.append(_Part(first, num_tiles, coefficients, min(k, coefficients)))
            first += num_tiles * coefficients
        self.num_coefficients = first
        self.num_entries = sum(part.num_entries for part in self._parts)
        self._num_bits = sum(part.num_bits for part in self._parts)

    @property
    def encoded_bytes(self) -> int:
        return (self._num_bits + 7) // 8

    def encode(self, update: SignUpdate) -> bytes:
        """Raises ValueError for anything but k ascending places of every tile."""
        if not update.places.shape == update.is_positive.shape == (self.num_entries,):
            raise ValueError(f"{update.places.shape} signs instead of {self.num_entries}")
        stream: list[npt.NDArray[np.uint8]] = []
        start = 0
        for part in self._parts:
            stop = start + part.num_entries
            indices = update.places[start:stop].reshape(part.num_tiles, part.k)
            indices = indices - self._starts(part)
            if not _is_valid(indices, part):
                raise ValueError("places that do not ascend, or are of another tile")
            bits = np.empty((part.num_tiles, part.k, part.index_bits + 1), np.uint8)
            for bit in range(part.index_bits):
                bits[:, :, bit] = indices >> bit & 1
            bits[:, :, -1] = ~update.is_positive[start:stop].reshape(part.num_tiles, part.k)
            stream.append(bits.reshape(-1))
            start = stop
        return np.packbits(np.concatenate(stream), bitorder="little").tobytes()

    def decode(self, data: Buffer) -> SignUpdate:
        """Raises MalformedError for anything that `encode` does not write."""
        if len(data) != self.encoded_bytes:
            raise MalformedError(f"signs in {len(data)} bytes instead of {self.encoded_bytes}")
        stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        if stream[self._num_bits :].any():
            raise MalformedError("more bits than signs")
        places, signs = [], []
        for part, bits in self._split(stream):
            indices = np.zeros((part.num_tiles, part.k), np.int64)
            for bit in range(part.index_bits):
                indices |= bits[:, :, bit].astype(np.int64) << bit
            if not _is_valid(indices, part):
                raise MalformedError("indices of signs that do not ascend, or lie outside")
            places.append((indices + self._starts(part)).reshape(-1))
            signs.append(bits[:, :, -1].reshape(-1) == 0)
        return SignUpdate(np.concatenate(places), np.concatenate(signs))

    def _split(
        self, stream: npt.NDArray[np.uint8]
    ) -> Iterator[tuple[_Part, npt.NDArray[np.uint8]]]:
        start = 0
        for part in self._parts:
            bits = stream[start : start + part.num_bits]
            yield part, bits.reshape(part.num_tiles, part.k, part.index_bits + 1)
            start += part.num_bits

    @staticmethod
    def _starts(part: _Part) -> npt.NDArray[np.int64]:
        """Returns the number of each tile's first coefficient, (num_tiles, 1)."""
        tiles = np.arange(part.num_tiles, dtype=np.int64)[:, np.newaxis]
        return part.first + part.coefficients * tiles


def _is_valid(indices: npt.NDArray[np.int64], part: _Part) -> bool:
    return bool(
        (np.diff(indices, axis=1) > 0).all()
        and indices.min() >= 0
        and indices.max() < part.coefficients
    )
