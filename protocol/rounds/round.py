"""One round as one peer sees it, from its first `Ready` to the commit.

    gathering --roster--> in a ring (`attempt`) --quorum--> committed
        ^                  |        ^  |
        |                  |        +--+ a preferred roster for the same head replaces the ring
        +------------------+ out of the ring, and no member is left in it

Rules
-----
- `gathering` and `roster` decide when a ring is organised, and `attempt` runs the ring that is
  followed. This machine decides which ring that is, and holds what is true for one head only. Its
  states are those of `states.ROUND`.
- A roster may not name this peer. Then this peer waits for the commit of that ring as long as the
  ring is at work (`gathering`). The same holds for a roster that names it with a `Ready` of
  its life before a restart, whose work is gone. In that case it says that it is out of the ring.
- A peer that leaves a ring for a preferred one says that it is out of the first ring.
- Statements about a ring that is not followed (yet) are kept, up to `EARLY_STATEMENTS_MAX`, and
  used when the ring is followed.
- After the commit the machine still takes statements about its ring and failures of its link, until
  `is_over`. So the averages reach members that lack them.
- A ring is void for this peer when it is out of it and none of the living others is in it, or when
  nothing has arrived for another `patience.STALL_SECONDS`. Then it gathers again with a later
  attempt. So no order of deaths and accusations leaves a peer waiting.

Events are methods with the local clock in seconds, and each returns actions. The caller does the
arithmetic (`Contribute`, `FinishAverage`, `Compute`) and answers with the ring's id. An answer for
a ring that was replaced is dropped.
"""

from __future__ import annotations

from collections.abc import Collection

from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.accusations import FOLLOWS_ANOTHER, Doubts
from gossamer.protocol.rounds.actions import Action, BeginRing, LeftOut, Unsettled
from gossamer.protocol.rounds.attempt import Attempt
from gossamer.protocol.rounds.inventory import NO_DIGEST, ArrivedSum, Average, Payload
from gossamer.protocol.rounds.link_rates import RingLinkRates
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.rounds.mending import hold_until, is_early, mend_later
from gossamer.protocol.rounds.ring import RingReduce
from gossamer.protocol.rounds.roster import Ring, make_roster, open_roster, preference
from gossamer.protocol.rounds.round_view import EARLY_STATEMENTS_MAX, RoundView
from gossamer.protocol.rounds.states import ROUND, RoundEvent
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import (
    Accusation,
    LinkRate,
    Ready,
    RingStatement,
    Roster,
    Signed,
    Statement,
    Vote,
    key_of,
)

LEFT_RINGS_MAX = 3
"""Rings on one head in which this peer does not commit alone because the others follow another
one: as many as an honest organiser makes (`replacing.OF_ONE_MAX`)."""


class Round(RoundView):
    """The machine of one round. Raises RemoteProtocolError for a peer's violation of the rules."""

    # Events: gathering

    def ready(self, now: float, ready: Ready) -> list[Action]:
        """This peer's own work is done."""
        if ready.head != self.head or ready.round != self.number:
            raise LocalProtocolError("ready for another round")
        publish = self._self.seal(ready)
        self._gatherer.note_ready(now, publish.signed)
        return [publish, *self.tick(now)]

    def expect(
        self, now: float, peers: Collection[PeerId], trailing: Collection[PeerId] = ()
    ) -> list[Action]:
        """The living other peers that work on this head, and those that will come to it
        (`membership.awaited`)."""
        self._gatherer.expect(now, peers, trailing)
        return self.tick(now)

    def statement(self, now: float, signed: Signed, statement: Statement) -> list[Action]:
        """A checked statement arrived.

        Statements that came before this machine began may belong to its round. So the caller gives
        it the whole statement store once at the beginning. Repetitions do no harm. This peer's own
        statements of an earlier life come back by gossip and do not count.
        """
        if self.state == "committed":
            return self._after_commit(now, signed, statement)
        match statement:
            case Roster() if statement.head == self.head and statement.round == self.number:
                return self._roster(now, signed, statement)
            case _ if signed.author == self._me:
                return []
            case Ready() if statement.head == self.head and statement.round == self.number:
                self._gatherer.note_ready(now, signed)
                return self.tick(now)
            case Accusation() | Vote() | LinkRate():
                return self._ring_statement(now, signed, statement)
        return []

    def tick(self, now: float) -> list[Action]:
        """Time passed, or the living peers changed: organise, accuse, leave or gather again."""
        mended = self._mend(now)
        if self.state == "gathering":
            return [*mended, *self._organise(now)]
        assert self._attempt is not None
        return [*mended, *self._after(now, self._attempt.tick(now))]

    # Events: the ring

    def partial_sum_received(
        self,
        now: float,
        ring_id: Digest,
        chunk: int,
        arrived: ArrivedSum,
    ) -> list[Action]:
        """A partial sum came. `SignedAverages` has checked its sender's signature."""
        if (attempt := self._working(ring_id)) is None:
            return []
        attempt.link_rate.received(now)
        actions = attempt.reduce.partial_sum_received(chunk, arrived)
        return self._after(now, attempt.progress(now, actions))

    def average_received(
        self, now: float, ring_id: Digest, sender: PeerId, chunk: int, average: Average
    ) -> list[Action]:
        """An average came. `SignedAverages` has checked its finisher's signature."""
        if (attempt := self._working(ring_id)) is None:
            return []
        attempt.link_rate.received(now)
        actions = attempt.reduce.average_received(sender, chunk, average)
        return self._after(now, attempt.progress(now, actions))

    def contributed(
        self,
        now: float,
        ring_id: Digest,
        chunk: int,
        payload: Payload,
        digest: Digest = NO_DIGEST,
    ) -> list[Action]:
        if (attempt := self._working(ring_id)) is None:
            return []
        actions = attempt.reduce.contributed(chunk, payload, digest)
        return self._after(now, attempt.progress(now, actions))

    def rejected(self, now: float, ring_id: Digest, chunk: int, sender: PeerId) -> list[Action]:
        """The payload to add to was malformed: its sender is accused."""
        if (attempt := self._working(ring_id)) is None:
            return []
        return self._after(now, attempt.rejected(now, chunk, sender))

    def average_finished(
        self, now: float, ring_id: Digest, chunk: int, payload: Payload, digest: Digest
    ) -> list[Action]:
        if (attempt := self._working(ring_id)) is None:
            return []
        actions = attempt.reduce.average_finished(chunk, payload, digest)
        return self._after(now, attempt.progress(now, actions))

    def link_failed(self, now: float, ring_id: Digest, peer: PeerId, reason: str) -> list[Action]:
        """The link to a ring member failed: this peer accuses it."""
        if (attempt := self._open(ring_id)) is None:
            return []
        return self._after(now, attempt.accuse(now, peer, reason))

    def link_measured(
        self, now: float, ring_id: Digest, peer: PeerId, measure: LinkMeasure
    ) -> list[Action]:
        """The totals of the link to a member."""
        if (attempt := self._working(ring_id)) is None:
            return []
        return self._after(now, attempt.link_measured(now, peer, measure))

    def computed(
        self, now: float, ring_id: Digest, generation: int, state_digest: Digest
    ) -> list[Action]:
        """The outer step was taken: vote for the header that follows."""
        if (attempt := self._working(ring_id)) is None:
            return []
        return self._after(now, attempt.computed(now, generation, state_digest))

    def commit_received(self, commit: Commit) -> list[Action]:
        """A checked commit record arrived: it ends the round if it commits this peer's header."""
        if self._attempt is None or self.state == "gathering":
            return []
        return self._noting_commit(self._attempt.commit_received(commit))

    def leave(self, now: float) -> list[Action]:
        """This peer goes to a head that another ring committed, and leaves its ring.

        The caller calls this before it drops the machine. Otherwise the others wait for this peer.
        """
        if self.ring is None or (attempt := self._working(self.ring.ring_id)) is None:
            return []
        return self._after(now, attempt.accuse(now, self._me, "follows another head"))

    # The rules: gathering

    def _organise(self, now: float) -> list[Action]:
        decision = self._gatherer.decision(now)
        attempt, self.gathering_reason = decision.attempt, decision.reason
        if attempt is None:
            return []
        roster = make_roster(
            self.head,
            self.number,
            attempt,
            self._gatherer.ready,
            self._rules.payloads.name,
            self._rules.chunk_elements,
            self._rules.members_max,
            self._gatherer.standpoint,
        )
        if self._me not in {member.author for member in roster.members}:
            self.gathering_reason = "this peer has no neighbours that it can reach in a ring"
            return []
        publish = self._self.seal(roster)
        return [publish, *self._roster(now, publish.signed, roster)]

    def _roster(self, now: float, signed: Signed, roster: Roster) -> list[Action]:
        if signed.author != self._me and not self._replacing.may_open(PeerId(signed.author)):
            return []
        rules = self._rules
        run_id, name = self._self.run_id, rules.payloads.name
        ring = open_roster(
            signed, roster, run_id, self._verify, name, rules.chunk_elements, rules.members_max
        )
        if ring.ring_id in self._void_rings:
            return []
        mine = self._gatherer.mine
        # By author as well: another peer may say the same of its work, or copy this peer's words.
        named = {(member.author, member.payload) for member in roster.members}
        if mine is None or (mine.author, mine.payload) not in named:
            return self._note_foreign(ring, "restarted")  # it would wait for work that is lost
        attempt = self._attempt
        if attempt is not None and self._phase == "following":
            is_other = ring.ring_id != attempt.ring.ring_id
            is_preferred = preference(ring) < preference(attempt.ring)
            if not is_preferred and not (attempt.is_out and is_other):
                return []
        if ring.organiser == self._me:
            return self._follow(now, ring)
        return self._weigh(now, ring) if self._may_follow(now, ring) else self._refuse(now, ring)

    def _may_follow(self, now: float, ring: Ring) -> bool:
        """Returns whether another peer's ring, which is to be preferred, comes in time."""
        attempt = self._attempt
        is_out = attempt is None or attempt.is_out or self._phase != "following"
        return self._replacing.may_follow(now, ring.organiser, is_out=is_out)

    def _weigh(self, now: float, ring: Ring) -> list[Action]:
        """Another peer's ring: follows it, or mends it if it leaves out peers."""
        earlier, gatherer, hints = self._mending, self._gatherer, self._hints
        if earlier is not None and preference(earlier.ring) <= preference(ring):
            return []
        (left_out, _), is_unfair = self._left_out_by(ring), ring.organiser in hints.unfair
        is_known = is_unfair or not {*hints.wronged, *self._companions}.isdisjoint(left_out)
        is_mended = bool(left_out) and (is_known or is_early(now, gatherer.due_seconds))
        noted = [LeftOut(ring.organiser, tuple(left_out), is_mended)] if left_out else []
        until = hold_until(now, gatherer.due_seconds, is_unfair=is_unfair)
        if not is_mended and not (until > now and self._missing_beside(ring)):
            return [*noted, *self._follow(now, ring)]
        is_sure = is_known or not left_out
        self._mending = mend_later(now, ring, self._me, until, earlier, is_sure=is_sure)
        return [*noted, *self._mend(now)]

    def _mend(self, now: float) -> list[Action]:
        """Publishes the ring with those that it leaves out, or follows it, if it is time to."""
        gatherer, mending = self._gatherer, self._mending
        if mending is None or self.state == "committed":
            return []
        ring, missing = mending.ring, self._missing_beside(mending.ring)
        is_due = mending.is_due(now, gatherer.last_ready_seconds, is_one_missing=bool(missing))
        if missing and not is_due:
            return []
        _, roster = self._left_out_by(ring)
        if roster is not None and not is_due:
            return []
        self._mending = None
        if not self._may_follow(now, ring):
            return self._refuse(now, ring)  # nor do the others follow a mended one by now
        if mending.hold_seconds > mending.since_seconds:
            self._in_vain |= missing
        if roster is None or self._me not in {member.author for member in roster.members}:
            return self._follow(now, ring)
        publish = self._self.seal(roster)
        return [publish, *self._roster(now, publish.signed, roster)]

    def _refuse(self, now: float, ring: Ring) -> list[Action]:
        """A ring that is to be preferred comes too late or too often."""
        organiser, replacing = ring.organiser, self._replacing
        is_unsettled = replacing.is_newly_unsettled(now, organiser)
        noted = [Unsettled(organiser)] if is_unsettled else []
        said = replacing.refused(organiser, ring.ring_id)
        return [*noted, *(self._note_foreign(ring, FOLLOWS_ANOTHER) if said else [])]

    def _note_foreign(self, ring: Ring, reason: str) -> list[Action]:
        """A ring without this peer. If it names this peer, this peer says that it is out of it."""
        if not self._gatherer.elsewhere.note(ring):
            return []
        for signed, statement in self._early.values():
            if isinstance(statement, Accusation):
                self._gatherer.elsewhere.note_accusation(
                    statement.ring_id, PeerId(signed.author), PeerId(statement.accused)
                )
        if self._me not in ring.members:
            return []
        return [self._self.seal(Accusation(ring.ring_id, self._me, reason))]

    def _follow(self, now: float, ring: Ring) -> list[Action]:
        actions: list[Action] = []
        self._mending = None
        old = self._attempt
        if old is not None and self._phase == "following":
            self._void_rings.add(old.ring.ring_id)
            if not old.is_out:
                accusation = Accusation(old.ring.ring_id, self._me, FOLLOWS_ANOTHER)
                actions.append(self._self.seal(accusation))
        self._go("ring followed")
        self._replacing.followed(now, ring.organiser)
        attempt = self._attempt = self._new_attempt(now, ring)
        actions += [BeginRing(ring, ring.envelope), *attempt.start()]
        early, self._early = self._early, {}
        for signed, statement in early.values():
            actions += self._ring_statement(now, signed, statement)
        return actions

    def _new_attempt(self, now: float, ring: Ring) -> Attempt:
        rules = self._rules
        link_rate = RingLinkRates(
            ring.members,
            self._me,
            began_seconds=now,
            chunk_bytes=rules.chunk_bytes(len(ring.members)),
            num_chunks=rules.num_chunks,
            round_seconds=now - self._began_seconds,
            was_slow=self._hints.found_slow,
            is_in_steps=rules.payloads.are_steps,
        )
        signed = self.signed_averages_of(ring)
        reduce = RingReduce(
            ring.members, self._me, rules.num_chunks, ring.starters, signed.sign, signed.sign_sum
        )
        doubts, suspects = Doubts(self._hints.doubted), self._hints.suspected
        waits = len(self._void_rings) < LEFT_RINGS_MAX
        return Attempt(
            self._self, self._parent, ring, rules, reduce, link_rate, doubts, suspects, now,
            waits_if_left=waits,
        )  # fmt: skip

    # The rules: the ring

    def _after_commit(self, now: float, signed: Signed, statement: Statement) -> list[Action]:
        """Other members of the ring may not have committed yet."""
        if not isinstance(statement, Accusation | Vote) or signed.author == self._me:
            return []
        attempt = self._open(statement.ring_id)
        return [] if attempt is None else attempt.statement(now, signed, statement)

    def _after(self, now: float, actions: list[Action]) -> list[Action]:
        """Gathers again if this peer is out of the ring and the ring will not commit."""
        self._noting_commit(actions)
        attempt = self._attempt
        if attempt is None or not attempt.is_out or self._phase != "following":
            return actions
        others = set(attempt.ring.members) - attempt.removed
        if now < attempt.stall_seconds:
            if others & self._gatherer.expected:
                return actions
            # If its members appear again, their ring is at work.
            self._gatherer.elsewhere.note_lost(attempt.ring, attempt.accusations)
        self._go("ring void")
        self._replacing.gathers_again()
        self._void_rings.add(attempt.ring.ring_id)
        self._gatherer.begin_again(now, attempt.ring.roster.attempt, attempt.removed)
        return [*actions, *self._organise(now)]

    def _noting_commit(self, actions: list[Action]) -> list[Action]:
        """The actions of the ring that is followed; one of them may be its commit."""
        attempt = self._attempt
        if self._phase == "following" and attempt is not None and attempt.state == "committed":
            self._go("ring committed")
        return actions

    def _go(self, event: RoundEvent) -> None:
        self._phase = ROUND.after(self._phase, event)

    def _ring_statement(self, now: float, signed: Signed, statement: RingStatement) -> list[Action]:
        attempt = self._working(statement.ring_id)
        if attempt is not None:
            return self._after(now, attempt.statement(now, signed, statement))
        if isinstance(statement, Accusation):
            self._gatherer.elsewhere.note_accusation(
                statement.ring_id, PeerId(signed.author), PeerId(statement.accused)
            )
        if Digest(statement.ring_id) not in self._void_rings:
            self._keep_early(signed, statement)
        return self.tick(now) if self.state == "gathering" else []

    def _keep_early(self, signed: Signed, statement: RingStatement) -> None:
        key = key_of(signed.author, statement)
        self._early.pop(key, None)
        self._early[key] = (signed, statement)
        if len(self._early) > EARLY_STATEMENTS_MAX:
            del self._early[next(iter(self._early))]
