"""The cut of a run's flat vectors into chunks. It does not depend on the peers that take part."""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits


class ChunkPlan(msgspec.Struct, frozen=True):
    """`num_elements` fp32 values cut into ranges of `chunk_elements`; the last of each section may
    be shorter."""

    num_elements: int
    chunk_elements: int
    sections: tuple[int, ...] = ()
    """Elements of each section, in order. No chunk crosses a section; empty: one section."""

    @property
    def num_chunks(self) -> int:
        return sum(map(self._chunks_in, self._sections))

    @property
    def _sections(self) -> tuple[int, ...]:
        return self.sections or (self.num_elements,)

    def _chunks_in(self, num_elements: int) -> int:
        return -(-num_elements // self.chunk_elements)

    def range_of(self, chunk: int) -> slice:
        """Elements of a chunk.

        Raises:
            IndexError: no such chunk.
        """
        if not 0 <= chunk < self.num_chunks:
            raise IndexError(f"chunk {chunk} of {self.num_chunks}")
        section_start = 0
        for num_elements in self._sections:
            if chunk < self._chunks_in(num_elements):
                break
            chunk -= self._chunks_in(num_elements)
            section_start += num_elements
        start = section_start + chunk * self.chunk_elements
        return slice(start, min(start + self.chunk_elements, section_start + num_elements))

    def elements_of(self, chunk: int) -> int:
        piece = self.range_of(chunk)
        return int(piece.stop - piece.start)


def default_chunk_elements(num_parameters: int) -> int:
    """Elements of a chunk for a model: some 64 chunks, and half as many if they would be tiny.

    A ring is as slow as its busiest member, which may send two chunks more than the others: with 39
    chunks among 4 members that cost 1.5 % of a 100 Mbit/s line. Every chunk costs about a
    millisecond of processor time at each member, and for a small model that cost dominates. The
    result is rounded up to 1024 elements and at most `CHUNK_ELEMENTS_DEFAULT_MAX`.
    """
    wanted = max(-(-num_parameters // 64), min(-(-num_parameters // 32), _SMALL_CHUNK_ELEMENTS))
    rounded = -(-wanted // limits.CHUNK_ELEMENTS_MIN) * limits.CHUNK_ELEMENTS_MIN
    return min(rounded, limits.CHUNK_ELEMENTS_DEFAULT_MAX)


_SMALL_CHUNK_ELEMENTS = 16 * limits.KIB
"""Elements of a small chunk: 64 KiB of fp32, which take 5 ms at 100 Mbit/s."""
