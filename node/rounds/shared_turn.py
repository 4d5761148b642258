"""One turn of a `distro` run: get ready with a first gradient, take the round's steps, commit.

The ring is at work from the roster on, for as long as its steps take, and training is a part of it.
So a `Ready` promises work: a round's steps. What the header credits is what is really in the
finals: the tokens of the steps that have a part of mine. The data behind them is known only then,
and is told to the ledger with the next `Ready`.

Nothing is carried from one round to the next but the trainer's momentum (`carried_momentum`).
Tokens of parts that came too late for their step are accounted for as dropped ("late"), those of a
round that was not committed as dropped ("missed").
"""

from __future__ import annotations

from gossamer.node.modes.contribution import Contribution
from gossamer.node.modes.shared_steps import SharedStepRunner, StepTiming
from gossamer.node.rounds.local_training import LocalTraining
from gossamer.node.rounds.turn import POLL_SECONDS, Turn
from gossamer.protocol import limits
from gossamer.protocol.accounting.work_account import LATE
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.wire.statements import Ready, Span
from gossamer.trainer.ipc.messages import Shared

MISSED = "missed"


class SharedTurn(Turn):
    """One round of shared steps of one node."""

    def __init__(self, *arguments: object, timing: StepTiming, **others: object) -> None:
        """`timing` outlives the turn; all else as for `Turn`."""
        self._timing = timing
        super().__init__(*arguments, **others)  # type: ignore[arg-type]
        self._shared = SharedStepRunner(self._context, self.driver.machine, timing)
        self._local: LocalTraining | None = None
        self._told_spans: tuple[Span, ...] = ()
        """Data that my `Ready` named: of rounds before."""

    @property
    def _steps_seconds(self) -> float:
        """Else nobody would wait for longer than a part of one gradient: who takes longer to follow
        a commit would find the next ring at work each time, one round behind for ever."""
        return self._timing.step_seconds * self._context.manifest.outer.inner_steps

    def shared(self, shared: Shared) -> None:
        if shared.round == self.driver.machine.number:
            self._shared.offered(shared.update)
            self._orders.notify()

    def _on_changed(self) -> None:
        self._shared.ring()

    def _new_contribution(self, ring: Ring) -> Contribution:
        return self._shared.follow(ring)

    async def _train(self) -> None:
        """The first gradient, from the committed state: with it in hand I am ready."""
        context, number = self._context, self.driver.machine.number
        self._set_phase("training")
        await context.run_in_thread(lambda: context.committed.begin_steps(number))
        await self._settlement.momentum.settle()
        self._local = self._begin(number, "base")
        self._spawn(self._shared.run)
        while not (self._shared.has_offer or self._local.is_done):
            await self._orders.wait(POLL_SECONDS)
            if self._orders.leave or self._orders.pause or self._heads.better() is not None:
                return

    @property
    def _has_work(self) -> bool:
        return self._shared.has_offer

    async def _ready(self) -> Ready:
        manifest = self._context.manifest
        self._told_spans = tuple(self._context.work.account.state.spans[: limits.SPANS_MAX])
        steps = manifest.outer.inner_steps
        tokens = steps * manifest.inner.sequences_per_step * manifest.model.context
        return self._ready_with(tokens, steps, 0.0, self._told_spans)

    async def _go_on(self) -> None:
        """Its part in the steps is `SharedStepRunner`'s."""

    async def _make_way(self) -> None:
        assert self._local is not None
        await self._local.stop()

    def _is_overtaken(self) -> bool:
        assert self._local is not None
        if self._local.is_done:
            self._shared.trained()
        return super()._is_overtaken()

    async def _end_work(self) -> None:
        """What was trained becomes an offer, as the round's header will find it.

        The parts of steps are bytes of the trainer, so no thread reads `pending` here.
        """
        local, machine, work = self._local, self.driver.machine, self._context.work
        assert local is not None
        self._shared.close()
        await local.end(machine.head, machine.number)
        committed = self.driver.committed
        averages = (
            None if committed is None else [average.payload for average in committed.averages]
        )
        rings = await self._shared.settle(averages)
        self._settlement.momentum.had_parts_in(rings)
        if work.account.carried:
            work.offer(machine.head, machine.number, self._told_spans)

    async def _missed(self) -> None:
        context = self._context
        if context.work.account.carried:
            context.work.drop(MISSED, self._told_spans)
            # The data behind it goes back to the pool, from where we may take it again.
            await context.trainer.forget()
            context.feed.forget_progress()
            context.feed.carry(self._told_spans)

    async def _settled(self) -> None:
        work = self._context.work
        if work.account.has_work:
            work.drop(LATE, work.account.state.spans)
