"""Shared steps (`sync = "distro"`): a round begins its ring with a first gradient, takes all its
steps inside the ring, and is committed after the last one.

The ring is at work from the roster on, for as long as its steps take, and training is a part of it.
So a `Ready` promises work: the tokens of a round's steps. The header credits the tokens of those
steps whose averages contain this peer's part. Of conversations only some tokens are trained on, so
there the promise follows the steps that this node has done. The data behind them is known only
then, and the next `Ready` names it for the ledger. A slow peer that is in less than half of the
steps of every round trains on data that no round counts, and leaves them to others
(`return_uncounted_data`).

Only the trainer's momentum is carried from one round to the next (`carried_momentum`). Tokens of
parts that came too late for their step count as dropped (`late`). Tokens of a round without a
commit at this node count as dropped (`missed`).
"""

from __future__ import annotations

import structlog

from gossamer.node.modes.carried_momentum import CarriedMomentum
from gossamer.node.modes.shared_steps import SharedStepRunner, StepTiming
from gossamer.node.modes.sync_mode import (
    Contribution,
    Promise,
    RingDuration,
    RoundOutcome,
    RoundWork,
    Spawn,
    StopSignal,
    SyncMode,
)
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.training.local_training import LocalTraining, LocalTrainings
from gossamer.protocol import limits
from gossamer.protocol.accounting.work_records import LATE
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.sync_sets import SyncSet
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import Place, Shared

log = structlog.get_logger("steps")

MISSED = "missed"
"""Reason under which the account counts the dropped work of a round without a commit here."""


class SharedSteps(SyncMode):
    """The sync mode of shared steps. Each training begins and ends with its round."""

    def __init__(
        self,
        me: PeerId,
        committed: CommittedState,
        payloads: SignPayloads,
        trainings: LocalTrainings,
    ) -> None:
        self.me = me
        self.committed = committed
        self.payloads = payloads
        self.trainings = trainings
        self.timing = StepTiming()
        self.trained_share: float | None = None
        """Part of the tokens of a round's steps that this node trained on in the newest one; None
        before the first."""
        self.momentum = CarriedMomentum(
            me,
            committed,
            trainings.trainer,
            trainings.manifest.stale_rounds,
            trainings.run_in_thread,
        )

    @property
    def ring_duration(self) -> RingDuration:
        """See `SyncMode`.

        Gathering waits for a part of the measured duration, and not only for a part of one
        gradient. Otherwise a peer that takes longer to follow a commit would find the next ring at
        work each time, and stay one round behind for ever.
        """
        manifest = self.trainings.manifest
        as_measured = self.timing.step_seconds * manifest.outer.inner_steps
        return RingDuration(manifest.rounds.round_seconds, as_measured)

    def new_round(self, machine: Round, sync_set: SyncSet, spawn: Spawn) -> RoundWork:
        """See `SyncMode`."""
        return _SharedRound(self, machine, spawn)

    async def place(self) -> Place:
        """See `SyncMode`."""
        return await self.momentum.settle()


class _SharedRound(RoundWork):
    """One round of shared steps. It trains nothing ahead: a step needs the one before it."""

    trains_in_ring = True

    def __init__(self, mode: SharedSteps, machine: Round, spawn: Spawn) -> None:
        self._mode = mode
        self._trainings = mode.trainings
        self._machine = machine
        self._spawn = spawn
        self._runner = SharedStepRunner(
            mode.me,
            mode.committed,
            mode.payloads,
            mode.trainings.trainer,
            machine,
            mode.timing,
            mode.trainings.run_in_thread,
        )
        self._training: LocalTraining | None = None
        self._told_spans: tuple[Span, ...] = ()
        """Data of earlier rounds, which this node's `Ready` named."""

    async def train(self, stop: StopSignal) -> None:
        """See `RoundWork`: returns with the first gradient, taken at the committed state."""
        mode, number = self._mode, self._machine.number
        await self._trainings.run_in_thread(lambda: mode.committed.begin_steps(number))
        await mode.momentum.settle()
        self._training = self._trainings.begin(number, "base")
        self._spawn(self._run_training)
        self._spawn(self._runner.run)
        while not (self.has_work or self._training.is_done):
            if await stop.wait(heeds_others=False):
                return

    async def _run_training(self) -> None:
        assert self._training is not None
        await self._training.run()
        self._runner.trained()

    @property
    def has_work(self) -> bool:
        """See `RoundWork`."""
        return self._runner.has_offer

    async def promise(self) -> Promise:
        """See `RoundWork`: the tokens of all steps of the round."""
        work = self._trainings.work
        self._told_spans = tuple(work.account.state.spans[: limits.SPANS_MAX])
        steps = self._trainings.manifest.outer.inner_steps
        share = self._mode.trained_share
        if share is None:  # the first step is done
            share = min(1.0, work.account.state.under_way / self._step_tokens)
        tokens = max(1, round(share * steps * self._step_tokens))
        return Promise(tokens, steps, 0.0, self._told_spans)

    @property
    def _step_tokens(self) -> int:
        """Tokens of a step, those among them that are only read."""
        manifest = self._trainings.manifest
        return manifest.inner.sequences_per_step * manifest.model.context

    def _note_share(self, training: LocalTraining) -> None:
        """Notes how many of the tokens of a training's steps were trained on."""
        finished = training.finished
        if finished is not None and finished.tokens:
            share = finished.tokens / (finished.steps * self._step_tokens)
            self._mode.trained_share = min(1.0, share)

    def contribution(self, ring: Ring) -> Contribution:
        """See `RoundWork`."""
        return self._runner.follow(ring)

    def machine_changed(self) -> None:
        """See `RoundWork`: the average of a step may have come."""
        self._runner.notify()

    def offered(self, shared: Shared) -> None:
        """See `RoundWork`."""
        if shared.round == self._machine.number:
            self._runner.offered(shared.update)
            self._trainings.orders.notify()

    async def make_way(self) -> None:
        """See `RoundWork`."""
        assert self._training is not None
        await self._training.stop()

    async def end(self, outcome: RoundOutcome) -> None:
        """See `RoundWork`: what was trained becomes an offer, as the round's header finds it."""
        training, machine, work = self._training, self._machine, self._trainings.work
        assert training is not None
        self._runner.close()
        await training.end(machine.head, machine.number)
        self._note_share(training)
        committed = outcome.committed  # it may have come while the training ended
        averages = None
        if committed is not None:
            averages = [each.payload for each in committed.averages]
            self._say_left_out()
        self._mode.momentum.had_parts_in(await self._runner.settle(averages))
        if work.account.carried:
            work.offer(machine.head, machine.number, self._told_spans)

    def _say_left_out(self) -> None:
        """Names members whose signs did not count in half of the round's chunks or more."""
        ring, shared = self._machine.ring, self._mode.committed.shared_parameters
        assert ring is not None
        assert shared is not None
        num_chunks = self._mode.committed.sync_sets.whole.plan.num_chunks
        for position, num_left_out in shared.left_out.items():
            if 2 * num_left_out >= num_chunks:
                log.warning(
                    "a member's updates oppose most others: they have no part in these steps",
                    peer=short(ring.members[position]),
                    chunks=num_left_out,
                    of=num_chunks,
                )

    async def missed(self) -> None:
        """See `RoundWork`."""
        work = self._trainings.work
        if work.account.carried:
            work.drop(MISSED, self._told_spans)
            await self._trainings.return_data(self._told_spans)

    def settled(self) -> None:
        """See `RoundWork`: parts that no step took came too late."""
        work = self._trainings.work
        if work.account.has_work:
            work.drop(LATE, work.account.state.spans)
