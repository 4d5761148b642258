"""The choice of the ring that a peer follows, among those that others make for one head.

`roster.preference` says which of two rings is followed, so peers that have seen the same rosters
follow the same one. Two things can go wrong. A roster may leave out a peer: then a member *mends*
it, that is, publishes another one with that peer in it. And an organiser may make one roster after
the other: so a peer leaves its ring for a preferred one a few times at most, and soon or not at
all.

Rules of rosters that leave out peers
-------------------------------------
The organiser of a ring names the peers whose `Ready` it has. It may leave out one that is ready and
linked, and does not have to say why. Gossip is late now and then, so one such roster proves
nothing. Nor is anything taken from its author, for members that refuse a ring stand still with it.

- A roster *leaves out* the peers that this peer expects in the round, whose `Ready` it holds when
  the roster comes, and with which the ring has more members. An organiser may leave out a peer
  where verdicts of audits say why (`policy.auditing.sum_audits`, `policy.auditing.audits`).
- An honest organiser waits for the peers that it expects until its gathering ends. So a roster that
  leaves out others is *early* if it comes more than `HURRY_SECONDS` before this peer's own
  gathering ends. This peer publishes a roster of the same attempt with those peers in it. All
  members prefer that one (`roster.preference`), whatever each of them remembers, because it has
  more members.
- It waits `MEND_STEP_SECONDS` before, in which it is noticed if those peers have just died.
- This peer notes who leaves out others, and whom. It follows a roster that is not early, as long as
  neither that author has left out others again and again, nor those peers have been left out again
  and again (`policy.conduct.ring_conduct`). Else it publishes another one, and does not wait
  before.
- A preferred roster may come when this peer follows a ring already. Its organiser published it
  shortly before it died, for example, and those that had not heard it made a new ring. If that
  roster leaves out living members of this peer's ring, this peer publishes one with them at once,
  as long as its ring may be replaced. It stays with them meanwhile. Otherwise those members would
  be left behind, and a last one of them would commit a round alone.
- One member is enough, so the others wait, each `MEND_STEP_SECONDS` longer by its rank, and follow
  what comes. A member that waits follows no ring that is less preferred meanwhile.

Rules of rosters that come before a peer is ready
-------------------------------------------------
- A roster may be early only to leave out a peer that is not ready yet. So this peer follows no
  early roster while a peer is missing. It waits until its own gathering ends, and for
  `MEND_HOLD_SECONDS` at most. Where the author left out others again and again it waits so at any
  time. It waits once, however many rosters come meanwhile.
- If a peer becomes ready meanwhile, this peer publishes a roster with it. The author of the early
  roster is not noted: clocks and links differ.
- A peer that made this peer wait in vain is not waited for in the next round, and in twice as many
  rounds each further time (`waited_in_vain`).

Rules of rings that replace another one
---------------------------------------
Honest organisers make several rosters for one head where messages cross each other. All members
hear the preferred one within seconds. A hostile organiser can make any number, with other work of
its own in each, and each is preferred to the one before. A ring that replaces another one begins
anew, and with it all waits for members that keep it up.

- The ring that a peer followed first is replaced for `REPLACE_SECONDS`, and then no more. A peer
  that is out of its ring may go to another one later.
- A peer follows at most `OF_ONE_MAX` rings of one organiser.
- A ring that is refused counts as one without this peer. It says that it is out of it, but for
  `OF_ONE_MAX` rings of one organiser at most, so that rosters provoke few statements.
- An organiser is *unsettled* if a ring of it is refused after `OF_ONE_MAX` of its rings were
  followed, or after two, of which the first was followed `REPLACE_SECONDS` before. Members remember
  that (`policy.conduct.ring_conduct`). A second ring that is refused is no fault: its organiser may
  have mended that of another one, it came over a slow line, or the time ran for the ring of another
  one.
- When its ring is void and it gathers again, these rules begin anew.
- A peer opens rosters of one organiser until these have `OPENED_MEMBERS_MAX` members together. It
  does not look at others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import LeftOut
from gossamer.protocol.rounds.gathering import Gatherer
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.protocol.rounds.roster import (
    Ring,
    RoundHints,
    RoundRules,
    Vain,
    make_roster,
    preference,
)
from gossamer.protocol.wire.statements import Roster

MEND_STEP_SECONDS = 0.5
"""Time for a roster of a member that is before this one by rank: gossip takes less. A stream of the
ring waits far longer for this peer (`dispatcher.HELLO_SECONDS`)."""

MEND_STEPS_MAX = 4
"""Members that wait one after the other. The others wait as long as the last of these: most of them
are honest where a ring has so many members, and then one of the first has spoken."""

MEND_HOLD_SECONDS = 2.0
"""As long as any round waits for the others (`gathering.GATHER_SECONDS_MIN`), and less than a
stream of the ring waits for this peer."""

HURRY_SECONDS = MEND_STEP_SECONDS
"""By so much the gathering of an honest organiser may end before that of others: it hears the first
`Ready` earlier, by less than gossip takes."""

IN_VAIN_ROUNDS_MAX = 16
"""Rounds in which a peer is not waited for that made others wait in vain again and again. So it
costs them one wait in 17 rounds."""

REPLACE_SECONDS = 10.0
"""As long as a stream of the preferred ring waits for this peer (`dispatcher.HELLO_SECONDS`): the
members that went there have accused one that comes later. Mended rosters come within half of it."""

OF_ONE_MAX = 3
"""The ring of an honest organiser, one that it mended, and one after a restart."""

OPENED_MEMBERS_MAX = 4 * limits.RING_MEMBERS_MAX
"""Members of all rosters of one organiser for one head. To open one takes some 0.15 ms a member, or
0.25 in the largest rings, where members list their links: a quarter of a second of each organiser.
Attempts fail one after the other, but one among 100 members organises each hundredth of them: ten
rosters are enough for it, as are 341 for one among three."""


class Follow(NamedTuple):
    """This peer follows a ring now."""

    ring: Ring


class Mend(NamedTuple):
    """This peer publishes a roster with peers that another one leaves out."""

    roster: Roster


class Refuse(NamedTuple):
    """This peer does not follow a ring: it comes too late, or too often."""

    ring: Ring
    is_said: bool
    """Whether this peer says that it is out of it."""
    is_newly_unsettled: bool
    """Whether it is the first ring for which its organiser counts as unsettled."""


Choice: TypeAlias = Follow | Mend | Refuse | None
"""None: this peer waits, or nothing is to be chosen."""


class _Weighed(NamedTuple):
    """A ring that this peer does not follow yet, because it leaves peers out."""

    ring: Ring
    since_seconds: float
    """Local time at which its roster came."""
    hold_seconds: float
    """Local time until which this peer waits for those that it expects and that are not ready."""
    wait_seconds: float
    """Time that this peer leaves to members before it by rank."""


class RingChoice:
    """The rings of others on one head, as one peer looks at them.

    Events carry the local clock in seconds. The *companions* of a peer are the living members of
    the ring that it follows; there are none while it is in no ring, or out of its own.

    It has more than 12 attributes: what it asks, and what it remembers of each organiser.
    """

    def __init__(
        self, me: PeerId, number: int, rules: RoundRules, gatherer: Gatherer, hints: RoundHints
    ) -> None:
        """
        Args:
            number: of the round.
            gatherer: knows who is expected and who is ready.
            hints: from the round before.
        """
        self._me = me
        self._number = number
        self._rules = rules
        self._gatherer = gatherer
        self._hints = hints
        self._weighed: _Weighed | None = None
        self._in_vain: frozenset[PeerId] = frozenset()
        """Peers for which this peer waited in vain before it followed a ring."""
        self._opened: Counter[PeerId] = Counter()
        """Members of the rosters of each organiser."""
        self._since_seconds: float | None = None
        """Local time at which the first ring was followed."""
        self._followed: Counter[PeerId] = Counter()
        self._first_seconds: dict[PeerId, float] = {}
        """Local time at which the first ring of each organiser was followed."""
        self._refused: defaultdict[PeerId, set[Digest]] = defaultdict(set)
        """At most `OF_ONE_MAX` rings of each organiser."""
        self._unsettled: set[PeerId] = set()

    # Events

    def may_open(self, organiser: PeerId, num_members: int) -> bool:
        """A roster of an organiser came. Returns whether this peer looks at it."""
        self._opened[organiser] += num_members
        return self._opened[organiser] <= OPENED_MEMBERS_MAX

    def heard(
        self, now: float, ring: Ring, companions: Collection[PeerId]
    ) -> tuple[list[LeftOut], Choice]:
        """Another peer's ring came, which is to be preferred to the one that is followed. Returns
        whom it leaves out, and what this peer does."""
        if not self._may_follow(now, ring.organiser, companions):
            return [], self._refusal(now, ring)
        earlier = self._weighed
        if earlier is not None and preference(earlier.ring) <= preference(ring):
            return [], None
        (left_out, _), is_unfair = self._left_out_by(ring), ring.organiser in self._hints.unfair
        is_known = is_unfair or not {*self._hints.wronged, *companions}.isdisjoint(left_out)
        is_mended = bool(left_out) and (is_known or self._is_early(now))
        noted = [LeftOut(ring.organiser, tuple(left_out), is_mended)] if left_out else []
        hold_seconds = self._hold_until(now, is_unfair=is_unfair)
        if not is_mended and hold_seconds <= now:
            return noted, Follow(ring)
        if earlier is not None:
            hold_seconds = min(hold_seconds, earlier.hold_seconds)
        wait_seconds = self._turn_seconds(ring, is_sure=is_known or not left_out)
        self._weighed = _Weighed(ring, now, hold_seconds, wait_seconds)
        return noted, self.due(now, companions)

    def due(self, now: float, companions: Collection[PeerId]) -> Choice:
        """Time passed, or a peer became ready: mends or follows the ring that leaves others out, if
        it is time to."""
        weighed = self._weighed
        if weighed is None:
            return None
        ring, missing = weighed.ring, self._missing_beside(weighed.ring)
        newest_seconds = max(weighed.since_seconds, self._gatherer.times.last_seconds)
        is_held = bool(missing) and now < weighed.hold_seconds
        is_due = not is_held and now >= newest_seconds + weighed.wait_seconds
        if missing and not is_due:
            return None
        _, roster = self._left_out_by(ring)
        if roster is not None and not is_due:
            return None
        self._weighed = None
        if not self._may_follow(now, ring.organiser, companions):
            return self._refusal(now, ring)  # nor do the others follow a mended one by now
        if weighed.hold_seconds > weighed.since_seconds:
            self._in_vain |= missing
        if roster is None or self._me not in {member.author for member in roster.members}:
            return Follow(ring)
        return Mend(roster)

    def followed(self, now: float, organiser: PeerId) -> None:
        """This peer follows a ring."""
        self._weighed = None
        self._followed[organiser] += 1
        self._first_seconds.setdefault(organiser, now)
        if self._since_seconds is None:
            self._since_seconds = now

    def gathers_again(self) -> None:
        """The ring that was followed is void."""
        self._since_seconds = None
        self._followed.clear()
        self._first_seconds.clear()

    def in_vain(self, members: Collection[PeerId]) -> tuple[Vain, ...]:
        """The peers that are not waited for in the rounds after this one, where these are the
        members of its ring."""
        return waited_in_vain(self._hints.in_vain, self._in_vain, members, self._number)

    # Rules: whom a ring leaves out

    def _left_out_by(self, ring: Ring) -> tuple[list[PeerId], Roster | None]:
        """The peers without which a ring has fewer members than it could have, and the roster with
        them; None if there are none, because they are not linked or there is no room."""
        gatherer, old = self._gatherer, ring.roster
        left_out = sorted(gatherer.left_out_by(ring) - self._excused(ring))
        if not left_out:
            return [], None
        members = dict(zip(ring.members, old.members, strict=True))
        roster = make_roster(
            old.head,
            old.round,
            old.attempt,
            members | {peer: gatherer.ready[peer] for peer in left_out},
            self._rules.ring_rules,
            gatherer.standpoint,
        )
        return (left_out, roster) if len(roster.members) > len(members) else ([], None)

    def _missing_beside(self, ring: Ring) -> frozenset[PeerId]:
        """The peers that are waited for before a ring is followed."""
        in_vain = {each.peer for each in self._hints.in_vain if self._number <= each.until}
        return self._gatherer.missing_beside(ring) - in_vain - self._excused(ring)

    def _excused(self, ring: Ring) -> set[PeerId]:
        """The peers that the organiser of a ring may leave out."""
        return {peer for organiser, peer in self._hints.excused if organiser == ring.organiser}

    # Rules: how long this peer waits

    def _is_early(self, now: float) -> bool:
        """Returns whether a roster comes before an honest organiser would make it."""
        return self._gatherer.due_seconds - now > HURRY_SECONDS

    def _hold_until(self, now: float, *, is_unfair: bool) -> float:
        """Local time until which this peer waits for peers that a new roster lacks. `is_unfair`:
        whether its organiser left out others again and again."""
        if is_unfair:
            return now + MEND_HOLD_SECONDS
        hold_seconds = min(now + MEND_HOLD_SECONDS, self._gatherer.due_seconds)
        return hold_seconds if self._is_early(now) else now

    def _turn_seconds(self, ring: Ring, *, is_sure: bool) -> float:
        """Time after which it is this peer's turn to mend a ring. `is_sure`: whether those that are
        left out are alive, as far as can be told."""
        roster = ring.roster
        order = rank_order(roster.head, roster.attempt, {*ring.members} - {ring.organiser})
        steps = min(order.index(self._me), MEND_STEPS_MAX) + (0 if is_sure else 1)
        return MEND_STEP_SECONDS * steps

    # Rules: which ring may take the place of another one

    def _may_follow(self, now: float, organiser: PeerId, companions: Collection[PeerId]) -> bool:
        if self._followed[organiser] >= OF_ONE_MAX:
            return False
        since_seconds = self._since_seconds
        return not companions or since_seconds is None or now < since_seconds + REPLACE_SECONDS

    def _refusal(self, now: float, ring: Ring) -> Refuse:
        organiser = ring.organiser
        is_newly_unsettled = self._is_newly_unsettled(now, organiser)
        refused = self._refused[organiser]
        is_said = ring.ring_id not in refused and len(refused) < OF_ONE_MAX
        if is_said:
            refused.add(ring.ring_id)
        return Refuse(ring, is_said, is_newly_unsettled)

    def _is_newly_unsettled(self, now: float, organiser: PeerId) -> bool:
        first_seconds = self._first_seconds.get(organiser)
        if first_seconds is None or organiser in self._unsettled:
            return False
        is_soon = now < first_seconds + REPLACE_SECONDS
        if self._followed[organiser] < (OF_ONE_MAX if is_soon else 2):
            return False
        self._unsettled.add(organiser)
        return True


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
