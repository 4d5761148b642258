"""One turn of the loop: train, say ready, average, commit.

A turn ends with the round's commit here, or early when there is something better to do: a heavier
head, a pause, a leave. Whatever was trained by then is carried.

With `overlap` the next round's training begins when this one's is handed to the ring (but in the
warm-up), and the next turn takes it over. If the turn ends early it is stopped, and its work
carried like the rest: there is overlap on the straight way only.

Where a round averages one fragment of the parameters only, `pending` holds the work in the others
until their turn comes, and the trainer goes on from its local parameters: its next round begins
here too, at the latest when this one is committed.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import structlog
import trio

from gossamer.node.modes.contribution import Contribution, contribution_of
from gossamer.node.network.identity import verify
from gossamer.node.rounds.context import NodeContext, Orders, Progress
from gossamer.node.rounds.heads import Heads
from gossamer.node.rounds.local_training import LocalTraining, drop_out_of_range
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.node.rounds.settlement import Settlement
from gossamer.node.telemetry.status import LastRound, LossPoint, Outcome
from gossamer.protocol.codecs.payloads import SignPayloads
from gossamer.protocol.ids import short
from gossamer.protocol.rounds.attempt import Committed
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.rounds.round_rules import NO_HINTS, RoundHints, RoundRules
from gossamer.protocol.state.outer_momentum import norm_of
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL
from gossamer.protocol.wire.statements import Phase, Ready, Span
from gossamer.trainer.ipc.messages import Ranges, Shared, Start

LEAVE_SECONDS = 20.0
"""An orderly leave gives its last round this long; then the work stays on disk as residual."""

POLL_SECONDS = 0.25

log = structlog.get_logger("node")


def first_word(reason: str) -> str:
    """What the metrics count a reason under."""
    return reason.replace(":", " ").split()[0] if reason.strip() else ""


class Turn:
    """One round of one node. `driver` exists from the beginning; `run` does the rest."""

    def __init__(
        self,
        context: NodeContext,
        heads: Heads,
        settlement: Settlement,
        orders: Orders,
        progress: Progress,
        set_phase: Callable[[Phase], None],
        *,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        training: LocalTraining | None = None,
        hints: RoundHints = NO_HINTS,
    ) -> None:
        """
        Args:
            spawn: runs a task that may outlive this turn.
            training: this round's, if it is under way.
            lessons: of the round before.
        """
        self._spawn = spawn
        self._training = training
        self._ahead: LocalTraining | None = None
        """The next round's."""
        self._may_go_on = True
        """Whether the trainer's own parameters are good to go on from."""
        self._fetches_ahead = False
        self._hints = hints
        self._context = context
        self._heads = heads
        self._settlement = settlement
        self._orders = orders
        self._progress = progress
        self._set_phase = set_phase
        self._started_seconds = trio.current_time()
        self._trains_since_seconds = (
            self._started_seconds if training is None else training.started_seconds
        )
        self._sync_set = context.committed.sync_sets.of_round(context.committed.entry.round + 1)
        self._traffic = context.transport.traffic().get(RING_PROTOCOL, (0, 0))
        self.driver = self._new_driver()

    def _new_driver(self) -> RoundDriver:
        context = self._context
        outer, rounds = context.manifest.outer, context.manifest.rounds
        payloads, plan = context.committed.payloads, self._sync_set.plan
        machine = Round(
            me=context.me,
            run_id=context.manifest.run_id,
            parent=context.committed.parent,
            rules=RoundRules(
                payloads,
                outer.chunk_elements,
                plan.num_chunks,
                rounds.gather_seconds,
                rounds.gather_fraction,
                rounds.attempt_seconds,
                rounds.round_seconds if context.manifest.sync == "distro" else 0.0,
                self._steps_seconds,
            ),
            sign=context.identity.sign,
            verify=verify,
            now=self._trains_since_seconds,
            hints=self._hints,
        )
        recent_heads, entry = self._heads.recent(), context.committed.entry
        return RoundDriver(
            machine,
            me=context.me,
            transport=context.transport,
            gossip=context.swarm.gossip,
            plan=plan,
            payloads=payloads,
            new_contribution=self._new_contribution,
            compute=context.committed.compute,
            run_in_thread=context.run_in_thread,
            on_offence=context.swarm.offence,
            on_removed=lambda _peer, reason: context.metrics.ring_skips.add(first_word(reason)),
            expected=lambda: context.swarm.awaited(recent_heads, entry.round, entry.tokens_total),
            reach=context.swarm.reach,
            on_transfer=context.speed.transfer,
            on_changed=self._on_changed,
        )

    @property
    def _steps_seconds(self) -> float:
        """What the members of a ring train in it, as the last one had it."""
        return 0.0

    def _new_contribution(self, ring: Ring) -> Contribution:
        """A ring begins."""
        context, payloads = self._context, self._context.committed.payloads
        assert not isinstance(payloads, SignPayloads)
        return contribution_of(
            context.trainer.pending[self._sync_set.within],
            self._sync_set.plan,
            payloads,
            ring,
            context.me,
            context.manifest.outer.error_decay,
        )

    def _on_changed(self) -> None:
        """The round's machine may have changed."""

    def shared(self, shared: Shared) -> None:
        """The trainer has a part for a shared step: in such rounds only."""

    async def run(self) -> LocalTraining | None:
        """Trains and averages once; returns the next round's training if it is under way.

        The driver has to be running. Cancelled: the round is given up without a word to the others.
        """
        driver, metrics = self.driver, self._context.metrics
        try:
            await self._train()
            trained = trio.current_time()
            metrics.observe_round_phase("training", trained - self._started_seconds)
            if self._has_work and self._heads.better() is None:
                driver.ready(await self._ready())
                await self._go_on()
            outcome = await self._outcome()
        except BaseException:
            driver.cancel()
            raise
        await self._end_work()
        self._note_ring()
        if outcome is None:
            driver.leave()
            if self._ahead is not None:
                await self._ahead.end(driver.machine.head, driver.machine.number)
                self._ahead = None
            await self._missed()
            if driver.is_spoilt:
                await drop_out_of_range(self._context)
            await self._settlement.save()
        else:
            metrics.observe_round_phase("averaging", trio.current_time() - trained)
            await self._commit(outcome)
        if outcome is not None or driver.machine.ring is not None:
            self._report(outcome)
        return self._ahead

    @property
    def _has_work(self) -> bool:
        """Whether there is something to be handed to a ring."""
        return self._context.work.account.carried > 0

    async def _go_on(self) -> None:
        """The work is handed to the ring."""
        self._set_phase("averaging")
        outer = self._context.manifest.outer
        # Not in the warm-up, whose short rounds are to keep the peers together.
        is_warmup = outer.is_warmup(self.driver.machine.number + 1)
        if outer.overlap and self._may_go_on and not is_warmup:
            if not self._hints.came_late:  # else there is no time to be lost
                await self._evaluate()  # the device has nothing else to do
            self._ahead = self._begin(self.driver.machine.number + 1, "local")

    async def _end_work(self) -> None:
        """The round is over here: what still belongs to it ends, and `pending` may change then."""
        await self.driver.close_work()

    async def _missed(self) -> None:
        """The round is over, and not committed here. What was trained is carried."""

    # Training

    def _begin(self, number: int, start: Start, new: Ranges = ()) -> LocalTraining:
        training = LocalTraining(
            self._context, self._progress, self._orders, number, start=start, new=new
        )
        self._spawn(training.run)
        return training

    async def _train(self) -> None:
        """Inner steps, until done or there is a reason to stop; the work is in `pending`."""
        machine = self.driver.machine
        self._set_phase("training")
        training = self._training or self._begin(machine.number, "base")
        while not training.is_done:
            await self._orders.wait(POLL_SECONDS)
            if not training.is_done and self._should_stop_training():
                self._fetch_ahead()
                await training.stop()
        await training.collect(machine.head, machine.number)
        self._may_go_on = not training.is_spoilt

    def _fetch_ahead(self) -> None:
        """If others committed this round the line need not wait until it has ended here."""
        if self._heads.better() is not None and not self._fetches_ahead:
            self._fetches_ahead = True
            self._spawn(self._heads.fetch_ahead)

    def _should_stop_training(self) -> bool:
        if self._orders.leave or self._orders.pause or self._heads.better() is not None:
            return True
        deadline = self.driver.machine.stop_training_seconds
        return deadline is not None and trio.current_time() >= deadline

    # Averaging

    async def _ready(self) -> Ready:
        machine, norm = self.driver.machine, 0.0
        if self._context.manifest.outer.displacement:
            pending = self._context.trainer.pending[self._sync_set.within]
            norm = await self._context.run_in_thread(lambda: norm_of(pending))
        offer = self._context.work.offer(machine.head, machine.number)
        return self._ready_with(offer.tokens, self._progress.inner_step, norm, offer.spans)

    def _ready_with(self, tokens: int, steps: int, norm: float, spans: tuple[Span, ...]) -> Ready:
        """A new one, for this turn's round."""
        swarm, machine, loss = self._context.swarm, self.driver.machine, self._progress.loss
        return Ready(
            incarnation=swarm.incarnation,
            sequence=swarm.new_sequence(),
            round=machine.number,
            head=machine.head,
            tokens=tokens,
            steps=steps,
            loss=loss if loss is not None else 0.0,
            norm=norm,
            spans=spans,
        )

    def _note_ring(self) -> None:
        """What was offered may be in the ring that was followed, whether it is committed or not."""
        ring_id, contribution = self.driver.ring_id, self.driver.contribution
        if ring_id is None:
            self._context.work.withdraw()
        elif contribution is not None:
            self._context.work.followed(ring_id, contribution, self._sync_set.first_chunk)

    async def _outcome(self) -> Committed | None:
        """Waits for the commit here; None when the round is not to be waited for any more."""
        driver = self.driver
        leave_seconds = math.inf
        while driver.committed is None:
            if self._orders.leave or self._orders.pause:
                await self._make_way()
            if self._orders.leave:
                leave_seconds = min(leave_seconds, trio.current_time() + LEAVE_SECONDS)
            if driver.is_spoilt:
                return None
            if self._is_overtaken():
                self._fetch_ahead()
                return None
            if trio.current_time() > leave_seconds:
                return None
            if not driver.machine.is_ready and self._heads.better() is None:
                return None  # nothing was trained: the next turn tries again
            with trio.move_on_after(POLL_SECONDS):
                await driver.finished.wait()
        return driver.committed

    async def _make_way(self) -> None:
        """The device is wanted; the ring goes on."""
        if self._ahead is not None:
            await self._ahead.stop()

    def _is_overtaken(self) -> bool:
        """Whether a head is committed elsewhere that this round's own result would not win over."""
        machine = self.driver.machine
        return self._heads.is_overtaken(
            self.driver.ring_id,
            machine.attainable_tokens,
            is_at_work=machine.successor is not None,
        )

    async def _commit(self, committed: Committed) -> None:
        context = self._context
        started = trio.current_time()
        payloads = [average.payload for average in committed.averages]
        proposal = committed.proposal
        await context.trainer.base_is_read()
        await context.run_in_thread(
            lambda: context.committed.install(committed.commit, proposal, payloads)
        )
        is_whole = self._sync_set is context.committed.sync_sets.whole
        new = tuple((part.start, part.stop) for part in self._sync_set.ranges)
        goes_on = self._ahead is not None
        if goes_on:
            await context.trainer.rebase(new)
        self._settlement.note(proposal.header, proposal.update.averages)
        await self._settlement.settle()
        context.swarm.gossip.publish_commit(committed.commit)
        self._heads.note_new()
        await self._settled()
        await self._settlement.save()
        context.metrics.observe_round_phase("committing", trio.current_time() - started)
        if not goes_on:
            await self._evaluate()
            if not is_whole and self._may_go_on:
                self._ahead = self._begin(proposal.header.round + 1, "local", new)

    async def _evaluate(self) -> None:
        await self._settlement.evaluate(trio.current_time() - self._trains_since_seconds)

    async def _settled(self) -> None:
        """What of mine the round took is known."""
        await self._settlement.drop_if_stale()

    def _report(self, outcome: Committed | None) -> None:
        machine, progress = self.driver.machine, self._progress
        members = machine.ring.members if machine.ring is not None else ()
        result: Outcome = "missed" if outcome is None else "committed"
        contributors: tuple[str, ...] = ()
        if outcome is not None:
            header = outcome.proposal.header
            contributors = tuple(m.peer_id for m in header.members if m.tokens > 0)
        seconds = trio.current_time() - self._started_seconds
        sent, received = self._context.transport.traffic().get(RING_PROTOCOL, (0, 0))
        progress.last_round = LastRound(
            round=machine.number,
            members=tuple(members),
            contributors=contributors,
            duration_seconds=seconds,
            bytes_sent=sent - self._traffic[0],
            bytes_received=received - self._traffic[1],
            outcome=result,
        )
        self._context.metrics.end_round(result, len(members))
        heldout_loss = self._settlement.take_heldout_loss()
        progress.history.add(
            LossPoint(round=machine.number, loss=progress.loss, heldout_loss=heldout_loss)
        )
        log.info(
            f"round {machine.number} {result}",
            peers=len(members),
            loss=None if progress.loss is None else round(progress.loss, 3),
            seconds=round(seconds, 2),
            head=short(self._context.committed.head),
        )
