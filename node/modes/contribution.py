"""This node's part in a ring, as the round's driver uses it."""

from __future__ import annotations

from typing import Protocol

from gossamer.protocol.rounds.ring_parts import RingPart


class Contribution(RingPart, Protocol):
    """The arithmetic of one peer in one ring, and when its part of each chunk is there."""

    async def due(self, chunk: int, *, is_first: bool) -> None:
        """Returns when this peer's part of a chunk is there.

        Args:
            is_first: whether this peer begins the chunk: no partial sum came for it.
        """
