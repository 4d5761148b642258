"""Lossless packing of chunks on their way to the next member of a ring.

*Values of fp32 and fp16* (`FloatPacking`). The values of one chunk of a pseudo-gradient lie within
a few powers of two of each other. So the byte of each value that has the sign and the upper bits of
the exponent has few values that are frequent, and an entropy code makes it shorter: by a third with
fp16, by two thirds with fp32 (`docs/benchmarks/codecs.md`). The other bytes are close to noise, and
travel as they are:

    ...            the payload without the upper bytes of its values
    ...            the upper bytes of all values, in order: one frame of zstd (RFC 8878) that states
                   its content's size

*Places of sparse updates* (`PlacePacking`). A place has 12 bits, whatever the number of places.
They ascend, so the steps between them say as much, and most of them are short: of 64 places in a
block of 4096 the frame takes 7 to 8 bits each, and of 1,024 places 3.3:

    ...            the payload without the places of its updates
    ...            the steps of all updates, in order: one frame of zstd that states its content's
                   size

A step is the number of elements between a place and the one before it, or the beginning of the
chunk. It is one byte for each whole 255 in it, each of value 255, and one byte with the rest.

A packed payload is always shorter than the payload, and the receiver knows the payload's length. So
a payload that no packing makes shorter travels as it is, and nothing else has to be said.

The codecs of integers have no packing: their scales, one for 128 values, leave codes that are used
almost equally often.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.sparse_codec import (
    BLOCK_ELEMENTS,
    SparseCodec,
    pack_places,
    place_bytes,
    unpack_places,
)
from gossamer.protocol.errors import MalformedError

_Bytes = npt.NDArray[np.uint8]

_LEVEL = 1
"""Level of zstd. Nothing repeats in upper bytes and in steps, so what saves is its entropy code,
which all levels have; higher ones search longer in vain."""

_STEPS = zstandard.ZstdCompressionParameters.from_level(_LEVEL, min_match=7, hash_log=6)
"""Short steps have few values, so repetitions come by chance. To refer to one costs more than it
saves, up to a tenth of the frame: these parameters find next to none."""

_PLACE_BITS = BLOCK_ELEMENTS.bit_length() - 1

_WHOLE_STEP = 255
"""Largest value of a byte of steps: it says that the next byte belongs to the same step."""


class FloatLayout(NamedTuple):
    """The place of the values in a chunk that a codec encoded."""

    head_bytes: int
    """Bytes before the values."""
    value_bytes: int


LAYOUTS = {"fp32": FloatLayout(0, 4), "fp16": FloatLayout(4, 2)}
"""Of the codecs whose values have a packing, by name."""

FLOATS_SHARE = 0.85
"""Part of the bytes of `fp32` and `fp16` that travels when they are packed: 0.83 to 0.85 were
measured, and a chunk has some bytes of framing (tests/benchmarks/packing.py)."""


@dataclass(frozen=True)
class Packing(ABC):
    """The packing of one payload. Its methods may run in threads."""

    num_bytes: int
    """Length of the payload before packing."""
    starts: Sequence[int]
    """The places in the payload where an encoded chunk begins, ascending."""
    num_elements: int
    """Values of each of these chunks."""

    @property
    @abstractmethod
    def _num_framed(self) -> int:
        """Bytes of the payload that travel in the frame."""

    @abstractmethod
    def pack(self, payload: Buffer) -> Sequence[Buffer]:
        """The parts that travel one after the other in place of the payload."""

    @abstractmethod
    def unpack(self, packed: Buffer) -> bytearray:
        """The payload whose parts `pack` returned, of a length that `is_length` allows.

        Raises:
            MalformedError: `packed` is not what `pack` returns for such a payload.
        """

    def is_length(self, num_packed: int) -> bool:
        """Returns whether the payload may have so many bytes when it is packed. A payload that is
        not packed has more."""
        is_block = self.num_bytes <= limits.BLOCK_BYTES_MAX
        return is_block and self._boundary < num_packed < self.num_bytes

    @property
    def _boundary(self) -> int:
        """Bytes of a packed payload before its frame."""
        return self.num_bytes - self._num_framed

    @abstractmethod
    def _pieces(self, rest: _Bytes, whole: _Bytes) -> Iterable[tuple[_Bytes, _Bytes]]:
        """Views of what does not travel in the frame, in what stands before the frame and in the
        whole payload."""

    def _parts(self, payload: Buffer, frame: bytes) -> Sequence[Buffer]:
        """What travels in place of the payload if this is its frame."""
        if len(frame) >= self._num_framed:
            return (payload,)
        rest = np.empty(self._boundary, np.uint8)
        for there, here in self._pieces(rest, np.frombuffer(payload, np.uint8)):
            there[:] = here
        return (rest.data, frame)

    def _unframed(self, packed: Buffer) -> bytearray:
        """The payload, with zeros in place of what travels in the frame."""
        payload = bytearray(self.num_bytes)
        rest = np.frombuffer(packed, np.uint8, count=self._boundary)
        for here, there in self._pieces(rest, np.frombuffer(payload, np.uint8)):
            there[:] = here
        return payload


@dataclass(frozen=True)
class FloatPacking(Packing):
    """The packing of a payload of `fp32` or `fp16`."""

    layout: FloatLayout

    @property
    def _num_framed(self) -> int:
        return len(self.starts) * self.num_elements

    def pack(self, payload: Buffer) -> Sequence[Buffer]:
        whole = np.frombuffer(payload, np.uint8)
        upper = np.empty((len(self.starts), self.num_elements), np.uint8)
        for row, values in zip(upper, self._values(whole), strict=True):
            row[:] = values[:, -1]
        return self._parts(payload, zstandard.ZstdCompressor(level=_LEVEL).compress(upper.data))

    def unpack(self, packed: Buffer) -> bytearray:
        num_values = self._num_framed
        upper = np.frombuffer(_content(packed, self._boundary, num_values, num_values), np.uint8)
        payload = self._unframed(packed)
        rows = upper.reshape(len(self.starts), self.num_elements)
        for row, values in zip(rows, self._values(np.frombuffer(payload, np.uint8)), strict=True):
            values[:, -1] = row
        return payload

    def _values(self, whole: _Bytes) -> list[_Bytes]:
        """Views of the values of each chunk in the payload, (num_elements, value_bytes)."""
        views = []
        for start in self.starts:
            first = start + self.layout.head_bytes
            last = first + self.num_elements * self.layout.value_bytes
            views.append(whole[first:last].reshape(self.num_elements, self.layout.value_bytes))
        return views

    def _pieces(self, rest: _Bytes, whole: _Bytes) -> list[tuple[_Bytes, _Bytes]]:
        """See `Packing`: what lies between the values, and each of the lower bytes of all values of
        a chunk."""
        pieces, place, done = [], 0, 0
        width = self.layout.value_bytes
        for start, values in zip(self.starts, self._values(whole), strict=True):
            between = start + self.layout.head_bytes - done
            pieces.append((rest[place : place + between], whole[done : done + between]))
            place, done = place + between, done + between
            lower = rest[place : place + self.num_elements * (width - 1)].reshape(-1, width - 1)
            pieces += [(lower[:, byte], values[:, byte]) for byte in range(width - 1)]
            place, done = place + lower.size, done + values.size
        pieces.append((rest[place:], whole[done:]))
        return pieces


@dataclass(frozen=True)
class PlacePacking(Packing):
    """The packing of a payload of sparse updates."""

    coder: SparseCodec

    @property
    def _num_kept(self) -> int:
        """Values of one update."""
        return self.coder.num_kept(self.num_elements)

    @property
    def _num_framed(self) -> int:
        return len(self.starts) * place_bytes(self._num_kept)

    def pack(self, payload: Buffer) -> Sequence[Buffer]:
        """See `Packing`. An update whose places do not ascend is no update, and travels as it is:
        a receiver says so of the payload."""
        whole = np.frombuffer(payload, np.uint8)
        kept = self._num_kept
        blocks = self.coder.blocks_of(kept) * BLOCK_ELEMENTS
        steps = np.empty((len(self.starts), kept), np.intp)
        try:
            for row, (first, last) in zip(steps, self._ranges(), strict=True):
                places = unpack_places(whole[first:last], kept) + blocks
                row[:] = np.diff(places, prepend=-1) - 1
        except MalformedError:
            return (payload,)
        if (steps < 0).any():
            return (payload,)
        compressor = zstandard.ZstdCompressor(compression_params=_STEPS)
        return self._parts(payload, compressor.compress(_bytes_of(steps).data))

    def unpack(self, packed: Buffer) -> bytearray:
        kept = self._num_kept
        num_steps = len(self.starts) * kept
        most = num_steps + len(self.starts) * (self.num_elements // _WHOLE_STEP)
        content = np.frombuffer(_content(packed, self._boundary, num_steps, most), np.uint8)
        ends = np.flatnonzero(content != _WHOLE_STEP)
        if len(ends) != num_steps or ends[-1] != len(content) - 1:
            raise MalformedError("a packed chunk with another number of places")
        # The elements up to each place, those of the updates before it among them.
        reached = np.cumsum(content, dtype=np.intp)[ends] + np.arange(1, num_steps + 1)
        reached = reached.reshape(-1, kept)
        reached[1:] -= reached[:-1, -1:].copy()
        places, blocks = reached - 1, self.coder.blocks_of(kept)
        if (places >> _PLACE_BITS != blocks).any() or (places >= self.num_elements).any():
            raise MalformedError("a packed chunk with places outside of their blocks")
        payload = self._unframed(packed)
        in_blocks = (places & BLOCK_ELEMENTS - 1).astype(np.uint16)
        for row, (first, last) in zip(in_blocks, self._ranges(), strict=True):
            payload[first:last] = pack_places(row)
        return payload

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """The first byte of each update's places, and the one after the last."""
        head_bytes = self.coder.head_bytes(self.num_elements)
        for start in self.starts:
            first = start + head_bytes
            yield first, first + place_bytes(self._num_kept)

    def _pieces(self, rest: _Bytes, whole: _Bytes) -> Iterator[tuple[_Bytes, _Bytes]]:
        """See `Packing`: what stands between the places."""
        place, done = 0, 0
        for first, last in self._ranges():
            yield rest[place : place + first - done], whole[done:first]
            place, done = place + first - done, last
        yield rest[place:], whole[done:]


def packed_place_bytes(coder: SparseCodec, num_elements: int) -> int:
    """Bytes of an update's places when they are packed, by estimate and from the numbers alone.

    So many bits a code of Rice takes at most for the steps of a whole block: of r lower bits and
    the rest of a step in unary, with the best r. A frame takes about as many.
    """
    k = coder.k
    bits = min(k * (r + 1) + ((BLOCK_ELEMENTS - k) >> r) for r in range(_PLACE_BITS + 1))
    return -(-bits * num_elements // (8 * BLOCK_ELEMENTS))


def saved_place_bytes(coder: SparseCodec, num_elements: int) -> int:
    """Bytes by which an update is shorter when its places are packed, by the same estimate."""
    return place_bytes(coder.num_kept(num_elements)) - packed_place_bytes(coder, num_elements)


def _bytes_of(steps: npt.NDArray[np.intp]) -> _Bytes:
    """The bytes of steps, in order."""
    if steps.max() < _WHOLE_STEP:  # as with a thousand values of a block, where time counts
        return steps.reshape(-1).astype(np.uint8)
    whole, rest = np.divmod(steps.reshape(-1), _WHOLE_STEP)
    ends = np.cumsum(whole + 1)
    content = np.full(ends[-1], _WHOLE_STEP, np.uint8)
    content[ends - 1] = rest
    return content


def _content(packed: Buffer, boundary: int, least: int, most: int) -> bytes:
    """The content of the frame of zstd behind so many bytes. Raises MalformedError for a length
    that is out of range."""
    frame = memoryview(packed)[boundary:]
    try:
        # Looked at first, because so much memory is taken.
        num_bytes = zstandard.frame_content_size(frame)
        if not least <= num_bytes <= most:
            raise MalformedError("a packed chunk of another length")
        decompressor = zstandard.ZstdDecompressor(max_window_size=limits.BLOCK_BYTES_MAX)
        content = decompressor.decompress(frame, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:
        raise MalformedError(f"a packed chunk that cannot be unpacked: {error}") from None
    if len(content) != num_bytes:
        raise MalformedError("a packed chunk of another length")
    return content
