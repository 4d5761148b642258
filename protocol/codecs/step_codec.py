"""The encoding of a shared step of `sync = "distro"` in one chunk or several.

A member's part in a step is a sign update (`sign_codec`). With `outer.step_chunks` above 1 the
tensors' tiles are dealt to that many chunks, in flat order (`exact_transform.chunks_of_step`). Each
chunk has a stream of bits of its own, and travels the ring by itself. So more members' parts fit a
block, and the chunks of a step are under way at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.sign_codec import SignCodec, SignUpdate


class StepCodec:
    """Writes a sign update as the bytes of a step's chunks, one after the other."""

    def __init__(self, coders: Sequence[SignCodec]) -> None:
        """`coders`: one for each chunk, in flat order. Raises ValueError if there is none."""
        if not coders:
            raise ValueError("a step of no chunks")
        self.coders = tuple(coders)
        self.num_chunks = len(self.coders)
        """Number of chunks of a step."""
        self.num_entries = sum(coder.num_entries for coder in self.coders)
        """Number of signs of an update."""
        sizes = [coder.encoded_bytes for coder in self.coders]
        self.encoded_bytes = sum(sizes)
        """Size of an encoded update, over all chunks."""
        self.chunk_bytes_max = max(sizes)
        """Size of one member's part of the largest chunk."""
        self._ends = tuple(accumulate(sizes, initial=0))
        """Where each chunk begins in an encoded update, and where the last one ends."""
        self._firsts = tuple(
            accumulate((coder.num_coefficients for coder in self.coders[:-1]), initial=0)
        )
        """Number of each chunk's first coefficient."""

    def chunk_bytes(self, chunk: int) -> int:
        """Returns the size of one member's part of a round's chunk, by its number."""
        return self.coders[chunk % self.num_chunks].encoded_bytes

    def encode(self, update: SignUpdate) -> bytes:
        """Returns the bytes of all chunks. Raises ValueError for anything but k ascending places
        of every tile."""
        if not update.places.shape == update.is_positive.shape == (self.num_entries,):
            raise ValueError(f"{update.places.shape} signs instead of {self.num_entries}")
        encoded, start = [], 0
        for coder, first in zip(self.coders, self._firsts, strict=True):
            part = slice(start, start + coder.num_entries)
            chunk = SignUpdate(update.places[part] - first, update.is_positive[part])
            encoded.append(coder.encode(chunk))
            start = part.stop
        return b"".join(encoded)

    def cut(self, encoded: bytes) -> tuple[bytes, ...]:
        """Returns the bytes of each chunk. Raises ValueError for another length."""
        if len(encoded) != self.encoded_bytes:
            raise ValueError(f"signs in {len(encoded)} bytes instead of {self.encoded_bytes}")
        return tuple(encoded[start:stop] for start, stop in pairwise(self._ends))

    def decode_chunk(self, chunk: int, data: Buffer) -> SignUpdate:
        """Returns one member's part of a round's chunk, by its number.

        Its places are those of all coefficients. Raises MalformedError for anything that `encode`
        does not write.
        """
        number = chunk % self.num_chunks
        update = self.coders[number].decode(data)
        return SignUpdate(update.places + self._firsts[number], update.is_positive)

    def decode(self, encoded: bytes) -> SignUpdate:
        """Returns a whole update. Raises ValueError for another length, and MalformedError for
        anything else that `encode` does not write."""
        parts = [self.decode_chunk(number, data) for number, data in enumerate(self.cut(encoded))]
        return SignUpdate(
            np.concatenate([part.places for part in parts]),
            np.concatenate([part.is_positive for part in parts]),
        )
