"""The life of a node in its run: get the state, then train, average and commit, round after round.

    joining -> syncing -> training -> averaging -> training ...
                  ^          |            |
                  +----------+------------+   a heavier head was seen: take it over
    paused: no trainer, but heads are followed and blocks served; failed: likewise, not wanted.
    finished: no round follows the committed head; the final state is served for a while.
    leaving: one last round, which another peer has to have, then out.

One task runs this loop (`run`). Events from outside only leave a note and wake it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog
import trio

from gossamer.node.base.orders import Orders
from gossamer.node.base.pausing import Hold, UserPause
from gossamer.node.heads.allowed_heads import AllowedHeads
from gossamer.node.heads.fetcher import HeadFetcher
from gossamer.node.heads.heads import Heads
from gossamer.node.heads.prover import HeadProver
from gossamer.node.rounds.active_rounds import ActiveRounds
from gossamer.node.rounds.auditing import Auditing
from gossamer.node.rounds.auditor import Auditor
from gossamer.node.rounds.decisions import DecisionLog, goes_straight_on, is_too_early
from gossamer.node.rounds.evaluation import HeldoutLoss, LossCurve
from gossamer.node.rounds.farewell import Farewell
from gossamer.node.rounds.finish import FinishedRun
from gossamer.node.rounds.following import Follower, Joiner, LeaveRequested
from gossamer.node.rounds.opening import NodeContext, mode_of, open_round
from gossamer.node.rounds.settlement import Settlement, WorkSaver
from gossamer.node.rounds.sum_auditing import SumAuditing
from gossamer.node.rounds.turn import POLL_SECONDS, Audits, Phases, RoundEnd, Turn
from gossamer.node.storage.state.committed import Replayed
from gossamer.node.telemetry.progress import Progress
from gossamer.node.training.local_training import LocalTrainings, RoundPlaces
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.auditing.audits import rounds_between
from gossamer.protocol.rounds.roster import RoundHints
from gossamer.trainer.ipc.messages import Step

log = structlog.get_logger("node")


class Participant:
    """One node in one run.

    It has more than 12 attributes, because it makes the parts that a round needs and hands each its
    components. It has more than 15 public methods: orders come in here, the trainer tells what it
    does, and the status page asks.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        has_bootstrap: bool,
        wait_for_peers: int = 0,
        serve_seconds: float = math.inf,
        orders: Orders | None = None,
    ) -> None:
        """
        Args:
            has_bootstrap: whether this node knows addresses of other peers.
            wait_for_peers: others that have to be ready before the run's first round begins.
            serve_seconds: how long this node stays when the run is finished.
            orders: what keeps the node from training at its start; None: nothing.
        """
        self.context = context
        self.progress = Progress()
        self._has_skipped = False
        """Whether the newest inner step was skipped."""
        self._wait_for_peers = wait_for_peers
        self._orders = orders = orders or Orders()
        self._decisions = DecisionLog()
        committed, swarm, chain_sync = context.committed, context.swarm, context.chain_sync
        metrics, work, trainer = context.metrics, context.work, context.trainer
        self._phases = Phases(self.progress, metrics, swarm, orders)
        allowed = AllowedHeads(committed, context.choice, context.rollbacks, context.pinned_head)
        self._heads = Heads(
            context.manifest.rounds, context.rounds, context.choice, committed, chain_sync, swarm,
            metrics, self.progress, allowed,
        )  # fmt: skip
        chain_sync.records.admits_record = self._heads.side_records.admits
        chain_sync.kept_states = context.rollbacks.parents
        self._head_prover = prover = HeadProver(committed, chain_sync.records, swarm, orders)
        self._head_fetcher = fetcher = HeadFetcher(self._heads, chain_sync, swarm, orders)
        trainings = LocalTrainings(
            context.manifest, trainer, context.feed, work, self.progress, orders,
            context.run_in_thread, RoundPlaces(committed),
        )  # fmt: skip
        self._mode = mode_of(context.me, committed, trainings)
        self._settlement = Settlement(committed, chain_sync, swarm, trainings, allowed.is_void)
        self._losses = LossCurve(context.losses, self.progress, metrics, context.run_in_thread)
        self._saver = WorkSaver(committed, trainings, self._mode, context.health, self._losses.save)
        self.audits = audits_of(context)
        heldout = HeldoutLoss(trainer, context.heldout_paths, self.progress, metrics)
        self._round_end = RoundEnd(
            context, self._settlement, self._saver, heldout, self._heads, self.audits
        )
        self._follower = Follower(
            trainings, self._heads, self._settlement, self._saver, self._phases, context.health
        )
        self._joiner = Joiner(context, self._follower, prover, fetcher, has_bootstrap=has_bootstrap)
        self.rounds = ActiveRounds(context, self._heads, self._head_prover, orders)
        self._head_fetcher.finishing_ring = lambda: self.rounds.finishing_ring
        self._finished_run = FinishedRun(
            context, trainings, self._follower, self._saver, heldout, self.rounds, serve_seconds
        )
        self._farewell = Farewell(
            context, self._heads, self.rounds, self._saver, orders, self._phases, self._decisions
        )

    # Orders

    @property
    def holds(self) -> tuple[Hold, ...]:
        """Everything that keeps the node from training, or will when the present round ends."""
        return self._orders.holds

    @property
    def is_held(self) -> bool:
        """Whether something keeps the node from training now."""
        return self._orders.pause

    def pause(self, order: UserPause = UserPause()) -> None:  # noqa: B008
        """Stops training and frees the device, or does so when the present round ends."""
        self._orders.user_pause = order
        self._orders.leaves_after_round = False
        self._orders.notify()

    def resume(self) -> None:
        """Ends the owner's pause, stays after all where the node was to leave after its round, or
        goes on after a failure of the trainer. What else keeps the node from training stays."""
        self._orders.leaves_after_round = False
        self.pause_is_over()

    def pause_is_over(self) -> None:
        """Ends the owner's pause, whose time is over. Another order of the owner stays."""
        self._orders.user_pause = None
        self._go_on()

    def hold_off(self, holds: Sequence[Hold]) -> None:
        """Sets what keeps the node from training besides the owner's order."""
        if self._orders.others != tuple(holds):
            was_held = self.is_held
            self._orders.others = tuple(holds)
            if was_held:
                self._go_on()
            self._orders.notify()

    def _go_on(self) -> None:
        if not (self.is_held or self.is_finished):
            # The trainer may have failed, or have been suspended at the start, before the loop came
            # to a pause.
            self.context.trainer.resume()
        self._orders.notify()

    @property
    def me(self) -> PeerId:
        """This node's peer id."""
        return self.context.me

    def notify(self) -> None:
        """See `RollbackNode`."""
        self._orders.notify()

    @property
    def has_gone_back(self) -> bool:
        """See `RollbackNode`."""
        return self.context.committed.is_loaded and self._heads.allowed.may_stand(self._heads.mine)

    @property
    def spares_line(self) -> bool:
        """See `RollbackNode`."""
        return self._orders.spares_line

    @property
    def is_finished(self) -> bool:
        """Returns whether this node has the final state of the run."""
        return self._heads.allowed.is_finished

    @property
    def parted_after(self) -> int | None:
        """The round after which the others went a way that this node does not go by itself; see
        `AllowedHeads.parted_after`."""
        living = self.context.swarm.living().keys()
        tips = self.context.committed.chain.tips()
        heads = [head for head in tips if self._heads.signers_of(head) & living]
        return self._heads.allowed.parted_after(heads)

    def leave(self) -> None:
        """Leaves in order: `run` returns when that is done."""
        self._orders.leave = True
        self._orders.notify()

    def finish(self) -> None:
        """Leaves when the present round ends, or at once outside of a round. A later pause, or an
        order to resume, takes that back."""
        if self._orders.is_in_round:
            self._orders.leaves_after_round = True
            self._orders.notify()
        else:
            self.leave()

    @property
    def leaves_after_round(self) -> bool:
        """Returns whether the node leaves when its present round ends."""
        return self._orders.leaves_after_round

    @property
    def is_leaving(self) -> bool:
        """Returns whether the node leaves now, which nothing takes back."""
        return self._orders.leave

    # Events

    def stepped(self, step: Step) -> None:
        """The trainer did an inner step."""
        self.progress.inner_step += 1
        self.context.work.stepped(step.tokens)
        if step.tokens:
            self.progress.loss, self.progress.bits_per_byte = step.loss, step.bits_per_byte
        elif step.skipped and not self._has_skipped:  # of many in a row the first is enough
            log.warning(
                "an inner step is skipped: its loss, gradient or momentum is out of range; the "
                "memory of the training device may be faulty, or the learning rate too high",
                round=step.round,
                step=step.step,
            )
        self._has_skipped = step.skipped

    def replayed(self, replayed: Replayed) -> None:
        """See `ChainSync.replayed`."""
        self._settlement.note(replayed.header, replayed.update.averages)

    # The loop

    async def run(self) -> None:
        """Takes part in the run until asked to leave. Then returns, with everything on disk."""
        await self._losses.load()
        await self.context.samples.load()
        async with trio.open_nursery() as rounds:
            rounds.start_soon(self._head_prover.run)
            rounds.start_soon(self._head_fetcher.run)
            rounds.start_soon(self.audits.run)
            try:
                await self._joiner.join()
                await self._follower.until_trainer_is_up()
                await self._until_peers_are_ready()
                while not self._orders.leave:
                    if await self._is_ready_for_round():
                        await self._take_turn(rounds)
                await self._end_training_ahead()
            except LeaveRequested:
                pass
            await self._farewell.run()
            rounds.cancel_scope.cancel()

    async def _until_peers_are_ready(self) -> None:
        """Waits before the run's first round for as many peers as the operator wants in it.

        Raises:
            LeaveRequested: the node was asked to leave.
        """
        orders, follower, context = self._orders, self._follower, self.context
        try:
            while True:
                phases = [announce.phase for announce in context.swarm.living().values()]
                number = context.committed.entry.round
                decision = is_too_early(number, phases, self._wait_for_peers)
                if not self._decisions.note("does the first round wait for peers", decision):
                    return
                follower.check_leave()
                if orders.pause:
                    self.progress.waits_for = None
                    await follower.while_paused()
                    continue
                if self.progress.waits_for is None:
                    wanted = self._wait_for_peers
                    log.info("the first round waits for other peers", wanted=wanted)
                self.progress.waits_for = f"the first round waits: {decision.reason}"
                self._phases.set("training")
                await orders.wait_to_tick(POLL_SECONDS)
                await follower.catch_up()
        finally:
            self.progress.waits_for = None

    async def _is_ready_for_round(self) -> bool:
        """Does what has to come before a round; False if something came in between."""
        trainer = self.context.trainer
        straight_on = goes_straight_on(
            wants_device=self._orders.wants_device,
            is_trainer_up=trainer.is_up,
            better=self._heads.better(),
        )
        if not self._decisions.note("does the next round go straight on", straight_on):
            await self._end_training_ahead()
        if self.is_finished:
            await self._end_training_ahead()
            await self._finished_run.serve()
            return False
        if self._orders.pause:
            await self._follower.while_paused()
            return False
        if not trainer.is_up:
            await self._follower.until_trainer_is_up()
            return False
        if not await self._follower.catch_up():
            await self._follower.wait_for_disk()
            return False
        if self._orders.pause:
            return False  # perhaps before this node was at the best head
        if not self._heads.allowed.may_stand(self._heads.mine):
            await self._follower.wait_for_state()
            return False
        return not self.is_finished

    async def _take_turn(self, rounds: trio.Nursery) -> None:
        # The hints only: the vectors of the earlier round are to be freed.
        hints = self.rounds.hints
        if hints is None:
            hints = RoundHints(came_late=self.context.committed.entry.round > 0)
        opened = open_round(self.context, self._heads, self._mode, hints, rounds.start_soon)
        await rounds.start(self.rounds.drive, opened.driver)
        self.rounds.begin(opened)
        turn = Turn(
            opened, self._heads, self._orders, self._phases, self._round_end, self._decisions
        )
        self._orders.is_in_round = True
        try:
            await turn.run()
        finally:
            self._orders.is_in_round = False
            if self._orders.leaves_after_round:
                self._orders.leave = True

    async def _end_training_ahead(self) -> None:
        """The next round does not begin now: work that was done ahead for it is carried."""
        entry = self.context.committed.entry
        await self._mode.end_training_ahead(entry.head, entry.round + 1)


def audits_of(context: NodeContext) -> Audits:
    """The audits of the run at this node."""
    committed, swarm = context.committed, context.swarm
    if context.audit_data is not None:
        auditing = Auditing(
            committed, context.rounds, context.choice, swarm, context.metrics,
            rounds_between(context.manifest),
        )  # fmt: skip
        return Auditor(
            auditing, committed, context.trainer, context.audit_data, context.run_in_thread,
            context.me, context.manifest.outer,
        )  # fmt: skip
    if (secrets := context.secrets) is not None:
        return SumAuditing(
            committed, context.rounds, swarm, context.transport, context.metrics,
            context.run_in_thread, secrets, context.work.directory,
        )  # fmt: skip
    return Audits()
