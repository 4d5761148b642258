"""A stand-in for the node's driver: it executes what a `Round` asks for, as the docstrings say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import arithmetic
from network import RESET_SECONDS, SILENCE_SECONDS, Link
from signatures import sign_as, verify

from gossamer.protocol.board import Board
from gossamer.protocol.chain import Commit, Header, is_heavier, open_commit
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.messages import (
    Ready,
    Signed,
    Span,
    Statement,
    Suspect,
    Vote,
    open_signed,
)
from gossamer.protocol.ring import Contribute, Final, Finalise, Send
from gossamer.protocol.roster import Ring
from gossamer.protocol.round import (
    Action,
    BeginRing,
    Committed,
    Compute,
    Parent,
    Publish,
    Removed,
    Round,
    RoundRules,
)

if TYPE_CHECKING:
    from simulator import World

TICKS_MAX = 50
"""Ticks at one instant after which a machine is taken to ask for itself for ever."""


class Peer:
    """One peer: its board, its chain, its round, and the links of the ring that it follows."""

    def __init__(self, world: World, peer_id: PeerId) -> None:
        self.world = world
        self.peer_id = peer_id
        self.alive = False
        self.life = 0
        self.num_deaths = 0
        self.head: Digest = world.run_id
        self.heads: dict[Digest, Commit] = {}
        """Commit records; they and the head are on disk."""
        self.round: Round | None = None
        self.ring: Ring | None = None
        self.finals: list[Final] = []
        """Of the ring, once all are there; the newest."""
        self._envelope: Signed | None = None
        self._hung = False
        self._sign = sign_as(peer_id)

    # Life

    def start(self) -> None:
        """The process starts with nothing but its head."""
        self.alive = True
        self.life += 1
        self.board = Board()
        self._views: dict[PeerId, tuple[tuple[int, int], Digest | None]] = {}
        self._announced = 0
        self._ticks = (0.0, 0)
        self._wake_seconds: float | None = None
        self._carried_tokens = 0
        self.world.later(self._exchange_delay(), self, self._exchange)
        self._enter(self.head)

    def die(self, *, hung: bool) -> None:
        self.alive = False
        self.num_deaths += 1
        self._hung = hung
        self.round = None
        self.ring = None
        for link in self.world.links.of(self.peer_id):
            if link.source == self.peer_id:
                link.close()
            else:
                link.fail(self.death_notice_seconds(), "reset")
        version = (self.life, self._announced + 1)
        for other in self.world.others(self.peer_id):
            self.world.later(
                self.death_notice_seconds(),
                other,
                lambda other=other: other.view_changed(self.peer_id, version, None),  # type: ignore[misc]
            )

    def death_notice_seconds(self) -> float:
        return self.world.uniform(SILENCE_SECONDS if self._hung else RESET_SECONDS)

    @property
    def committed_round(self) -> int:
        return self.world.round_of(self.head)

    # The head

    def _enter(self, head: Digest) -> None:
        """Begins the round after a head."""
        self._leave_ring()
        self.head = head
        self.world.note(f"{self.name} enters round {self.committed_round + 1}")
        self.announce()
        if self.committed_round >= self.world.scenario.num_rounds:
            self.round = None
            return
        scenario = self.world.scenario
        round_ = self.round = Round(
            me=self.peer_id,
            run_id=self.world.run_id,
            parent=Parent(
                head, self.committed_round, self.world.tokens_of(head), self.world.ledgers[head]
            ),
            rules=RoundRules(
                "fp32",
                1024,
                scenario.num_chunks,
                scenario.gather_seconds,
                scenario.attempt_seconds,
            ),
            sign=self._sign,
            verify=verify,
        )
        self._expect()
        # Faster peers may have spoken of this round before I came to it.
        for signed, statement in self.board.statements():
            if self.round is round_:
                self._statement(signed, statement)
        if self.round is round_:
            seconds = self.world.uniform(scenario.train_seconds)
            self.world.later(seconds, self, self._trained_for(round_))

    def _trained_for(self, round_: Round) -> Callable[[], None]:
        def trained() -> None:
            if self.round is not round_:
                return
            tokens = self.world.random.randint(1, 1000) + self._carried_tokens
            self._carried_tokens = tokens
            shard = self.world.order.index(self.peer_id)
            start = self.world.ledgers[self.head].as_dict().get(shard, 0)
            spans = (Span(shard, start, start + tokens),)
            ready = Ready(round_.number, self.head, tokens, 10, 2.5, spans)
            self.do(round_, round_.ready(self.world.now, ready))

        return trained

    def commit_received(self, commit: Commit) -> None:
        """A commit record, by gossip or in an exchange: fetched blocks come with it here."""
        header = open_commit(commit, self.world.run_id, verify)
        if header.digest not in self.heads:
            self.heads[header.digest] = commit
            self.world.gossip_commit(self.peer_id, commit)
            self._choose_head()

    def _choose_head(self) -> None:
        """The head rule. My own ring goes on as long as it can still win over another's head."""
        best, tokens = self.head, self.world.tokens_of(self.head)
        for head in self.heads:
            if is_heavier(self.world.tokens_of(head), head, tokens, best):
                best, tokens = head, self.world.tokens_of(head)
        if best == self.head:
            return
        header = self.world.header_of(best)
        round_ = self.round
        if (
            round_ is not None
            and round_.ring is not None
            and round_.ring.ring_id != header.ring_id
            and round_.attainable_tokens > tokens
        ):
            self.world.count("head held back")
            return
        self._adopt(best, header)

    def _adopt(self, head: Digest, header: Header) -> None:
        if any(m.peer_id == self.peer_id and m.tokens for m in header.members):
            self._carried_tokens = 0
        round_ = self.round
        ring_id = round_.ring.ring_id if round_ is not None and round_.ring is not None else None
        if round_ is not None and ring_id is not None and ring_id != header.ring_id:
            # Only what is to be published: the round is over here in any case.
            for action in round_.leave(self.world.now):
                if isinstance(action, Publish):
                    self._execute(round_, action)
        self._enter(head)

    # What others say

    def statement_received(self, signed: Signed) -> None:
        """By gossip or in an exchange."""
        statement = open_signed(signed, self.world.run_id, verify)
        if self.board.post(signed, statement):
            self._statement(signed, statement)

    def _statement(self, signed: Signed, statement: Statement) -> None:
        round_ = self.round
        if round_ is not None:
            self.do(round_, round_.statement(self.world.now, signed, statement))

    def view_changed(self, peer: PeerId, version: tuple[int, int], head: Digest | None) -> None:
        """Another peer is at a head, or gone (None)."""
        known = self._views.get(peer)
        if known is None or known[0] < version:
            self._views[peer] = (version, head)
            self._expect()

    def lost(self, peer: PeerId) -> None:
        """Another peer cannot be reached any more, and may be alive."""
        if peer in self._views and not self.world.reach(self.peer_id, peer):
            self._views[peer] = (self._views[peer][0], None)
            self._expect()

    def _expect(self) -> None:
        round_ = self.round
        if round_ is not None:
            peers = [peer for peer, (_, head) in sorted(self._views.items()) if head == self.head]
            self.do(round_, round_.expect(self.world.now, peers))

    def announce(self) -> None:
        """Tells the others where I stand."""
        self._announced += 1
        version, head = (self.life, self._announced), self.head
        for other in self.world.others(self.peer_id):
            self.world.later(
                self.world.uniform(self.world.scenario.latency_seconds),
                other,
                lambda other=other: (  # type: ignore[misc]
                    other.view_changed(self.peer_id, version, head)
                    if self.world.reach(self.peer_id, other.peer_id)
                    else None
                ),
            )

    def introduce_to(self, other: Peer) -> None:
        """What a newly started peer hears of me."""
        other.view_changed(self.peer_id, (self.life, self._announced), self.head)

    def _exchange_delay(self) -> float:
        return self.world.scenario.exchange_seconds * self.world.uniform((0.5, 1.5))

    def _exchange(self) -> None:
        """Anti-entropy: a living peer and I hand each other what is missing."""
        self.world.later(self._exchange_delay(), self, self._exchange)
        others = [
            other
            for other in self.world.others(self.peer_id)
            if other.alive and self.world.reach(self.peer_id, other.peer_id)
        ]
        if others:
            other = self.world.random.choice(others)
            for giver, taker in ((self, other), (other, self)):
                giver.give(taker)

    def give(self, taker: Peer) -> None:
        for signed in self.board.missing_from(taker.board.digests()):
            taker.statement_received(signed)
        for head in sorted(set(self.heads) - set(taker.heads)):
            taker.commit_received(self.heads[head])

    # The round's actions

    def do(self, round_: Round, actions: Iterable[Action]) -> None:
        """Executes actions in order, unless the round is over meanwhile."""
        for action in actions:
            if self.round is not round_:
                return
            self._execute(round_, action)
        if self.round is round_:
            self._follow_successor(round_)
            self._schedule_wake(round_)
            self._choose_head()

    def _execute(self, round_: Round, action: Action) -> None:
        world = self.world
        match action:
            case Publish(signed, statement):
                if isinstance(statement, Suspect):
                    world.note_suspect(self.peer_id, statement)
                    world.count("gathered again", round_.state == "gathering")
                elif isinstance(statement, Vote):
                    world.note(f"{self.name} votes {statement.header_digest.hex()[:6]}")
                self.board.post(signed, statement)
                world.gossip(self.peer_id, signed)
            case BeginRing(ring, envelope):
                self._begin_ring(ring, envelope)
            case Contribute(chunk, payload):
                assert self.ring is not None
                value = arithmetic.value_of(self.peer_id, self.head, chunk)
                weight = self.ring.weights[self.peer_id]
                total = arithmetic.add(payload, self.ring.members, self.peer_id, weight, value)
                self._answer(
                    round_,
                    lambda ring_id: round_.contributed(world.now, ring_id, chunk, total),
                )
            case Finalise(chunk, payload, mask):
                assert self.ring is not None
                ring = self.ring
                arithmetic.check(payload, mask, ring.members, ring.weights, self.head, chunk)
                digest = digest_of(payload)
                self._answer(
                    round_,
                    lambda ring_id: round_.finalised(world.now, ring_id, chunk, payload, digest),
                )
            case Compute(generation, finals):
                self.finals = finals
                state = digest_of(self.head, *(final.digest for final in finals))
                self._computes += 1
                world.count("computed again", self._computes > 1)
                self._answer(
                    round_,
                    lambda ring_id: round_.computed(world.now, ring_id, generation, state),
                    not_before=world.scenario.hold_seconds,
                )
            case Send(target):
                assert self.ring is not None
                assert self._envelope is not None
                world.links.open(self.peer_id, target, self.ring, self._envelope).send(action)
            case Removed(removed, reason):
                world.note(f"{self.name} holds {world.name(removed)} out: {reason}")
            case Committed(commit, proposal, finals):
                world.note_commit(self, commit, proposal, finals)
                self.heads[proposal.header.digest] = commit
                world.gossip_commit(self.peer_id, commit)
                self._carried_tokens = 0
                self._enter(proposal.header.digest)

    def _answer(
        self,
        round_: Round,
        event: Callable[[Digest], list[Action]],
        *,
        not_before: float = 0.0,
    ) -> None:
        """Arithmetic takes its time, and what it answers may be out of date by then."""
        assert self.ring is not None
        ring_id = self.ring.ring_id

        def answer() -> None:
            if self.round is round_:
                self.do(round_, event(ring_id))

        delay = self.world.uniform(self.world.scenario.arithmetic_seconds)
        self.world.later_at(max(self.world.now + delay, not_before), self, answer)

    def _begin_ring(self, ring: Ring, envelope: Signed) -> None:
        if self.ring is not None:
            self.world.count("ring switched")
        self._leave_ring()
        self.ring, self._envelope = ring, envelope
        self.finals = []
        self._computes = 0
        names = [self.world.name(member) for member in ring.members]
        self.world.note(f"{self.name} follows {ring.ring_id.hex()[:6]} of {names}")

    def _leave_ring(self) -> None:
        """My links stay open: what was sent on them still arrives."""
        self.ring = None
        self._envelope = None

    def _follow_successor(self, round_: Round) -> None:
        """A link to the successor exists as long as the ring does, so that its death shows."""
        if self.ring is not None and round_.successor is not None:
            assert self._envelope is not None
            self.world.links.open(self.peer_id, round_.successor, self.ring, self._envelope)

    def _schedule_wake(self, round_: Round) -> None:
        wake = round_.wake_seconds(self.world.now)
        if wake is None or wake == self._wake_seconds:
            return
        self._wake_seconds = wake

        def tick() -> None:
            if self.round is not round_ or self._wake_seconds != wake:
                return
            self._wake_seconds = None
            last, count = self._ticks
            self._ticks = (self.world.now, count + 1 if last == self.world.now else 1)
            assert self._ticks[1] < TICKS_MAX, "the machine wakes itself for ever"
            self.do(round_, round_.tick(self.world.now))

        self.world.later_at(wake, self, tick)

    # Links

    def frame_received(self, link: Link, frame: Send | None) -> str | None:
        """A frame of a ring link; returns why the link is refused, or None."""
        ring_id = link.ring.ring_id
        if frame is None:
            self.statement_received(link.envelope)
        if self.world.is_committed(ring_id, self.head):
            return None  # this ring is committed here: its sender will hear of it
        round_ = self.round
        if round_ is None or self.ring is None or self.ring.ring_id != ring_id:
            self.world.count("link refused")
            return "refused"
        if frame is None:
            return None
        now, chunk, mask, payload = self.world.now, frame.chunk, frame.mask, frame.payload
        if frame.finisher is None:
            actions = round_.token_received(now, ring_id, link.source, chunk, mask, payload)
        else:
            actions = round_.final_received(
                now,
                ring_id,
                link.source,
                chunk,
                mask,
                frame.finisher,
                payload,
                digest_of(payload),
            )
        self.do(round_, actions)
        return None

    def link_failed(self, link: Link, reason: str) -> None:
        """A link of mine broke."""
        round_ = self.round
        if round_ is not None:
            self.do(
                round_,
                round_.link_failed(self.world.now, link.ring.ring_id, link.target, reason),
            )

    def suspect_successor(self) -> None:
        """A wrong suspicion: the link is given up although nothing is wrong with it."""
        if self.round is not None and self.ring is not None and self.round.successor is not None:
            successor = self.round.successor
            for link in self.world.links.of(self.peer_id):
                if link.source == self.peer_id and link.target == successor:
                    link.fail(0.0, "slow")

    @property
    def name(self) -> str:
        return self.world.name(self.peer_id)
