"""Rosters that leave out peers, and what a member of such a ring does.

The organiser of a ring names the peers whose `Ready` it has. It may leave out one that is ready and
linked, and does not have to say why. Gossip is late now and then, so one such roster proves
nothing. Nor is anything taken from its author, for members that refuse a ring stand still with it.

Rules
-----
- A roster *leaves out* the peers that this peer expects in the round, whose `Ready` it holds when
  the roster comes, and with which the ring has more members. An organiser may leave out a peer
  where verdicts of audits say why (`policy.sum_audits`, `policy.audits`).
- An honest organiser waits for the peers that it expects until its gathering ends. So a roster that
  leaves out others is *early* if it comes more than `HURRY_SECONDS` before this peer's own
  gathering ends. This peer publishes a roster of the same attempt with those peers in it. All
  members prefer that one (`roster.preference`), whatever each of them remembers, because it has
  more members.
- It waits `MEND_STEP_SECONDS` before, in which it is noticed if those peers have just died.
- This peer notes who leaves out others, and whom. It follows a roster that is not early, as long as
  neither that author has left out others again and again, nor those peers have been left out again
  and again (`policy.ring_conduct`). Else it publishes another one, and does not wait before.
- A preferred roster may come when this peer follows a ring already. Its organiser published it
  shortly before it died, for example, and those that had not heard it made a new ring. If that
  roster leaves out living members of this peer's ring, this peer publishes one with them at once,
  as long as its ring may be replaced (`replacing`). It stays with them meanwhile. Otherwise those
  members would be left behind, and a last one of them would commit a round alone.
- One member is enough, so the others wait, each `MEND_STEP_SECONDS` longer by its rank, and follow
  what comes. A member that waits follows no ring that is less preferred meanwhile.

Rosters that come before a peer is ready
----------------------------------------
- A roster may be early only to leave out a peer that is not ready yet. So this peer follows no
  early roster while a peer is missing. It waits until its own gathering ends, and for
  `MEND_HOLD_SECONDS` at most. Where the author left out others again and again it waits so at any
  time. It waits once, however many rosters come meanwhile.
- If a peer becomes ready meanwhile, this peer publishes a roster with it. The author of the early
  roster is not noted: clocks and links differ.
- A peer that made this peer wait in vain is not waited for in the next round, and in twice as many
  rounds each further time (`waited_in_vain`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring_order import Standpoint, rank_order
from gossamer.protocol.rounds.roster import Ring, RoundRules, Vain, make_roster
from gossamer.protocol.wire.statements import Roster, Signed

MEND_STEP_SECONDS = 0.5
"""Time for a roster of a member that is before this one by rank: gossip takes less. A stream of the
ring waits far longer for this peer (`dispatcher.HELLO_SECONDS`)."""

MEND_HOLD_SECONDS = 2.0
"""As long as any round waits for the others (`gathering.GATHER_SECONDS_MIN`), and less than a
stream of the ring waits for this peer."""

HURRY_SECONDS = MEND_STEP_SECONDS
"""By so much the gathering of an honest organiser may end before that of others: it hears the first
`Ready` earlier, by less than gossip takes."""

IN_VAIN_ROUNDS_MAX = 16
"""Rounds in which a peer is not waited for that made others wait in vain again and again. So it
costs them one wait in 17 rounds."""

MEND_STEPS_MAX = 4
"""Members that wait one after the other. The others wait as long as the last of these: most of them
are honest where a ring has so many members, and then one of the first has spoken."""


class Mending(NamedTuple):
    """A ring that this peer does not follow yet, because it leaves peers out."""

    ring: Ring
    since_seconds: float
    """Local time at which its roster came."""
    hold_seconds: float
    """Local time until which this peer waits for those that it expects and that are not ready."""
    wait_seconds: float
    """Time that this peer leaves to members before it by rank."""

    def is_due(self, now: float, last_ready_seconds: float, *, is_one_missing: bool) -> bool:
        """Returns whether this peer publishes a roster with more members, or follows the ring.

        Args:
            last_ready_seconds: local time of the newest `Ready`.
            is_one_missing: whether a peer is waited for that is neither ready nor a member.
        """
        if is_one_missing and now < self.hold_seconds:
            return False
        return now >= max(self.since_seconds, last_ready_seconds) + self.wait_seconds


def is_early(now: float, due_seconds: float) -> bool:
    """Returns whether a roster comes before an honest organiser would make it.

    Args:
        due_seconds: local time at which this peer's own gathering ends.
    """
    return due_seconds - now > HURRY_SECONDS


def hold_until(now: float, due_seconds: float, *, is_unfair: bool) -> float:
    """Returns the local time until which a member waits for peers that a new roster lacks.

    Args:
        due_seconds: local time at which this peer's own gathering ends.
        is_unfair: whether the organiser left out others again and again.
    """
    if is_unfair:
        return now + MEND_HOLD_SECONDS
    return min(now + MEND_HOLD_SECONDS, due_seconds) if is_early(now, due_seconds) else now


def mend_later(
    now: float,
    ring: Ring,
    me: PeerId,
    hold_seconds: float,
    earlier: Mending | None,
    *,
    is_sure: bool,
) -> Mending:
    """Returns how a member of a ring mends it.

    Args:
        hold_seconds: local time until which it waits for peers that are not ready.
        earlier: a less preferred ring that it has not followed yet.
        is_sure: whether those that are left out are alive, as far as can be told.
    """
    if earlier is not None:
        hold_seconds = min(hold_seconds, earlier.hold_seconds)
    roster = ring.roster
    order = rank_order(roster.head, roster.attempt, {*ring.members} - {ring.organiser})
    steps = min(order.index(me), MEND_STEPS_MAX) + (0 if is_sure else 1)
    return Mending(ring, now, hold_seconds, MEND_STEP_SECONDS * steps)


def waited_in_vain(
    known: Collection[Vain], missed: Collection[PeerId], came: Collection[PeerId], round_number: int
) -> tuple[Vain, ...]:
    """Returns the peers that are not waited for, after a round.

    A peer is forgotten that was in a ring, or that has been waited for again without making others
    wait in vain for `IN_VAIN_ROUNDS_MAX` rounds.

    Args:
        known: before that round.
        missed: peers for which this peer waited in vain in it.
        came: members of the ring that it followed.
    """
    kept = {
        each.peer: each
        for each in known
        if each.peer not in came and round_number <= each.until + IN_VAIN_ROUNDS_MAX
    }
    for peer in {*missed}.difference(came):
        times = kept[peer].times + 1 if peer in kept else 1
        rounds = min(2 ** (times - 1), IN_VAIN_ROUNDS_MAX)
        kept[peer] = Vain(peer, round_number + rounds, times)
    return tuple(kept[peer] for peer in sorted(kept))


def with_more(
    ring: Ring,
    left_out: Collection[PeerId],
    ready: Mapping[PeerId, Signed],
    rules: RoundRules,
    standpoint: Standpoint,
) -> Roster | None:
    """The roster of a ring with those that it leaves out; None if that has no more members, because
    they are not linked or there is no room.

    Args:
        ready: the `Ready` of each peer that is left out, at least.
        standpoint: of the peer that makes the roster.
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
        standpoint,
    )
    return roster if len(roster.members) > len(members) else None
