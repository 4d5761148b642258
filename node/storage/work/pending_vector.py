"""`pending`, the work that no round has taken, as a vector in shared memory.

A chunk of it may be taken while it is what was offered. Then the rounding error of this peer's own
encoding stays in it, and goes into the next round (error feedback).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gossamer.node.base.threads import map_pieces, num_piece_threads
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector


class RoundingErrors(Protocol):
    """The rounding errors of this peer's own encoding in a ring (`Contribution`). They are valid
    while `pending` is the vector that was offered."""

    def error_of(self, chunk: int) -> FloatVector | None:
        """Returns the rounding error of a chunk of the ring; None if it has none."""


@dataclass(frozen=True)
class OfferedTo:
    """The ring that `pending` was offered to last."""

    ring_id: Digest
    errors: RoundingErrors
    first_chunk: int
    """Number in `pending` of the ring's chunk 0."""

    def error_of(self, chunk: int) -> FloatVector | None:
        """Returns the rounding error of a chunk of `pending`; None if it has none."""
        return self.errors.error_of(chunk - self.first_chunk)


class PendingVector:
    """The vector of (num_elements,) and its chunks. A mask has bit c for chunk c."""

    def __init__(self, vector: FloatVector, plan: ChunkPlan) -> None:
        self.vector = vector
        self._plan = plan

    def offered(self, ring: OfferedTo | None) -> Iterator[FloatVector]:
        """Yields what was offered, chunk by chunk: `pending` without the rounding errors."""
        return (offered for _, offered, _ in self._offered(ring, (1 << self._plan.num_chunks) - 1))

    def take_out(self, ring: OfferedTo | None, taken: int) -> Iterator[FloatVector]:
        """Yields what was offered, chunk by chunk, and leaves of each `taken` chunk its error."""
        for chunk, (part, offered, error) in enumerate(self._offered(ring, taken)):
            yield offered
            if taken >> chunk & 1:
                self.vector[part] = 0.0 if error is None else error

    def _offered(
        self, ring: OfferedTo | None, chunks: int
    ) -> Iterator[tuple[slice, FloatVector, FloatVector | None]]:
        """Yields chunk by chunk its place, what of it was offered, and the own error, for some
        `chunks`. Threads work out the next ones; what is yielded may be changed."""

        def offered(chunk: int) -> tuple[slice, FloatVector, FloatVector | None]:
            part = self._plan.range_of(chunk)
            error = None
            if ring is not None and chunks >> chunk & 1:
                error = ring.error_of(chunk)
            values = self.vector[part]
            return part, values if error is None else values - error, error

        plan = self._plan
        return map_pieces(offered, range(plan.num_chunks), num_piece_threads(plan.num_elements))

    def subtract(self, vector: FloatVector, chunks: int) -> None:
        """Removes chunks of a vector that was offered earlier: `pending` has changed since."""
        for part in self._parts(chunks):
            self.vector[part] -= vector[part]

    def add(self, vector: FloatVector, chunks: int) -> None:
        """Adds chunks of a vector that was offered earlier."""
        for part in self._parts(chunks):
            self.vector[part] += vector[part]

    def clear(self, chunks: int) -> None:
        """Sets chunks to zero."""
        for part in self._parts(chunks):
            self.vector[part] = 0.0

    def _parts(self, chunks: int) -> Iterator[slice]:
        plan = self._plan
        return (plan.range_of(each) for each in range(plan.num_chunks) if chunks >> each & 1)
