"""The members that are out of a ring, derived from what its members say of each other.

This is the only place that decides who is out. `ring.RingReduce` keeps the living members that
follow from it, in ring order.

Rules
-----
- A member is out for good once a member that is not out accuses it, or once it accuses itself.
- An accusation by a member that is out does not count. So a machine that lost its network, and
  accuses all members when it is back, does no harm.
- A member that hears that it is out accuses itself.
- All accusers of a member may come to be out themselves. Then this peer repeats the accusation in
  its own name: other members may have heard first that the accusers are out, and would wait for a
  member that this peer passes over.
- A member that is out and accuses another does not know that it is out, because it believes its
  accusers to be out. This peer accuses it in its own name, so that it does not wait for this peer.

So two members that believe each other living come to exclude the same members. For a proof take the
first removal on which they differ. The accuser is living for one of them, and this one repeats or
relays the accusation, which the other has to accept.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.protocol.ids import PeerId


class Accusations:
    """One member's view of which members are out of one ring."""

    def __init__(self, members: Sequence[PeerId], me: PeerId) -> None:
        self._members = frozenset(members)
        self._me = me
        self._accusers: dict[PeerId, set[PeerId]] = {}
        self.out: frozenset[PeerId] = frozenset()
        self._unaware: set[PeerId] = set()

    def accuse(self, author: PeerId, accused: PeerId) -> bool:
        """Takes an accusation in the order of arrival. Returns whether the accused is newly out."""
        if author not in self._members or accused not in self._members:
            return False
        if author in self.out and author != accused:
            self._unaware.add(author)
            return False
        self._accusers.setdefault(accused, set()).add(author)
        if accused in self.out:
            return False
        self.out |= {accused}
        return True

    def accusers_of(self, peer: PeerId) -> frozenset[PeerId]:
        """The others that accuse a member."""
        return frozenset(self._accusers.get(peer, ())) - {peer}

    def to_repeat(self) -> list[PeerId]:
        """Members that are out and that this peer has to accuse once in its own name."""
        if self._me in self.out:
            return []
        return [
            accused
            for accused, accusers in sorted(self._accusers.items())
            if accused not in accusers
            and self._me not in accusers
            and (accusers <= self.out or accused in self._unaware)
        ]
