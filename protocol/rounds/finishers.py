"""The member that finishes the sum of a chunk: it follows from the roster's order.

Rules
-----
- The first member of a chunk is the one that starts it while nobody is out. The chunk is finished
  by the last living member of the walk that begins there: by the member before the first one, or by
  the next one before that if it is out, and so on.
- Members hear at different times of those that are out. So an average is taken also from a member
  that finished before it went out: each member that is out, with no living one between it and the
  first member, may have done so.

Both sets only grow while members go out. So an average that was taken stays one that others take.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gossamer.protocol.ids import PeerId


class Finishers:
    """The finishers of all chunks of one ring."""

    def __init__(self, members: Sequence[PeerId], starters: Sequence[int]) -> None:
        """
        Args:
            members: in ring order.
            starters: positions of the members that start chunks, in turn.
        """
        self._members = members
        self._starters = starters

    def first(self, chunk: int) -> int:
        """The position of the member that starts a chunk while nobody is out."""
        return self._starters[chunk % len(self._starters)]

    def finishes(self, chunk: int, position: int, living: Collection[PeerId]) -> bool:
        """Returns whether the member at a position is the one that finishes a chunk."""
        return self.may_finish(chunk, position, living) and self._members[position] in living

    def may_finish(self, chunk: int, position: int, living: Collection[PeerId]) -> bool:
        """Returns whether the member at a position finishes a chunk, or could have done so before
        it went out."""
        num_members = len(self._members)
        after = (self.first(chunk) - position - 1) % num_members
        between = (self._members[(position + step) % num_members] for step in range(1, after + 1))
        return not any(member in living for member in between)
