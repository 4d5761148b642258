"""The standing of a ring's members: in how many of the newest rounds each took part.

A run with `rounds.probation` lets a new identity's influence begin at nothing and grow with the
rounds that took work of it. The chain before the round says it, so all peers compute alike, also
those that replay the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gossamer.protocol.ids import PeerId

STANDING_ROUNDS = 64
"""A peer of which one of so many newest rounds took tokens has stake. In rounds of a
minute that is an hour: the time for which somebody closes a laptop."""


class Standing(NamedTuple):
    """Of a ring's members, by ring position."""

    rounds: Sequence[int]
    """Rounds of the newest `STANDING_ROUNDS` before this one that took tokens of the member, at
    most `needed`."""
    needed: int
    """Rounds after which a member is established: it has its whole influence."""

    def is_established(self, position: int) -> bool:
        return self.rounds[position] >= self.needed


def standing_of(
    members: Sequence[PeerId], credited: Iterable[Iterable[PeerId]], needed: int
) -> Standing:
    """Returns the standing of a ring's members.

    Args:
        credited: of each of the newest `STANDING_ROUNDS` rounds, the peers of which it took tokens.
    """
    rounds = dict.fromkeys(members, 0)
    for peers in credited:
        for peer in peers:
            if peer in rounds:
                rounds[peer] = min(needed, rounds[peer] + 1)
    return Standing([rounds[peer] for peer in members], needed)
