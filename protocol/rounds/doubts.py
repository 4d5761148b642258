"""Accusations that this peer believes only after it has given the accused time to answer.

A ring believes every accusation, because it cannot go on with two members that do not reach each
other (`accusations`). So one member could keep the same other one out of every ring. This peer
doubts some members: those that lately put out a member which was at work all the same
(`policy.ring_conduct`).

Rules
-----
- An accusation by a doubted member is held for `ANSWER_SECONDS`. Then it counts as any other does.
- A member that a doubted one accuses answers: it accuses the accuser in turn, with the reason
  `BASELESS`. A member that has died or is frozen cannot answer.
- An answer counts before the accusation that it answers, so its author stays in and the accuser is
  out. An answer that comes before its accusation is held for `ANSWER_SECONDS` as well.

To hold an accusation is the same as to hear it later, and an answer is an accusation like any
other. So members that doubt different peers still come to exclude the same members, as
`accusations` has it. If they do not agree, both members may be out in the end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from gossamer.protocol.ids import PeerId

ANSWER_SECONDS = 2.0
"""Time for the accused to hear the accusation and to be heard itself. Gossip takes a second at
most. An accusation of a dead member comes into effect so much later, if its author is doubted."""

BASELESS = "accuses without a cause"
"""The reason of an answer."""


@dataclass(frozen=True)
class Heard:
    """An accusation of one member by another one."""

    author: PeerId
    accused: PeerId
    reason: str
    answers: str | None = None
    """The reason of the accusation that this one answers; None: it answers none."""


class Doubts:
    """The accusations that one member holds in one ring, at most one of each pair of members."""

    def __init__(self, doubted: Collection[PeerId] = ()) -> None:
        self._doubted = frozenset(doubted)
        self._held: dict[tuple[PeerId, PeerId], tuple[float, Heard]] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._doubted

    def heard(self, now: float, heard: Heard) -> list[Heard]:
        """Takes an accusation. Returns those that count now, in this order."""
        if heard.author == heard.accused:
            return [heard]
        _, other = self._held.get((heard.accused, heard.author), (0.0, None))
        if other is not None and heard.accused in self and heard.reason == BASELESS:
            return self._answered(heard, other)
        if other is not None and heard.author in self and other.reason == BASELESS:
            return self._answered(other, heard)
        if heard.author in self or (heard.accused in self and heard.reason == BASELESS):
            self._held.setdefault((heard.author, heard.accused), (now + ANSWER_SECONDS, heard))
            return []
        return [heard]

    def due(self, now: float) -> list[Heard]:
        """Returns the accusations that nobody answered in time."""
        due = [key for key, (due_seconds, _) in self._held.items() if now >= due_seconds]
        return [self._held.pop(key)[1] for key in due]

    def _answered(self, answer: Heard, accusation: Heard) -> list[Heard]:
        for each in (answer, accusation):
            self._held.pop((each.author, each.accused), None)
        return [replace(answer, answers=accusation.reason), accusation]
