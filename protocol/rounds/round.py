"""One round as one peer sees it, from its first `Ready` to the commit.

    gathering --roster--> in a ring (`ring.followed_ring`) --quorum--> committed
        ^                  |        ^  |
        |                  |        +--+ a preferred roster for the same head replaces the ring
        +------------------+ out of the ring, and no member is left in it

Rules
-----
- `gathering` and `roster` decide when a ring is organised, and `ring.followed_ring` runs the ring
  that this peer follows. This machine decides which ring that is, and holds what is true for one
  head only. Its states are those of `states.ROUND`.
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
arithmetic (`Contribute`, `FinishAverage`, `Compute`) and answers with an event of the ring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType

from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import Action, BeginRing, LinkBroken, RingEvent, Unsettled
from gossamer.protocol.rounds.ring.followed_ring import FollowedRing
from gossamer.protocol.rounds.ring.link_rates import RingLinkRates
from gossamer.protocol.rounds.ring.ring import RingReduce
from gossamer.protocol.rounds.ring.ring_members import FOLLOWS_ANOTHER
from gossamer.protocol.rounds.ring_choice import Choice, Follow, Mend, Refuse
from gossamer.protocol.rounds.roster import (
    Ring,
    make_roster,
    open_roster,
    preference,
    preference_of,
)
from gossamer.protocol.rounds.round_view import EARLY_STATEMENTS_MAX, RoundView
from gossamer.protocol.rounds.states import ROUND, RoundEvent
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.envelopes import ring_id_of
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
one: as many as an honest organiser makes (`ring_choice.OF_ONE_MAX`)."""


class Round(RoundView):
    """The machine of one round. Raises RemoteProtocolError for a peer's violation of the rules."""

    # Events: gathering

    def ready(self, now: float, ready: Ready) -> list[Action]:
        """This peer's own work is done."""
        if ready.head != self.head or ready.round != self.number:
            raise LocalProtocolError("ready for another round")
        publish = self._signer.seal(ready)
        self._gatherer.note_ready(now, publish.signed, self._rules.done_by(ready))
        return [publish, *self.tick(now)]

    def expect(
        self,
        now: float,
        peers: Collection[PeerId],
        trailing: Collection[PeerId] = (),
        strangers: Collection[PeerId] = (),
        stakes: Mapping[PeerId, int] = MappingProxyType({}),
    ) -> list[Action]:
        """The living other peers that work on this head, and those that will come to it
        (`membership.Awaited`)."""
        stakes = stakes if self._parent.round else {}  # nobody has worked yet, nor has the founder
        self._gatherer.expect(now, peers, trailing, strangers, stakes)
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
                self._gatherer.note_ready(now, signed, self._rules.done_by(statement))
                return self.tick(now)
            case Accusation() | Vote() | LinkRate():
                return self._ring_statement(now, signed, statement)
        return []

    def tick(self, now: float) -> list[Action]:
        """Time passed, or the living peers changed: organise, accuse, leave or gather again."""
        chosen: list[Action] = []
        if self.state != "committed":
            chosen = self._choose(now, self._choice.due(now, self._companions))
        if self.state == "gathering":
            return [*chosen, *self._organise(now)]
        assert self._followed is not None
        return [*chosen, *self._after(now, self._followed.tick(now))]

    # Events: the ring

    def ring_event(self, now: float, ring_id: Digest, event: RingEvent) -> list[Action]:
        """Something happened in a ring. It does not count in a ring that was replaced."""
        # Another member may need this peer's averages although it has committed.
        followed = self._open(ring_id) if isinstance(event, LinkBroken) else self._working(ring_id)
        return [] if followed is None else self._after(now, followed.event(now, event))

    def commit_received(self, commit: Commit) -> list[Action]:
        """A checked commit record arrived: it ends the round if it commits this peer's header."""
        if self._followed is None or self.state == "gathering":
            return []
        return self._noting_commit(self._followed.commit_received(commit))

    def leave(self, now: float) -> list[Action]:
        """This peer goes to a head that another ring committed, and leaves its ring.

        The caller calls this before it drops the machine. Otherwise the others wait for this peer.
        """
        if self.ring is None or (followed := self._working(self.ring.ring_id)) is None:
            return []
        return self._after(now, followed.accuse(now, self._me, "follows another head"))

    # The rules: gathering

    def _organise(self, now: float) -> list[Action]:
        decision = self._gatherer.decision(now)
        self.gathering_reason = decision.reason
        if decision.attempt is None:
            return []
        roster = make_roster(
            self.head,
            self.number,
            decision.attempt,
            self._gatherer.ready,
            self._rules.ring_rules,
            self._gatherer.standpoint,
        )
        if self._me not in {member.author for member in roster.members}:
            self.gathering_reason = "this peer has no neighbours that it can reach in a ring"
            return []
        return self._publish(now, roster)

    def _publish(self, now: float, roster: Roster) -> list[Action]:
        publish = self._signer.seal(roster)
        return [publish, *self._roster(now, publish.signed, roster)]

    def _roster(self, now: float, signed: Signed, roster: Roster) -> list[Action]:
        organiser, ring_id = PeerId(signed.author), ring_id_of(signed)
        mine = self._gatherer.mine
        # By author as well: another peer may say the same of its work, or copy this peer's words.
        named = {(member.author, member.payload) for member in roster.members}
        names_me = mine is not None and (mine.author, mine.payload) in named
        # To open a roster takes far longer than all that can be seen without that.
        if names_me and not self._may_replace(roster, organiser, ring_id):
            return []
        if ring_id in self._void_rings:
            return []
        if organiser != self._me and not self._choice.may_open(organiser, len(roster.members)):
            return []
        run_id, rules = self._signer.run_id, self._rules.ring_rules
        ring = open_roster(signed, roster, run_id, self._verify, rules)
        if not names_me:
            return self._note_foreign(ring, "restarted")  # it would wait for work that is lost
        if organiser == self._me:
            return self._follow(now, ring)
        left_out, choice = self._choice.heard(now, ring, self._companions)
        return [*left_out, *self._choose(now, choice)]

    def _may_replace(self, roster: Roster, organiser: PeerId, ring_id: Digest) -> bool:
        """Returns whether a roster that names this peer may lead it to another ring."""
        followed = self._followed
        if followed is None or self._phase != "following":
            return True
        if followed.is_out and ring_id != followed.ring.ring_id:
            return True
        return preference_of(roster, organiser, ring_id) < preference(followed.ring)

    def _choose(self, now: float, choice: Choice) -> list[Action]:
        """Another peer's ring is followed, mended or refused."""
        match choice:
            case Follow(ring):
                return self._follow(now, ring)
            case Mend(roster):
                return self._publish(now, roster)
            case Refuse(ring):
                noted = [Unsettled(ring.organiser)] if choice.is_newly_unsettled else []
                said = self._note_foreign(ring, FOLLOWS_ANOTHER) if choice.is_said else []
                return [*noted, *said]
        return []

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
        return [self._signer.seal(Accusation(ring.ring_id, self._me, reason))]

    def _follow(self, now: float, ring: Ring) -> list[Action]:
        actions: list[Action] = []
        old = self._followed
        if old is not None and self._phase == "following":
            self._void_rings.add(old.ring.ring_id)
            if not old.is_out:
                accusation = Accusation(old.ring.ring_id, self._me, FOLLOWS_ANOTHER)
                actions.append(self._signer.seal(accusation))
        self._go("ring followed")
        self._choice.followed(now, ring.organiser)
        self._gatherer.followed(now, ring)
        followed = self._followed = self._new_ring(now, ring)
        actions += [BeginRing(ring), *followed.reduce.start()]
        early, self._early = self._early, {}
        for signed, statement in early.values():
            actions += self._ring_statement(now, signed, statement)
        return actions

    def _new_ring(self, now: float, ring: Ring) -> FollowedRing:
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
        waits = len(self._void_rings) < LEFT_RINGS_MAX
        return FollowedRing(
            self._signer, self._parent, ring, rules, reduce, link_rate, self._hints, now,
            waits_if_left=waits,
        )  # fmt: skip

    # The rules: the ring

    def _after_commit(self, now: float, signed: Signed, statement: Statement) -> list[Action]:
        """Other members of the ring may not have committed yet."""
        if not isinstance(statement, Accusation | Vote) or signed.author == self._me:
            return []
        followed = self._open(statement.ring_id)
        return [] if followed is None else followed.statement(now, signed, statement)

    def _after(self, now: float, actions: list[Action]) -> list[Action]:
        """Gathers again if this peer is out of the ring and the ring will not commit."""
        self._noting_commit(actions)
        followed = self._followed
        if followed is None or not followed.is_out or self._phase != "following":
            return actions
        others = set(followed.ring.members) - followed.removed
        if now < followed.patience.stall_seconds:
            if others & self._gatherer.expected:
                return actions
            # If its members appear again, their ring is at work.
            self._gatherer.elsewhere.note_lost(followed.ring, followed.accusations)
        self._go("ring void")
        self._choice.gathers_again()
        self._void_rings.add(followed.ring.ring_id)
        self._gatherer.begin_again(now, followed.ring.roster.attempt, followed.removed)
        return [*actions, *self._organise(now)]

    def _noting_commit(self, actions: list[Action]) -> list[Action]:
        """The actions of the ring that is followed; one of them may be its commit."""
        followed = self._followed
        if self._phase == "following" and followed is not None and followed.state == "committed":
            self._go("ring committed")
        return actions

    def _go(self, event: RoundEvent) -> None:
        self._phase = ROUND.after(self._phase, event)

    def _ring_statement(self, now: float, signed: Signed, statement: RingStatement) -> list[Action]:
        followed = self._working(statement.ring_id)
        if followed is not None:
            return self._after(now, followed.statement(now, signed, statement))
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
            # The author that said most gives way. Else a few push out what all others said.
            said = Counter(each.author for each, _ in self._early.values())
            ((most, _),) = said.most_common(1)
            del self._early[
                next(each for each, (kept, _) in self._early.items() if kept.author == most)
            ]
