"""Who is out of a ring, from what its members say of each other.

Rules
-----
- A member is out for good once a member that I hold to be in accuses it, or once it says so itself.
- What a member says of others after I hold it to be out does not count. So a machine that lost its
  network, and accuses everybody when it is back, harms nobody.
- A member that hears that it is out says so itself.
- When the accusers of a member are all out themselves, I accuse it again in my own name: others may
  have heard of its accusers' fall first, and would wait for somebody whom I pass over.
- A member that is out and accuses another does not know it, because it holds its accusers to be
  out. I accuse it in my own name, so that it does not wait for me.

So whoever holds a member to be in comes to hold the same members out as that one does: take the
first removal on which two of them differ. Its accuser is in for one of them, who repeats or relays
what the other has to accept.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.protocol.ids import PeerId


class Accusations:
    """One member's view of who is out of one ring."""

    def __init__(self, members: Sequence[PeerId], me: PeerId) -> None:
        self._members = frozenset(members)
        self._me = me
        self._accusers: dict[PeerId, set[PeerId]] = {}
        self.out: frozenset[PeerId] = frozenset()
        self._unaware: set[PeerId] = set()

    def accuse(self, author: PeerId, accused: PeerId) -> bool:
        """Takes an accusation, in the order of hearing; says whether the accused is newly out."""
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

    def to_repeat(self) -> list[PeerId]:
        """Members that are out and that I have to accuse once in my own name."""
        if self._me in self.out:
            return []
        return [
            accused
            for accused, accusers in sorted(self._accusers.items())
            if accused not in accusers
            and self._me not in accusers
            and (accusers <= self.out or accused in self._unaware)
        ]
