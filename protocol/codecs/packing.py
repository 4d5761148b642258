"""Lossless packing of chunks of fp32 or fp16 values on their way to the next member of a ring.

The values of one chunk of a pseudo-gradient lie within a few powers of two of each other. So the
byte of each value that has the sign and the upper bits of the exponent has few values that are
frequent, and an entropy code makes it shorter by a third (`docs/benchmarks/codecs.md`). The other
bytes are the mantissa's, are close to noise, and travel as they are:

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

_HEADS_AND_WIDTHS = {"fp32": (0, 4), "fp16": (4, 2)}
"""Bytes of an encoded chunk before its values, and bytes of a value, by codec."""


class FloatPacking:
    """The packing of payloads whose chunks one codec encoded. Its methods may run in threads."""

    def __init__(self, head_bytes: int, value_bytes: int) -> None:
        """`head_bytes`: of an encoded chunk, before its values."""
        self._head_bytes, self._value_bytes = head_bytes, value_bytes

    def pack(self, payload: Buffer, starts: Sequence[int], num_elements: int) -> Sequence[Buffer]:
        """The parts that travel one after the other in place of a payload.

        Args:
            starts: the places in the payload where an encoded chunk begins, ascending.
            num_elements: values of each of these chunks.
        """
        whole = np.frombuffer(payload, np.uint8)
        upper = np.empty((len(starts), num_elements), np.uint8)
        for row, values in zip(upper, self._values(whole, starts, num_elements), strict=True):
            row[:] = values[:, -1]
        frame = zstandard.ZstdCompressor(level=_LEVEL).compress(upper.data)
        if len(frame) >= upper.size:
            return (payload,)
        rest = np.empty(whole.size - upper.size, np.uint8)
        for there, here in self._pieces(rest, whole, starts, num_elements):
            there[:] = here
        return (rest.data, frame)

    def is_packed_length(self, num_packed: int, num_bytes: int, num_values: int) -> bool:
        """Returns whether a payload of `num_bytes` with so many values may have `num_packed` bytes
        when it is packed."""
        is_frame = num_bytes <= limits.BLOCK_BYTES_MAX
        return is_frame and num_bytes - num_values < num_packed < num_bytes

    def unpack(
        self, packed: Buffer, num_bytes: int, starts: Sequence[int], num_elements: int
    ) -> bytearray:
        """The payload, `num_bytes` long, whose parts `pack` returned.

        Args:
            packed: of a length that `is_packed_length` allows.
            starts: see `pack`.
            num_elements: see `pack`.

        Raises:
            MalformedError: `packed` is not what `pack` returns for such a payload.
        """
        num_values = len(starts) * num_elements
        boundary = num_bytes - num_values
        upper = np.frombuffer(_content(memoryview(packed)[boundary:], num_values), np.uint8)
        payload = bytearray(num_bytes)
        whole = np.frombuffer(payload, np.uint8)
        rest = np.frombuffer(packed, np.uint8, count=boundary)
        for here, there in self._pieces(rest, whole, starts, num_elements):
            there[:] = here
        rows = upper.reshape(len(starts), num_elements)
        for row, values in zip(rows, self._values(whole, starts, num_elements), strict=True):
            values[:, -1] = row
        return payload

    def _values(self, whole: _Bytes, starts: Sequence[int], num_elements: int) -> list[_Bytes]:
        """Views of the values of each chunk in a payload, (num_elements, value_bytes)."""
        views = []
        for start in starts:
            first = start + self._head_bytes
            last = first + num_elements * self._value_bytes
            views.append(whole[first:last].reshape(num_elements, self._value_bytes))
        return views

    def _pieces(
        self, rest: _Bytes, whole: _Bytes, starts: Sequence[int], num_elements: int
    ) -> list[tuple[_Bytes, _Bytes]]:
        """Views of what is not packed, in `rest` and in the whole payload: what lies between the
        values, and each of the lower bytes of all values of a chunk."""
        pieces, place, done = [], 0, 0
        width = self._value_bytes
        for start, values in zip(starts, self._values(whole, starts, num_elements), strict=True):
            between = start + self._head_bytes - done
            pieces.append((rest[place : place + between], whole[done : done + between]))
            place, done = place + between, done + between
            lower = rest[place : place + num_elements * (width - 1)].reshape(-1, width - 1)
            pieces += [(lower[:, byte], values[:, byte]) for byte in range(width - 1)]
            place, done = place + lower.size, done + values.size
        pieces.append((rest[place:], whole[done:]))
        return pieces


def packing_of(codec: str) -> FloatPacking | None:
    """The packing of payloads in this codec; None where it has none."""
    layout = _HEADS_AND_WIDTHS.get(codec)
    return None if layout is None else FloatPacking(*layout)


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
