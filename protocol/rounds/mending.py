"""Rosters that leave out a peer which is ready, and how a member of the ring mends them.

The organiser of a ring names the peers whose `Ready` it has. It may leave out one that is ready and
linked, and does not have to say why. Gossip is late now and then, so one such roster proves
nothing. Nor is anything taken from its author, for members that refuse a ring stand still with it.

Rules
-----
- A roster *leaves out* the peers that this peer expects in the round, whose `Ready` it holds when
  the roster comes, and with which the ring has more members.
- A member of the ring notes who made such a roster. It follows the ring, as long as that author
  has not done so again and again (`policy.ring_conduct`).
- Else it publishes a roster of the same attempt with those peers in it. All members prefer that one
  (`roster.preference`), whatever each of them remembers, because it has more members.
- It waits `HOLD_SECONDS` at most for a peer that it expects and that is not ready yet: such an
  organiser may be quick only to leave that one out.
- One member is enough, so the others wait, each `STEP_SECONDS` longer by its rank, and follow what
  comes. A member that waits follows no ring of that author meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.protocol.rounds.roster import Ring, make_roster
from gossamer.protocol.rounds.round_rules import RoundRules
from gossamer.protocol.wire.statements import Roster, Signed

STEP_SECONDS = 0.5
"""Time for a roster of a member that is before this one by rank: gossip takes less. A stream of the
ring waits far longer for this peer (`dispatcher.HELLO_SECONDS`)."""

HOLD_SECONDS = 2.0
"""As long as any round waits for the others (`gathering.GATHER_SECONDS_MIN`), and less than a
stream of the ring waits for this peer."""

STEPS_MAX = 4
"""Members that wait one after the other. The others wait as long as the last of these: most of them
are honest where a ring has so many members, and then one of the first has spoken."""


class Mending(NamedTuple):
    """A ring that this peer does not follow yet, because it leaves peers out."""

    ring: Ring
    since_seconds: float
    """Local time at which its roster came."""
    wait_seconds: float
    """Time that this peer leaves to members before it by rank."""

    def is_due(self, now: float, last_ready_seconds: float, *, is_one_missing: bool) -> bool:
        """Returns whether this peer publishes a roster with more members, or follows the ring.

        Args:
            last_ready_seconds: local time of the newest `Ready`.
            is_one_missing: whether a peer is expected that is neither ready nor a member.
        """
        if is_one_missing and now < self.since_seconds + HOLD_SECONDS:
            return False
        return now >= max(self.since_seconds, last_ready_seconds) + self.wait_seconds


def mend_later(now: float, ring: Ring, me: PeerId) -> Mending:
    """Returns how a member of a ring mends it."""
    roster = ring.roster
    order = rank_order(roster.head, roster.attempt, {*ring.members} - {ring.organiser})
    return Mending(ring, now, STEP_SECONDS * min(order.index(me), STEPS_MAX))


def with_more(
    ring: Ring, left_out: Collection[PeerId], ready: Mapping[PeerId, Signed], rules: RoundRules
) -> Roster | None:
    """The roster of a ring with those that it leaves out; None if that has no more members, because
    they are not linked or there is no room.

    Args:
        ready: the `Ready` of each peer that is left out, at least.
    """
    if not left_out:
        return None
    old = ring.roster
    members = dict(zip(ring.members, old.members, strict=True))
    roster = make_roster(
        old.head,
        old.round,
        old.attempt,
        members | {peer: ready[peer] for peer in left_out},
        old.codec,
        old.chunk_elements,
        rules.members_max,
    )
    return roster if len(roster.members) > len(members) else None
