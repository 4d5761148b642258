"""The members of a ring that are not out, as one of them sees it: who comes next, and which member
starts and which one finishes the sum of a chunk. All of that follows from the roster's order.

Rules
-----
- The first member of a chunk is the one that starts it while nobody is out. If that member is out,
  the next living one starts the chunk.
- The chunk is finished by the last living member of the walk that begins at the first one: by the
  member before the first one, or by the next one before that if it is out, and so on.
- Members hear at different times of those that are out. So an average is taken also from a member
  that finished before it went out: each member that is out, with no living one between it and the
  first member, may have done so.

The members that finish a chunk, or may have done so, only become more while members go out. So an
average that was taken stays one that others take.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import PeerId


class LivingMembers:
    """The order of one ring, with the members that one of them believes living."""

    def __init__(self, members: Sequence[PeerId], me: PeerId, starters: Sequence[int]) -> None:
        """
        Args:
            members: in ring order.
            starters: positions of the members that start chunks, in turn.
        """
        if me not in members:
            raise LocalProtocolError("not a member of this ring")
        self.members = tuple(members)
        self.position = self.members.index(me)
        """This member's."""
        self._starters = starters
        self.living = self.members
        """Members that are not out, in ring order."""
        self._mask = (1 << len(self.members)) - 1
        self.successor = self._next_living()
        """The next living member; None: no other member is living."""

    @property
    def is_out(self) -> bool:
        """Returns whether this member itself is out."""
        return not self._mask >> self.position & 1

    def num_missing(self, mask: int) -> int:
        """The number of living members that a sum of the members of `mask` lacks."""
        return (self._mask & ~mask).bit_count()

    def remove(self, member: PeerId) -> None:
        """A member is out of this ring for good."""
        self.living = tuple(each for each in self.living if each != member)
        self._mask &= ~(1 << self.members.index(member))
        self.successor = self._next_living()

    def starts(self, chunk: int) -> bool:
        """Returns whether this member is the one that starts a chunk."""
        num_members, first = len(self.members), self.first(chunk)
        walk = (self.members[(first + offset) % num_members] for offset in range(num_members))
        starter = next((member for member in walk if member in self.living), None)
        return starter == self.members[self.position]

    def first(self, chunk: int) -> int:
        """The position of the member that starts a chunk while nobody is out."""
        return self._starters[chunk % len(self._starters)]

    def finishes(self, chunk: int, position: int) -> bool:
        """Returns whether the member at a position is the one that finishes a chunk."""
        return self.may_finish(chunk, position) and self.members[position] in self.living

    def may_finish(self, chunk: int, position: int) -> bool:
        """Returns whether the member at a position finishes a chunk, or could have done so before
        it went out."""
        num_members = len(self.members)
        after = (self.first(chunk) - position - 1) % num_members
        between = (self.members[(position + step) % num_members] for step in range(1, after + 1))
        return not any(member in self.living for member in between)

    def hops_left(self, chunk: int) -> int:
        """The living members behind this one up to the finisher of a chunk, 1 at least."""
        num_members, hops = len(self.members), 0
        for offset in range(1, num_members):
            position = (self.position + offset) % num_members
            hops += self.members[position] in self.living
            if self.finishes(chunk, position):
                break
        return max(hops, 1)

    def _next_living(self) -> PeerId | None:
        after_me = (*self.members[self.position + 1 :], *self.members[: self.position])
        return next((member for member in after_me if member in self.living), None)
