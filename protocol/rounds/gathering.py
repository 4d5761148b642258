"""The `Ready` statements of one head, and whether this peer organises a ring from them.

Rules
-----
- The roster rules are `roster.decide`. This module keeps what they decide from, with the local
  clock.
- A ready peer that was expected and is not expected any more (it died, left, or went to another
  head) is left out. Otherwise a ring would begin by finding it dead.
- The others wait for a peer that is not ready. The wait begins with the first `Ready` that counts
  (`ready_times`) and lasts the manifest's `gather_fraction` of the time that this took. It is at
  least `GATHER_SECONDS_MIN` and at most the manifest's `gather_seconds`. So one slow machine costs
  the others a part of a round and not a round.
- The wait is also at least as long as the last ring that lost no member took to bring its averages.
  A new peer fetches these from the members, which takes about as long, and would otherwise come too
  late to every ring. Where members train in their ring the averages come slowly. There the wait is
  a little longer than the time until the latest `Ready` of the last round.
- Many peers may trail (`membership.awaited`). Then the wait lasts the manifest's `gather_seconds`:
  these peers have several rounds to fetch over the lines of a few.
- For peers without standing on the chain rounds wait for a share of the time
  (`roster.StrangersWait`). When it is spent the round goes on without those that are not ready.
  Nothing else changes for them: they are expected all the same.

Rules of rings without this peer on its head (`RingsElsewhere`, with the states of
`states.GATHERING`). They hold as well for a ring that excluded this peer while it could hear none
of the members (a thawed process).

- A peer organises no ring while a ring without it is at work on the same head. A ring is at work as
  long as one of its members is expected on this head and is not out of the ring. A member that
  leaves a ring says so.
- The wait has an end: `WAITS_MAX` times the manifest's `gather_seconds`, plus the training time
  where members train in their ring. Then the peer organises a ring without those members. Otherwise
  one peer could stop all others with a ring that it never commits. It is not shorter, because a
  round that a peer commits beside a ring of the others is undone when they commit theirs.
- Rings may come and go, and so may their members. All waits on one head together have this end,
  those for commits included; the last of these may come after it. Otherwise a peer that is away
  for an instant, again and again, would stop all others for good.
- The members of such a ring may all have left this head. Then they have probably committed, and
  their commit record is on its way: the peer waits `attempt_seconds` for it. Otherwise an excluded
  peer with more tokens could commit alone and outweigh the ring.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.ready_times import ALL_DONE, ReadyTimes
from gossamer.protocol.rounds.ring.ring_members import Accusations
from gossamer.protocol.rounds.ring_order import Standpoint
from gossamer.protocol.rounds.roster import (
    NO_HINTS,
    STRANGERS_GOSSIP_SECONDS,
    Decision,
    Gathering,
    Ring,
    RoundHints,
    RoundRules,
    StrangersWait,
    attempt_of,
    decide,
    is_complete,
)
from gossamer.protocol.rounds.states import GATHERING, GatheringEvent, GatheringState
from gossamer.protocol.wire.statements import Signed


@dataclass(frozen=True)
class _Wait:
    """The consequence of rings elsewhere for this peer."""

    reason: str | None
    """Why this peer organises no ring now; None: it may organise one."""
    left_out: frozenset[PeerId]
    """Members of rings elsewhere, without which a ring may be organised."""


WAITS_MAX = 2
"""Times `gather_seconds` that are waited for rings elsewhere on one head. Rings take longer than
gathering where lines are slow."""


class RingsElsewhere:
    """The rings without this peer on one head. Events carry the local clock in seconds."""

    def __init__(self, me: PeerId, patience_seconds: float, commit_seconds: float) -> None:
        """
        Args:
            patience_seconds: longest wait for rings that are at work.
            commit_seconds: wait for the commit of a ring whose members left this head.
        """
        self._me = me
        self._commit_seconds = commit_seconds
        self._rings: dict[Digest, tuple[frozenset[PeerId], Accusations]] = {}
        self.state: GatheringState = GATHERING.initial
        self._since_seconds = 0.0
        """Time at which a ring was first seen at work; meaningful in `yielding`."""
        self._commit_until_seconds = float("-inf")
        self._left_seconds = patience_seconds + commit_seconds
        """Time that may still be waited on this head, without that of a wait under way: the last
        part of it for a commit."""

    def note(self, ring: Ring) -> bool:
        """A ring without this peer is on this head. Returns whether the ring was unknown."""
        if ring.ring_id in self._rings:
            return False
        self.note_lost(ring, Accusations(ring.members, self._me))
        return True

    def note_lost(self, ring: Ring, accusations: Accusations) -> None:
        """This peer is out of a ring on this head and hears none of the members."""
        if len(self._rings) >= limits.ROSTERS_KEPT_MAX:
            del self._rings[next(iter(self._rings))]
        self._rings[ring.ring_id] = (frozenset(ring.members) - {self._me}, accusations)

    def note_accusation(self, ring_id: bytes, author: PeerId, accused: PeerId) -> None:
        """An accusation in a ring; ignored if the ring is unknown."""
        if (known := self._rings.get(Digest(ring_id))) is not None:
            known[1].accuse(author, accused)

    def wait(self, now: float, expected: frozenset[PeerId]) -> _Wait:
        """Returns whether this peer has to wait, and why.

        Args:
            expected: living other peers that work on this head.
        """
        at_work = self._at_work(expected)
        event = self._event(now, at_work)
        while event is not None:
            self._go(now, event)
            event = self._event(now, at_work)
        if self.state == "yielding":
            reason = "a ring without this peer is at work on this head"
            return _Wait(reason, at_work)
        if now < self._commit_until_seconds:
            reason = "a ring without this peer may be committed"
            return _Wait(reason, at_work)
        return _Wait(None, at_work)

    def _event(self, now: float, at_work: frozenset[PeerId]) -> GatheringEvent | None:
        """Returns the events since the last call on which the state depends."""
        waited_seconds = now - self._since_seconds
        match self.state:
            case "open" | "awaiting commit" if at_work:
                return "ring elsewhere"
            case "awaiting commit" if now >= self._commit_until_seconds:
                return "no commit"
            case "yielding" | "overruling" if not at_work:
                if self._has_gone_on() or now < self._commit_until_seconds:
                    return "members went on"
                return "ring gone"
            case "yielding" if waited_seconds >= self._left_seconds - self._commit_seconds:
                return "patience over"
        return None

    def _go(self, now: float, event: GatheringEvent) -> None:
        if self.state == "yielding":
            self._left_seconds -= now - self._since_seconds
        self.state = GATHERING.after(self.state, event)
        if event == "ring elsewhere":
            self._since_seconds = now
        elif event == "members went on" and self._has_gone_on():
            seconds = max(0.0, min(self._commit_seconds, self._left_seconds))
            self._left_seconds -= seconds
            self._commit_until_seconds = now + seconds

    def _at_work(self, expected: frozenset[PeerId]) -> frozenset[PeerId]:
        """Members of all rings that are at work."""
        if not self._rings:
            return frozenset()
        rings = (members - accusations.out for members, accusations in self._rings.values())
        return frozenset().union(*(members for members in rings if members & expected))

    def _has_gone_on(self) -> bool:
        """Returns whether a ring has a member left. Call it while no ring is at work: then that
        member left this head."""
        return any(members - accusations.out for members, accusations in self._rings.values())


GATHER_SECONDS_MIN = 2.0
"""Shortest wait for the others: a few round trips over an ocean, the replay of a round, and a
newcomer's first inner steps."""


class Gatherer:
    """The `Ready` statements of one head. Events carry the local clock in seconds.

    It has more than 12 attributes: each is one fact that `roster.decide` or the length of the wait
    depends on.
    """

    def __init__(
        self,
        me: PeerId,
        head: Digest,
        now: float,
        rules: RoundRules,
        hints: RoundHints = NO_HINTS,
    ) -> None:
        """
        Args:
            now: local time at which the round began.
            hints: from the round before.
        """
        self._me = me
        self._head = head
        self._born_seconds = now
        self._rules = rules
        self._replay_seconds = hints.replay_seconds
        self.times = ReadyTimes(now, rules.round_seconds)
        self._ready: dict[PeerId, Signed] = {}
        self.expected: frozenset[PeerId] = frozenset()
        """Living other peers that work on this head."""
        self._trailing: frozenset[PeerId] = frozenset()
        """Peers that were expected at any time although they trailed."""
        self._gone: frozenset[PeerId] = frozenset()
        self.missed = hints.missed
        """See `RoundHints`."""
        self._strangers: frozenset[PeerId] = frozenset()
        """Peers without standing, among those that are expected, and those in `missed`."""
        self._strangers_wait = hints.strangers_wait.at(now)
        self._waits_for_strangers = self._strangers_wait.waits(rules.gather_seconds)
        self._held_since: float | None = None
        """Local time since which this round would go on if there were no strangers."""
        self._held_seconds = 0.0
        self._is_first = True
        """Whether no ring has been followed yet."""
        self._heard: object = None  # what `expect` knew when it was called last
        patience_seconds = WAITS_MAX * (rules.gather_seconds + rules.ring_seconds)
        self.elsewhere = RingsElsewhere(me, patience_seconds, rules.attempt_seconds)
        self._left_out: frozenset[PeerId] = frozenset()
        """Members of rings elsewhere for which this peer does not wait any longer."""
        self._again_seconds: float | None = None
        """Local time at which the wait begins after a void ring; None: there was none."""
        self._complete_seconds: float | None = None
        self._not_before_seconds = float("-inf")
        self._first_attempt = 0

    @property
    def standpoint(self) -> Standpoint:
        """This peer, and those that are no strangers to it. All that are expected are connected to
        it or were in its last ring."""
        return Standpoint(self._me, self.expected)

    @property
    def ready(self) -> Mapping[PeerId, Signed]:
        """The `Ready` of each peer that a roster would name."""
        left_out = self._gone | self._left_out
        if not left_out:
            return self._ready
        return {peer: signed for peer, signed in self._ready.items() if peer not in left_out}

    @property
    def mine(self) -> Signed | None:
        """This peer's own `Ready`."""
        return self._ready.get(self._me)

    @property
    def gather_seconds(self) -> float:
        """Length of the wait for the others."""
        wait_seconds_max = self._rules.gather_seconds
        trailing = self._trailing & self.expected - self._not_waited_for
        began_seconds = self.times.wait_began_seconds
        if began_seconds is None or trailing - self._ready.keys():
            return wait_seconds_max
        took = began_seconds - self._born_seconds + self._rules.steps_seconds
        part = self._rules.gather_fraction * took
        return min(wait_seconds_max, max(GATHER_SECONDS_MIN, part, self._replay_seconds))

    @property
    def due_seconds(self) -> float:
        """Local time at which this peer, which is ready, waits for the others no longer."""
        began_seconds = self._began_seconds
        assert began_seconds is not None, "I am ready, so a Ready was seen"
        return began_seconds + self.gather_seconds

    @property
    def _began_seconds(self) -> float | None:
        return self.times.wait_began_seconds if self._again_seconds is None else self._again_seconds

    def left_out_by(self, ring: Ring) -> frozenset[PeerId]:
        """The peers that this peer expects and knows to be ready, and that a ring does not name."""
        return self.expected & self.ready.keys() - {*ring.members}

    def missing_beside(self, ring: Ring) -> frozenset[PeerId]:
        """The peers that are expected and are neither ready nor in a ring. Strangers are none of
        them: its organiser may have waited for these for longer than this peer."""
        return self.expected - self._strangers - self._ready.keys() - {*ring.members}

    @property
    def _not_waited_for(self) -> frozenset[PeerId]:
        return frozenset() if self._waits_for_strangers else self._strangers

    @property
    def strangers_wait(self) -> StrangersWait:
        """What this peer has waited for strangers, with this round."""
        return self._strangers_wait.after(self._held_seconds, self._rules.gather_seconds)

    def note_ready(self, now: float, signed: Signed, done: Fraction = ALL_DONE) -> None:
        """A checked `Ready` for this head arrived. `done`: see `RoundRules.done_by`."""
        author = PeerId(signed.author)
        self._ready[author] = signed
        self.times.note(now, author, done)
        self._note_complete(now)

    def expect(
        self,
        now: float,
        peers: Collection[PeerId],
        trailing: Collection[PeerId] = (),
        strangers: Collection[PeerId] = (),
        stakes: Mapping[PeerId, int] = MappingProxyType({}),
    ) -> None:
        """The living other peers that work on this head, and those that will come to it.

        Args:
            strangers: those of them that have no standing.
            stakes: tokens that the newest rounds took of each peer.
        """
        new = *map(tuple, (peers, trailing, strangers, stakes.items())), self.missed, self._left_out
        if new == self._heard:  # as at most ticks
            self._note_held(now)
            return
        self._heard = new
        expected = frozenset((*peers, *trailing))
        if expected != self.expected:
            self._gone = (self._gone | self.expected) - expected
            self.expected = expected
        self._trailing = self._trailing.union(trailing)
        self._strangers = expected.intersection((*strangers, *self.missed))
        self.times.expect({peer: stakes[peer] for peer in stakes.keys() & {*expected, self._me}})
        self._note_complete(now)

    def followed(self, now: float, ring: Ring) -> None:
        """This peer follows a ring."""
        in_vain: list[PeerId] = []
        if self._is_first and now > self.times.last_seconds + STRANGERS_GOSSIP_SECONDS:
            in_vain = sorted(self.missing_beside(ring) - self._trailing)
        missed = [peer for peer in (*self.missed, *in_vain) if peer not in ring.members]
        self.missed = tuple(missed[-limits.RING_MEMBERS_MAX :])
        self._is_first = False

    def begin_again(
        self, now: float, failed_attempt: int, removed: Collection[PeerId] = ()
    ) -> None:
        """The ring of an attempt is void: gather for a later attempt.

        It begins `attempt_seconds` from now, so that other peers of the void ring know it too.
        Where a commit needs two accusers, members that were removed from the ring and are not
        expected are left out: after a restart this peer may know the `Ready` of peers that died
        before, and each ring with them would be void.
        """
        if self._rules.accusers > 1:
            self._gone |= frozenset(removed) - self.expected - {self._me}
        self._first_attempt = attempt_of(max(self._first_attempt, failed_attempt + 1))
        self._again_seconds = self._not_before_seconds = now + self._rules.attempt_seconds
        self._complete_seconds = None
        self._note_complete(now)

    def decision(self, now: float) -> Decision:
        """Returns whether this peer publishes a roster now, and why."""
        wait = self.elsewhere.wait(now, self.expected)
        if wait.reason is not None:
            return Decision(None, wait.reason)
        self._left_out = wait.left_out
        return decide(now, self._gathering(), self.gather_seconds, self._rules.attempt_seconds)

    def _gathering(self) -> Gathering:
        return Gathering(
            self._me,
            self._head,
            self.ready,
            self.expected,
            self._began_seconds,
            self._complete_seconds,
            self._first_attempt,
            self._not_waited_for,
        )

    def _note_complete(self, now: float) -> None:
        if not is_complete(self._gathering()):
            self._complete_seconds = None
        elif self._complete_seconds is None:
            self._complete_seconds = max(now, self._not_before_seconds)
        self._note_held(now)

    def _note_held(self, now: float) -> None:
        """Notes for how long this round has stood still for strangers."""
        if not self._is_first or self._me not in self._ready:
            return
        missing = self.expected - self._ready.keys()
        if not missing or missing - self._strangers:
            self._held_since = None
            return
        if self._held_since is None:
            self._held_since = now - self._held_seconds
        self._held_seconds = now - self._held_since
