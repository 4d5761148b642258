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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class _Layout:
    """Where each entry lies in the bits of an update, and what it may be; all (num_entries,)."""

    first_bytes: npt.NDArray[np.int64]
    """The byte with its first bit."""
    first_bits: npt.NDArray[np.uint32]
    """The place of its first bit in that byte."""
    index_bits: npt.NDArray[np.uint32]
    index_masks: npt.NDArray[np.uint32]
    coefficients: npt.NDArray[np.int64]
    """Coefficients of its tile."""
    tile_starts: npt.NDArray[np.int64]
    """Number of the first coefficient of its tile."""


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
        layout = self._layout
        indices = update.places - layout.tile_starts
        # The tiles follow each other, so that ascending indices of each tile ascend throughout.
        if (
            (indices < 0).any()
            or (indices >= layout.coefficients).any()
            or (update.places[1:] <= update.places[:-1]).any()
        ):
            raise ValueError("places that do not ascend, or are of another tile")
        is_negative = (~update.is_positive).astype(np.uint32)
        entries = indices.astype(np.uint32) | is_negative << layout.index_bits
        windows = entries << layout.first_bits
        stream = np.zeros(self.encoded_bytes + 2, np.uint8)
        for byte in range(3):  # an entry lies in as many bytes, see `decode`
            # No two entries have a bit in common: their sum is what both have set.
            part = (windows >> 8 * byte & 0xFF).astype(np.uint8)
            np.add.at(stream, layout.first_bytes + byte, part)
        return stream[: self.encoded_bytes].tobytes()

    def decode(self, data: Buffer) -> SignUpdate:
        """Raises MalformedError for anything that `encode` does not write."""
        if len(data) != self.encoded_bytes:
            raise MalformedError(f"signs in {len(data)} bytes instead of {self.encoded_bytes}")
        if self._num_bits % 8 and data[-1] >> self._num_bits % 8:
            raise MalformedError("more bits than signs")
        layout = self._layout
        # An entry of at most 13 bits lies in the three bytes that begin with its first bit's byte.
        stream = np.zeros(len(data) + 2, np.uint32)
        stream[: len(data)] = np.frombuffer(data, np.uint8)
        windows = stream[:-2] | stream[1:-1] << 8 | stream[2:] << 16
        entries = windows[layout.first_bytes] >> layout.first_bits
        indices = entries & layout.index_masks
        places = indices + layout.tile_starts
        # The tiles follow each other, so that ascending indices of each tile ascend throughout.
        if (indices >= layout.coefficients).any() or (places[1:] <= places[:-1]).any():
            raise MalformedError("indices of signs that do not ascend, or lie outside")
        return SignUpdate(places, entries >> layout.index_bits & 1 == 0)

    @cached_property
    def _layout(self) -> _Layout:
        """The place of every entry in the bits. It is made once, since a model has many small
        tensors and every step has an update of each member."""
        sizes = [part.num_entries for part in self._parts]
        index_bits = np.repeat([part.index_bits for part in self._parts], sizes)
        first_bits = np.cumsum(index_bits + 1) - (index_bits + 1)
        return _Layout(
            first_bytes=first_bits // 8,
            first_bits=(first_bits % 8).astype(np.uint32),
            index_bits=index_bits.astype(np.uint32),
            index_masks=((1 << index_bits) - 1).astype(np.uint32),
            coefficients=np.repeat([part.coefficients for part in self._parts], sizes),
            tile_starts=np.concatenate(
                [
                    np.repeat(part.first + part.coefficients * np.arange(part.num_tiles), part.k)
                    for part in self._parts
                ]
            ),
        )
