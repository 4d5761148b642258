"""Who is ready for the round after a head, and when it is my turn to organise it.

Rules
-----
- The roster rules are `roster.decide`; this keeps what it is decided from, with the local clock.
- A ready peer that was expected and is so no more (it died, left, or went to another head) is left
  out, so that a ring does not begin by finding it dead.
- A peer that is not ready is waited for until the manifest's `gather_fraction` of the time that the
  first one took to be ready is over, for `GATHER_SECONDS_MIN` at least and the manifest's
  `gather_seconds` at most: one slow machine costs the others a part of a round, not a round. And
  for as long as the last ring that lost no member took to bring its averages: who fetches them from
  the members, as everybody does who is new, takes about as long and would come too late to every
  ring. Where members train in their ring the averages come slowly; there it is waited a little
  longer than the latest `Ready` of the last round took.
- Where those that trail are many (`membership.awaited`) they are waited for until the manifest's
  `gather_seconds` are over: they have several rounds to fetch, over the lines of the few.
- While a ring that does not name me is at work on this head I organise none, nor while one is that
  I was put out of when I could hear nobody in it (a thawed process). It is at work as long as one
  of its members is expected here and is not out of it. Members that leave a ring say so. After the
  manifest's `gather_seconds` (and where members train in their ring the time of that) I wait for it
  no longer and organise one without its members: else a peer could stop everybody with a ring of
  its own that it never commits.
- When all that are in such a ring have left this head they have committed it, most likely, and its
  record is on its way: I wait `attempt_seconds` for it. Else who was left behind with much work to
  carry would commit alone against all of them, and win.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.accusations import Accusations
from gossamer.protocol.rounds.roster import Decision, Gathering, Ring, decide, is_complete
from gossamer.protocol.rounds.states import GATHERING, GatheringEvent, GatheringState
from gossamer.protocol.wire.statements import Signed

GATHER_SECONDS_MIN = 2.0
"""A few round trips over an ocean, the replay of a round, and a newcomer's first inner steps."""


class Gatherer:
    """The `Ready` of one head. Events carry the local clock in seconds."""

    def __init__(
        self,
        me: PeerId,
        head: Digest,
        now: float,
        gather_seconds_max: float,
        gather_fraction: float,
        attempt_seconds: float,
        ring_seconds: float = 0.0,
        steps_seconds: float = 0.0,
        replay_seconds: float = 0.0,
    ) -> None:
        """
        Args:
            ring_seconds: how long a ring without me may be at work beyond the gathering.
            steps_seconds: what members train in their ring, which is of the round as well.
            replay_seconds: what those who fetch the last round will need for it.
        """
        self._me = me
        self._head = head
        self._born_seconds = now
        self._gather_seconds_max = gather_seconds_max
        self._gather_fraction = gather_fraction
        self._attempt_seconds = attempt_seconds
        self._ring_seconds = ring_seconds
        self._steps_seconds = steps_seconds
        self._replay_seconds = replay_seconds
        self._ready: dict[PeerId, Signed] = {}
        self._expected: frozenset[PeerId] = frozenset()
        self._trailing: frozenset[PeerId] = frozenset()
        """Who was expected at any time although it trails."""
        self._gone: frozenset[PeerId] = frozenset()
        self._foreign: dict[Digest, tuple[frozenset[PeerId], Accusations]] = {}
        self.first_ready_seconds: float | None = None
        self._last_ready_seconds = now
        self._began_seconds: float | None = None
        self._complete_seconds: float | None = None
        self._not_before_seconds = float("-inf")
        self.state: GatheringState = GATHERING.initial
        self._elsewhere_since_seconds = 0.0
        """When the ring without this peer was first seen at work; meaningful in `yielding`."""
        self._commit_until_seconds = float("-inf")
        """How long I wait for the commit of such a ring."""
        self._left_out: frozenset[PeerId] = frozenset()
        """Members of such a ring that I do not wait for any longer."""
        self._first_attempt = 0

    @property
    def expected(self) -> frozenset[PeerId]:
        """Living others that work on this head."""
        return self._expected

    @property
    def ready(self) -> Mapping[PeerId, Signed]:
        """Ready peers that a roster would name."""
        left_out = self._gone | self._left_out
        if not left_out:
            return self._ready
        return {peer: signed for peer, signed in self._ready.items() if peer not in left_out}

    @property
    def mine(self) -> Signed | None:
        """My own `Ready`."""
        return self._ready.get(self._me)

    @property
    def gather_seconds(self) -> float:
        """How long after the first `Ready` the others are waited for."""
        if self.first_ready_seconds is None or self._trailing & self._expected - self._ready.keys():
            return self._gather_seconds_max
        took = self.first_ready_seconds - self._born_seconds + self._steps_seconds
        part = self._gather_fraction * took
        return min(self._gather_seconds_max, max(GATHER_SECONDS_MIN, part, self._replay_seconds))

    @property
    def late_seconds(self) -> float:
        """How long after the first `Ready` the latest one came."""
        if self.first_ready_seconds is None:
            return 0.0
        return self._last_ready_seconds - self.first_ready_seconds

    def note_ready(self, now: float, signed: Signed) -> None:
        author = PeerId(signed.author)
        if author not in self._ready:  # it may come again
            self._last_ready_seconds = now
        self._ready[author] = signed
        if self.first_ready_seconds is None:
            self.first_ready_seconds = self._began_seconds = now
        self._note_complete(now)

    def expect(
        self, now: float, peers: Collection[PeerId], trailing: Collection[PeerId] = ()
    ) -> None:
        """The living other peers that work on this head, and those that are to come to it."""
        expected = frozenset((*peers, *trailing))
        self._trailing |= frozenset(trailing)
        self._gone = (self._gone | self._expected) - expected
        self._expected = expected
        self._note_complete(now)

    def note_foreign(self, ring: Ring) -> bool:
        """A ring without me is at work on this head; says whether that is news."""
        if ring.ring_id in self._foreign:
            return False
        self.note_lost(ring, Accusations(ring.members, self._me))
        return True

    def note_lost(self, ring: Ring, accusations: Accusations) -> None:
        """I am out of a ring on this head, and lost sight of all that are in it."""
        if len(self._foreign) >= limits.ROSTERS_KEPT_MAX:
            del self._foreign[next(iter(self._foreign))]
        self._foreign[ring.ring_id] = (frozenset(ring.members) - {self._me}, accusations)

    def note_accusation(self, ring_id: bytes, author: PeerId, accused: PeerId) -> None:
        """An accusation in a ring without me."""
        if (foreign := self._foreign.get(Digest(ring_id))) is not None:
            foreign[1].accuse(author, accused)

    def begin_again(self, now: float, failed_attempt: int) -> None:
        """The ring of an attempt came to nothing: gather for a later one.

        It begins `attempt_seconds` from now, so that those who share this fate know it too.
        """
        self._first_attempt = min(max(self._first_attempt, failed_attempt + 1), limits.ATTEMPTS_MAX)
        self._began_seconds = self._not_before_seconds = now + self._attempt_seconds
        self._complete_seconds = None
        self._note_complete(now)

    def decision(self, now: float) -> Decision:
        """Whether I publish a roster now, and when to ask again."""
        elsewhere = self._at_work_elsewhere()
        event = self._event(now, elsewhere)
        while event is not None:
            self._go(now, event)
            event = self._event(now, elsewhere)
        if self.state == "yielding":
            reason = "a ring without this peer is at work on this head"
            return Decision(None, reason, self._patience_until_seconds)
        if now < self._commit_until_seconds:
            reason = "a ring without this peer may be committed"
            return Decision(None, reason, self._commit_until_seconds)
        self._left_out = elsewhere
        return decide(now, self._gathering(), self.gather_seconds, self._attempt_seconds)

    @property
    def _patience_until_seconds(self) -> float:
        """Local time until which this peer yields to a ring without it."""
        return self._elsewhere_since_seconds + self._gather_seconds_max + self._ring_seconds

    def _event(self, now: float, elsewhere: frozenset[PeerId]) -> GatheringEvent | None:
        """What has happened to rings without this peer since the last look.

        Args:
            elsewhere: members of such rings that are at work.
        """
        match self.state:
            case "open" | "awaiting commit" if elsewhere:
                return "ring elsewhere"
            case "awaiting commit" if now >= self._commit_until_seconds:
                return "no commit"
            case "yielding" | "overruling" if not elsewhere:
                if self._is_left_behind() or now < self._commit_until_seconds:
                    return "members went on"
                return "ring gone"
            case "yielding" if now >= self._patience_until_seconds:
                return "patience over"
        return None

    def _go(self, now: float, event: GatheringEvent) -> None:
        self.state = GATHERING.after(self.state, event)
        if event == "ring elsewhere":
            self._elsewhere_since_seconds = now
        elif event == "members went on" and self._is_left_behind():
            self._commit_until_seconds = now + self._attempt_seconds

    def _at_work_elsewhere(self) -> frozenset[PeerId]:
        """Who is in a ring without me that is at work."""
        if not self._foreign:
            return frozenset()
        rings = [members - accusations.out for members, accusations in self._foreign.values()]
        return frozenset().union(*(members for members in rings if members & self._expected))

    def _is_left_behind(self) -> bool:
        """Whether somebody is still in a ring without me, and not on this head any more."""
        return any(members - accusations.out for members, accusations in self._foreign.values())

    def _gathering(self) -> Gathering:
        return Gathering(
            self._me,
            self._head,
            self.ready,
            self._expected,
            self._began_seconds,
            self._complete_seconds,
            self._first_attempt,
        )

    def _note_complete(self, now: float) -> None:
        if not is_complete(self._gathering()):
            self._complete_seconds = None
        elif self._complete_seconds is None:
            self._complete_seconds = max(now, self._not_before_seconds)
