"""One turn of a peer's loop: train, say ready, average, commit.

With overlap the next round's training begins when this one's is handed to the ring. If its turn
does not follow straight on, what was done for it is carried like the rest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gossamer.node.heads.heads import BetterHead
from gossamer.node.rounds.decisions import (
    Decision,
    RingProgress,
    gives_up_round,
    is_overtaken,
    offers_without_training,
    stops_training,
)
from gossamer.node.rounds.turn import POLL_SECONDS
from gossamer.protocol import limits
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.actions import Committed, Signer
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.roster import RoundHints, RoundRules
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import credits_of
from gossamer.protocol.wire.statements import Ready
from tests.sim.simulator.driver import Driver
from tests.sim.simulator.scenario import CHUNK_BYTES

if TYPE_CHECKING:
    from tests.sim.simulator.peer import Peer

INNER_STEPS = 200
"""Of a round, if the peer is not stopped before."""

STEP_TOKENS = (1, 5)
ROUND_TOKENS = INNER_STEPS * sum(STEP_TOKENS) // 2
"""See `RoundRules.round_tokens`. Some peers that did all steps have less than half of it."""

ROUND_SECONDS = 30.0
"""See `RoundRules.round_seconds`: more than a round trains in most worlds."""


class _Rules(RoundRules):
    """A chunk takes its time on a line whatever the world's payloads are."""

    def chunk_bytes(self, num_members: int) -> int:
        """See `RoundRules`."""
        return CHUNK_BYTES


class Training:
    """The inner steps of one round of one peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.began_seconds = peer.world.now
        self.num_steps = INNER_STEPS
        self._seconds = peer.world.uniform(peer.machine.train_seconds)
        peer.feed.prepare(INNER_STEPS * STEP_TOKENS[1] + peer.life)

    @property
    def done_seconds(self) -> float:
        """World's time at which the last step is done."""
        return self.began_seconds + self._seconds * self.num_steps / INNER_STEPS

    def stop(self) -> None:
        """The step under way is the last one."""
        step_seconds = self._seconds / INNER_STEPS
        num_steps = int((self._peer.world.now - self.began_seconds) / step_seconds) + 1
        self.num_steps = min(self.num_steps, num_steps)

    def collect(self, head: Digest, number: int) -> None:
        """What was done is carried, as work on a head, for that round."""
        peer = self._peer
        tokens = self.num_steps * peer.world.random.randint(*STEP_TOKENS) + peer.life
        # Offers of two lives on one head with the same number of tokens could not be told apart:
        # the newest that fits is taken (`WorkAccount`): work is rather lost than counted twice.
        account = peer.work.account
        while account.carried + tokens in {offer.tokens for offer in account.state.offers}:
            tokens += 1
        peer.work.trained(head, number, tokens, peer.feed.take(tokens))


class Turn:
    """One round of one peer."""

    def __init__(self, peer: Peer, *, training: Training | None, hints: RoundHints) -> None:
        """`training`: this round's, if it is under way."""
        world, head = peer.world, peer.heads.head
        self._training = training or Training(peer)
        self.ahead: Training | None = None
        """The next round's."""
        scenario, checks = world.scenario, world.checks
        number = checks.round_of(head) + 1
        credited = credits_of(checks.headers[head]) if head in checks.headers else {}
        wronged = world.wronged_of(peer, number)
        doubted, unfair = world.doubted_by(peer, number), world.unfair_to(peer, number)
        self._peer = peer
        self._world = world
        self._is_new_training = training is None
        machine = Round(
            signer=Signer(peer.peer_id, world.run_id, peer.sign),
            parent=Parent(
                head, checks.round_of(head), checks.tokens_of(head), checks.ledgers[head]
            ),
            rules=_Rules(
                world.mode.payloads,
                limits.CHUNK_ELEMENTS_MIN,
                scenario.num_chunks,
                scenario.gather_seconds,
                scenario.gather_fraction,
                scenario.attempt_seconds,
                accusers=scenario.accusers,
                round_seconds=ROUND_SECONDS,
                round_tokens=0 if world.mode.payloads.are_steps else ROUND_TOKENS,
            ),
            verify=checks.verify,
            now=peer.now - (world.now - self._training.began_seconds),
            hints=hints._replace(
                missed=tuple(peer for peer in hints.missed if peer not in credited),
                doubted=doubted,
                suspected=world.suspected_by(peer, number),
                unfair=unfair,
                wronged=wronged,
            ),
        )
        self.driver = Driver(peer, machine, self._committed)
        self._is_over = False
        self._is_training = True
        self._is_stopping = False
        self._offer: int | None = None
        self._progress = RingProgress()

    def begin(self) -> None:
        peer = self._peer
        self._world.note(f"{peer.name} begins round {self.driver.machine.number}")
        peer.set_phase("training")
        self.driver.begin()
        if self._offers_without_training():
            self._world.count("carried work offered without training")
            peer.expected_now = peer.expected()
            self.driver.expect(peer.expected_now)
            self._is_training = False
            self._training.num_steps = 0
            self._say_ready()
        else:
            peer.at(self._training.done_seconds, self._trained)
        self._poll()

    def _offers_without_training(self) -> bool:
        """Whether the round has the carried work alone. A training that runs already goes on."""
        account = self._peer.work.account
        missed = self.driver.machine.number - account.state.oldest_round if account.carried else 0
        decision = offers_without_training(max(0, missed))
        return self._is_new_training and decision.holds

    def _poll(self) -> None:
        if not self._is_over:
            self._peer.later(POLL_SECONDS, self._poll)
            self.consider()

    # Training

    def _stop(self) -> None:
        if self._is_over or not self._is_training or self._is_stopping:
            return
        self._is_stopping = True
        self._training.stop()
        self._peer.at(self._training.done_seconds, self._trained)

    def _trained(self) -> None:
        """The inner steps are done, or the last one after it was told to stop."""
        if self._is_over or not self._is_training:
            return
        self._is_training = False
        peer, machine = self._peer, self.driver.machine
        self._training.collect(peer.heads.head, machine.number)
        if peer.heads.better() is None:
            self._say_ready()
        if not self._is_over:
            self.consider()

    def _say_ready(self) -> None:
        peer, machine = self._peer, self.driver.machine
        offer = peer.work.offer(peer.heads.head, machine.number)
        if offer is None:
            return
        self._offer = offer.number
        peer.set_phase("averaging")
        ready = Ready(
            incarnation=peer.life,
            sequence=peer.new_sequence(),
            round=machine.number,
            head=machine.head,
            tokens=offer.tokens,
            steps=self._training.num_steps,
            loss=2.5,
            norm=1.0,
            spans=offer.spans,
            root=self._world.mode.root_of(peer.work.offered_vector(machine.number)),
        )
        if self._world.scenario.overlap:
            self.ahead = Training(peer)
        self.driver.ready(ready)

    # Averaging

    def consider(self) -> None:
        """Something changed: is there something better to do?"""
        if self._is_over:
            return
        better, machine, now = self._peer.heads.better(), self.driver.machine, self._peer.now
        if self._is_training:
            if stops_training(
                wants_device=False,
                better=better,
                deadline_seconds=machine.stop_training_seconds,
                now=now,
            ).holds:
                self._stop()
        elif gives_up_round(
            self._overtaken(better), now, math.inf, is_ready=machine.is_ready, better=better
        ).holds:
            self.leave()
            self._peer.later(0.0, self._peer.proceed_after(self))

    def _overtaken(self, better: BetterHead | None) -> Decision:
        """Whether a head is committed elsewhere that makes this round not worth waiting for."""
        if better is None:
            return Decision(False, "no better head is known")
        checks, machine, mine = self._world.checks, self.driver.machine, self._peer.heads.head
        first = checks.path(mine, better.head)[-1:]
        ring_id = None if machine.ring is None else machine.ring.ring_id
        self._progress.look(self._peer.now, ring_id, machine.num_averages)
        me = self._peer.peer_id
        is_finishing = machine.successor is not None and any(
            checks.headers[head].ring_id == ring_id
            and (head == machine.proposed_head or me not in checks.signers_of(head))
            for head in first
        )
        until = self._progress.finishing_until(better.since_seconds)
        is_on_mine = not checks.path(better.head, mine)
        decision = is_overtaken(
            better,
            checks.choice.attainable(mine, better.head, machine.attainable),
            self._peer.now,
            is_on_mine=is_on_mine,
            finishing_until=until if is_finishing else None,
        )
        self._world.count("head held back", not decision.holds)
        return decision

    def leave(self) -> None:
        """The ring has to do without this peer."""
        self._is_over = True
        self.driver.leave()
        self._keep_for_audits()
        if self._offer is not None and self.driver.machine.ring is None:
            self._peer.work.withdraw(self._offer)
        self.end_ahead(self.driver.machine.head, self.driver.machine.number)
        self._peer.work.tidy()

    def _keep_for_audits(self) -> None:
        """The others may have committed the ring of this peer."""
        checks, better = self._world.checks, self._peer.heads.better()
        if better is not None:
            first = checks.path(self._peer.heads.head, better.head)[-1]
            checks.audits.keep(self._peer.peer_id, self.driver.machine, checks.headers[first])

    def end_ahead(self, head: Digest, number: int) -> None:
        """The next round does not follow straight on: what was done for it is carried."""
        if self.ahead is not None:
            self._world.count("trained ahead in vain")
            self.ahead.stop()
            self.ahead.collect(head, number)
            self.ahead = None

    def _committed(self, committed: Committed) -> None:
        self._is_over = True
        peer = self._peer
        assert self.driver.ring is not None
        assert self.driver.contribution is not None
        header = committed.proposal.header
        head = header.digest
        self._world.checks.note_commit(peer, committed)
        self._world.checks.audits.keep(peer.peer_id, self.driver.machine, header)
        peer.heads.know(head, committed.commit)
        peer.heads.disk.applied.add(head)
        place = self.driver.ring.members.index(peer.peer_id)
        chunks = sum(
            1 << chunk
            for chunk, average in enumerate(committed.averages)
            if average.mask >> place & 1
        )
        peer.work.taken(self.driver.contribution, header.round, chunks)
        peer.heads.install(head)
        peer.work.moved([], [head])
        peer.point("settled")
        peer.gossip_commit(committed.commit, head)
        peer.heads.note_new()
        peer.work.tidy()
        peer.later(0.0, peer.proceed_after(self))
