"""One turn of the node's loop (train, say ready, average, commit), and the phases that it sets.

A turn ends with the round's commit at this node, or early if there is something better to do: a
heavier head, a pause, a leave. Work that was trained by then is carried, as the sync mode says
(`modes.sync_mode`). `RoundEnd` does what comes after: it installs the result, settles, saves,
evaluates and reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import structlog
import trio

from gossamer.node.base.orders import Orders
from gossamer.node.base.pausing import PauseReason
from gossamer.node.heads.branches import RingAtWork
from gossamer.node.heads.heads import BetterHead, Heads
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.auditing import AuditCount
from gossamer.node.rounds.decisions import (
    Decision,
    DecisionLog,
    RingProgress,
    gives_up_round,
    is_overtaken,
    offers_without_training,
    stops_training,
)
from gossamer.node.rounds.evaluation import HeldoutLoss
from gossamer.node.rounds.opening import NodeContext, OpenRound
from gossamer.node.rounds.settlement import Settlement, WorkSaver
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress
from gossamer.node.telemetry.status import LastRound, Outcome
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.state.chain import Header, lost_members
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL
from gossamer.protocol.wire.statements import AT_WORK, Phase

LEAVE_SECONDS = 20.0
"""An orderly leave gives its last round this long; then the work stays on disk and is carried."""

POLL_SECONDS = 0.25
"""Interval at which a waiting turn looks for changes without an event: a deadline, a better head,
an order."""

log = structlog.get_logger("node")


class Phases:
    """Sets the node's phase and tells status, metrics and the swarm."""

    def __init__(self, progress: Progress, metrics: Metrics, swarm: Swarm, orders: Orders) -> None:
        self.progress = progress
        self._metrics = metrics
        self._swarm = swarm
        self._orders = orders

    def set(self, phase: Phase) -> None:
        """Sets a phase, announces it if it is new, and wakes the tasks that wait for news."""
        progress = self.progress
        if phase != "paused":
            progress.paused_reason = None
        if phase != progress.phase:
            before, progress.phase = progress.phase, phase
            self._metrics.set_phase(phase)
            # A phase that stays needs no announcement besides the regular ones. A loop that sets it
            # at every wake would answer each announcement heard with one of its own.
            if not (before in AT_WORK and phase in AT_WORK):
                # Those two say the same to a peer that waits for this node, or looks at its head.
                self._swarm.announce()
        self._orders.notify()

    def pause(self, reason: PauseReason) -> None:
        """Sets the phase `paused`, with the reason that status and metrics show."""
        self.progress.paused_reason = reason
        self.set("paused")


class Turn:
    """One round of one node (a `StopSignal` for its training)."""

    def __init__(
        self,
        opened: OpenRound,
        heads: Heads,
        orders: Orders,
        phases: Phases,
        round_end: RoundEnd,
        decisions: DecisionLog,
    ) -> None:
        self._opened = opened
        self._driver = opened.driver
        self._heads = heads
        self._orders = orders
        self._phases = phases
        self._round_end = round_end
        self._decisions = decisions

    async def run(self) -> None:
        """Trains and averages once.

        The driver has to be running. Cancellation gives the round up without a word to the others.
        """
        opened, driver, metrics = self._opened, self._driver, self._round_end.metrics
        started_seconds = trio.current_time()
        try:
            self._phases.set("training")
            await self._train()
            trained_seconds = trio.current_time()
            metrics.observe_round_phase("training", trained_seconds - started_seconds)
            if opened.work.has_work and self._heads.better() is None:
                opened.say_ready(await opened.work.promise(), self._phases.progress.loss)
                await self._go_on()
            outcome = await self._outcome()
        except BaseException:
            driver.cancel()
            raise
        await self._end_work()
        opened.note_ring()
        if outcome is None:
            await self._round_end.missed(opened)
        else:
            metrics.observe_round_phase("averaging", trio.current_time() - trained_seconds)
            await self._round_end.committed(opened, outcome)
        if outcome is not None or driver.machine.ring is not None:
            self._round_end.report(opened, outcome, started_seconds)

    async def _train(self) -> None:
        work = self._opened.work
        decision = offers_without_training(work.rounds_missed)
        if self._decisions.note("does the round begin without training", decision):
            await work.skip_training()
        else:
            await work.train(self)

    async def wait(self, *, heeds_others: bool) -> bool:
        """See `StopSignal`."""
        await self._orders.wait(POLL_SECONDS)
        decision = stops_training(
            wants_device=self._orders.wants_device,
            better=self._heads.better(),
            deadline_seconds=self._driver.machine.stop_training_seconds if heeds_others else None,
            now=trio.current_time(),
        )
        return self._decisions.note("does the training stop early", decision)

    async def _go_on(self) -> None:
        """This node's work is handed to the ring."""
        opened = self._opened
        if opened.work.trains_in_ring:
            return
        self._phases.set("averaging")
        has_time = not opened.hints.came_late  # a peer that came late has no time to lose
        if has_time:
            # The device has nothing else to do.
            await self._round_end.sample(opened, self._driver.machine.number - 1)
        if opened.work.may_train_ahead and not self._orders.leaves_after_round:
            if has_time:
                await self._round_end.evaluate(opened, self._driver.machine.number - 1)
            opened.work.train_ahead()

    async def _outcome(self) -> Committed | None:
        """Waits for the commit at this node; None if the round is not worth waiting for."""
        driver, orders = self._driver, self._orders
        leave_seconds = math.inf
        progress = RingProgress()
        while driver.committed is None:
            if orders.wants_device:
                await self._opened.work.make_way()
            if orders.leave:
                leave_seconds = min(leave_seconds, trio.current_time() + LEAVE_SECONDS)
            if driver.is_spoilt:
                return None
            better = self._heads.better()
            progress.look(trio.current_time(), driver.ring_id, driver.machine.num_averages)
            overtaken = is_round_overtaken(
                self._heads,
                better,
                progress,
                driver.machine.attainable,
                None if driver.machine.successor is None else driver.ring_at_work,
            )
            decision = gives_up_round(
                overtaken,
                trio.current_time(),
                leave_seconds,
                is_ready=driver.machine.is_ready,
                better=better,
            )
            if self._decisions.note("is the round given up", decision):
                return None
            with trio.move_on_after(POLL_SECONDS):
                await driver.finished.wait()
        return driver.committed

    async def _end_work(self) -> None:
        """The training that belongs to this round ends, and `pending` may change afterwards."""
        if not self._opened.work.trains_in_ring:
            await self._driver.close_work()
        await self._opened.work.end(self._driver)


def is_round_overtaken(
    heads: Heads,
    better: BetterHead | None,
    progress: RingProgress,
    weights: Mapping[PeerId, int],
    ring: RingAtWork | None,
) -> Decision:
    """Returns whether a better head makes the present round not worth waiting for.

    Args:
        better: the best head; None if it is this node's own.
        progress: of the ring that this node follows.
        weights: the members that may yet sign that ring's commit, each with the tokens of its work.
        ring: that ring, while this node still passes its chunks on.
    """
    if better is None:
        return Decision(False, "no better head is known")
    is_finishing = heads.branches.is_by_way_of(ring, better.head)
    return is_overtaken(
        better,
        heads.attainable(better, weights),
        trio.current_time(),
        is_on_mine=heads.branches.is_on_mine(better.head),
        finishing_until=progress.finishing_until(better.since_seconds) if is_finishing else None,
    )


class Audits:
    """The audits that a node makes and hears of: none. Runs with audits have a subclass each."""

    async def run(self) -> None:
        """Makes audits beside the rounds, until cancelled."""

    async def note(self, opened: OpenRound, outcome: Committed) -> None:
        """A round is committed; the state and this node's work are still those before it."""

    async def missed(self, opened: OpenRound, header: Header) -> None:
        """The others committed a round that this node gave up."""

    async def measure(self) -> None:
        """The device has nothing else to do: makes the audit that is due."""

    def count_of(self, peer: PeerId) -> AuditCount:
        """Returns the verdicts on the work of a peer that this node has heard, its own included."""
        return AuditCount()


class RoundEnd:
    """Ends this node's rounds. It lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        settlement: Settlement,
        saver: WorkSaver,
        heldout: HeldoutLoss,
        heads: Heads,
        audits: Audits,
    ) -> None:
        self.metrics = context.metrics
        self.progress = heldout.progress
        self._settlement = settlement
        self._saver = saver
        self._heldout = heldout
        self._samples = context.samples
        self._heads = heads
        self._transport = context.transport
        self._audits = audits
        self._traffic = (0, 0)
        """Bytes that rings had sent and received when the last round was reported."""

    async def evaluate(self, opened: OpenRound, round_number: int) -> None:
        """Evaluates on held-out text, and audits a member, if that is due. `round_number`: of the
        present state."""
        await self._audits.measure()
        seconds = trio.current_time() - opened.training_since_seconds
        await self._heldout.evaluate(round_number, seconds)

    async def sample(self, opened: OpenRound, round_number: int) -> None:
        """Has the model write for its owner, if that is due. `round_number`: of its state."""
        seconds = trio.current_time() - opened.training_since_seconds
        await self._samples.take(round_number, seconds)

    async def missed(self, opened: OpenRound) -> None:
        """The round has no commit at this node: its work is settled without one."""
        opened.driver.leave()
        better = self._heads.better()
        first = None if better is None else self._heads.branches.first_of(better.head)
        if first is not None:
            await self._audits.missed(opened, first)
        await opened.work.missed()
        if opened.driver.is_spoilt:
            await self._settlement.drop_out_of_range()
        await self._saver.save()

    async def committed(self, opened: OpenRound, outcome: Committed) -> None:
        """Makes the round's result the committed state, and settles its work with it."""
        started = trio.current_time()
        await self._audits.note(opened, outcome)
        await self._settlement.install(outcome)
        await opened.work.rebase()
        await self._settlement.take(outcome)
        # Two parts of a ring that lost each other may be at two heads, and have to say so.
        is_whole = not lost_members(outcome.commit)
        self._heads.note_new(outcome.proposal.header if is_whole else None)
        opened.work.settled()
        await self._settlement.drop_if_stale()
        await self._saver.save()
        self.metrics.observe_round_phase("committing", trio.current_time() - started)
        if not opened.work.is_ahead:
            number = outcome.proposal.header.round
            await self.evaluate(opened, number)
            if opened.work.trains_in_ring:
                await self.sample(opened, number)  # no time is better
        opened.work.go_on()

    def report(self, opened: OpenRound, outcome: Committed | None, started_seconds: float) -> None:
        """Shows a round that is over in status, metrics and log.

        Args:
            outcome: None for a round without a commit at this node.
            started_seconds: local time at its start.
        """
        machine, progress = opened.driver.machine, self.progress
        members = machine.ring.members if machine.ring is not None else ()
        result: Outcome = "missed" if outcome is None else "committed"
        contributors: tuple[str, ...] = ()
        if outcome is not None:
            header = outcome.proposal.header
            contributors = tuple(m.peer_id for m in header.members if m.tokens > 0)
        seconds = trio.current_time() - started_seconds
        if outcome is not None:
            opened.took(seconds)
        before, self._traffic = self._traffic, self._transport.traffic().get(RING_PROTOCOL, (0, 0))
        progress.last_round = LastRound(
            round=machine.number,
            members=tuple(members),
            contributors=contributors,
            duration_seconds=seconds,
            bytes_sent=self._traffic[0] - before[0],
            bytes_received=self._traffic[1] - before[1],
            outcome=result,
        )
        self.metrics.end_round(result, len(members))
        loss = progress.end_round(machine.number).loss
        log.info(
            f"round {machine.number} {result}",
            peers=len(members),
            loss=None if loss is None else round(loss, 3),
            seconds=round(seconds, 2),
            head=short(self._heads.mine),
            fields={"event": "round ended", "round": machine.number, "outcome": result},
        )
