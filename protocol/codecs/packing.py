"""Lossless packing of chunks of fp32 or fp16 values on their way to the next member of a ring.

The values of one chunk of a pseudo-gradient lie within a few powers of two of each other. So the
byte of each value that has the sign and the upper bits of the exponent has few values that are
frequent, and an entropy code makes it shorter: by a third with fp16, by two thirds with fp32
(`docs/benchmarks/codecs.md`). The other bytes are close to noise, and travel as they are:

    ...            the payload without the upper bytes of its values
    ...            the upper bytes of all values, in order: one frame of zstd (RFC 8878) that states
                   its content's size

A packed payload is always shorter than the payload, and the receiver knows the payload's length. So
a payload that no packing makes shorter travels as it is, and nothing else has to be said.

The codecs of integers have no packing: their scales, one for 128 values, leave codes that are used
almost equally often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.errors import MalformedError

_Bytes = npt.NDArray[np.uint8]

_LEVEL = 1
"""Level of zstd. Nothing repeats in upper bytes, so what saves is its entropy code, which all
levels have; higher ones search longer in vain."""


class FloatLayout(NamedTuple):
    """The place of the values in a chunk that a codec encoded."""

    head_bytes: int
    """Bytes before the values."""
    value_bytes: int


LAYOUTS = {"fp32": FloatLayout(0, 4), "fp16": FloatLayout(4, 2)}
"""Of the codecs that have a packing, by name."""


@dataclass(frozen=True)
class Packing:
    """The packing of one payload. Its methods may run in threads."""

    layout: FloatLayout
    num_bytes: int
    """Length of the payload before packing."""
    starts: Sequence[int]
    """The places in the payload where an encoded chunk begins, ascending."""
    num_elements: int
    """Values of each of these chunks."""

    @property
    def _num_values(self) -> int:
        return len(self.starts) * self.num_elements

    def pack(self, payload: Buffer) -> Sequence[Buffer]:
        """The parts that travel one after the other in place of the payload."""
        whole = np.frombuffer(payload, np.uint8)
        upper = np.empty((len(self.starts), self.num_elements), np.uint8)
        for row, values in zip(upper, self._values(whole), strict=True):
            row[:] = values[:, -1]
        frame = zstandard.ZstdCompressor(level=_LEVEL).compress(upper.data)
        if len(frame) >= upper.size:
            return (payload,)
        rest = np.empty(whole.size - upper.size, np.uint8)
        for there, here in self._pieces(rest, whole):
            there[:] = here
        return (rest.data, frame)

    def is_length(self, num_packed: int) -> bool:
        """Returns whether the payload may have so many bytes when it is packed. A payload that is
        not packed has more."""
        is_block = self.num_bytes <= limits.BLOCK_BYTES_MAX
        return is_block and self.num_bytes - self._num_values < num_packed < self.num_bytes

    def unpack(self, packed: Buffer) -> bytearray:
        """The payload whose parts `pack` returned, of a length that `is_length` allows.

        Raises:
            MalformedError: `packed` is not what `pack` returns for such a payload.
        """
        boundary = self.num_bytes - self._num_values
        upper = np.frombuffer(_content(memoryview(packed)[boundary:], self._num_values), np.uint8)
        payload = bytearray(self.num_bytes)
        whole = np.frombuffer(payload, np.uint8)
        rest = np.frombuffer(packed, np.uint8, count=boundary)
        for here, there in self._pieces(rest, whole):
            there[:] = here
        rows = upper.reshape(len(self.starts), self.num_elements)
        for row, values in zip(rows, self._values(whole), strict=True):
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
        """Views of what is not packed, in `rest` and in the whole payload: what lies between the
        values, and each of the lower bytes of all values of a chunk."""
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


def _content(frame: memoryview, num_bytes: int) -> bytes:
    """The content of a frame of zstd. Raises MalformedError for another length."""
    try:
        # Looked at first, because so much memory is taken.
        if zstandard.frame_content_size(frame) != num_bytes:
            raise MalformedError("a packed chunk of another length")
        decompressor = zstandard.ZstdDecompressor(max_window_size=limits.BLOCK_BYTES_MAX)
        content = decompressor.decompress(frame, allow_extra_data=False)
    except (zstandard.ZstdError, ValueError) as error:
        raise MalformedError(f"a packed chunk that cannot be unpacked: {error}") from None
    if len(content) != num_bytes:
        raise MalformedError("a packed chunk of another length")
    return content
