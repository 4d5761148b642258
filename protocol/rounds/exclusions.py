"""The members that are out of one ring, each with how it came, for `policy.ring_conduct`."""

from __future__ import annotations

from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.accusations import Accusations
from gossamer.protocol.rounds.actions import Contested, Removed
from gossamer.protocol.rounds.doubts import Heard

REPEATED = "is out"
"""The reason of an accusation that a member repeats (`Accusations.to_repeat`)."""

ACCUSED_BY = "accused by"
"""The reason of a member that leaves because another one accuses it begins so."""


class Exclusions:
    """What one member knows of how others came to be out of one ring."""

    def __init__(self) -> None:
        self._removed_by: dict[PeerId, Removed] = {}

    def note(
        self,
        heard: Heard,
        detail: str,
        members: tuple[PeerId, ...],
        order: tuple[PeerId, ...],
        *,
        is_voting: bool,
    ) -> Removed:
        """A member is newly out.

        Args:
            heard: the accusation that put it out.
            detail: why this peer believes it.
            members: all members of the ring.
            order: those that were in until now, in ring order.
            is_voting: whether this peer has all averages.
        """
        accusers = {heard.author, *(each.accuser for each in self._removed_by.values())}
        alone_of = len(members) if len(order) == 2 and len(accusers) == 1 else 0
        removed = Removed(
            heard.accused, heard.reason, detail, heard.author, order, is_voting, heard.answers,
            alone_of,
        )  # fmt: skip
        self._removed_by[heard.accused] = removed
        return removed

    def contested(self, heard: Heard, accusations: Accusations) -> list[Contested]:
        """What a member that is out says of itself: that it is at work, and who accused it.

        Only one that was put out by a single member contests that, while chunks went round. A
        member that delays the votes is accused by many at once.
        """
        removed = self._removed_by.get(heard.accused)
        if (
            heard.author != heard.accused
            or not heard.reason.startswith(ACCUSED_BY)
            or removed is None
            or removed.is_voting
            or removed.reason == REPEATED
            or accusations.accusers_of(heard.accused) != {removed.accuser}
        ):
            return []
        return [Contested(removed.accuser, heard.accused, len(removed.order))]
