"""The end of a run at one node: the device is free, and others get the final state for a while.

Every peer concludes from the committed head alone that the run is finished (`Manifest.last_round`).
A founder can still take rounds back, and then the run goes on.
"""

from __future__ import annotations

import math

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.durations import format_duration
from gossamer.node.base.orders import Orders
from gossamer.node.rounds.active_rounds import ActiveRounds
from gossamer.node.rounds.evaluation import HeldoutLoss
from gossamer.node.rounds.following import RETRY_SECONDS, Follower
from gossamer.node.rounds.opening import NodeContext
from gossamer.node.rounds.settlement import WorkSaver
from gossamer.node.rounds.turn import POLL_SECONDS
from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.ids import Digest, short
from gossamer.protocol.wire.statements import AT_WORK, Phase

FAREWELL_SECONDS = 60.0
"""A node whose time is over stays this long, from the end of the run on, for peers that are still
on the way to the final state. Without it, members that leave at once would take the last averages
with them."""

TRAINER_SECONDS = FAREWELL_SECONDS / 2
"""Longest wait for a trainer that starts, to evaluate the final state."""

ON_THE_WAY: frozenset[Phase] = AT_WORK.union(("joining", "syncing"))
"""Phases of a peer that does not have the final state yet."""

log = structlog.get_logger("node")


class FinishedRun:
    """The end of a run at one node: it serves the final state, and leaves."""

    def __init__(
        self,
        context: NodeContext,
        trainings: LocalTrainings,
        follower: Follower,
        saver: WorkSaver,
        heldout: HeldoutLoss,
        rounds: ActiveRounds,
        serve_seconds: float,
    ) -> None:
        """`serve_seconds`: how long the node stays then; inf for one that stays until it is asked
        to leave."""
        self._committed = context.committed
        self._swarm = context.swarm
        self._health = context.health
        self._trainings = trainings
        self._follower = follower
        self._saver = saver
        self._heldout = heldout
        self._rounds = rounds
        self._serve_seconds = serve_seconds
        self._written: Digest | None = None
        """The final head whose whole state is on this disk."""
        self._retry_seconds = -math.inf

    async def serve(self) -> None:
        """Frees the device and serves the final state. Returns when the node is to leave, which is
        then an order, or when rounds were taken back: then the trainer starts again."""
        since = trio.current_time()
        orders, trainer = self._trainings.orders, self._trainings.trainer
        await self._evaluate()
        await self._saver.save(now=True)
        await trainer.suspend()
        await self._write()
        self._report()
        while not orders.leave:
            await self._follower.catch_up()
            if not self._follower.heads.allowed.is_finished:
                self._go_on(orders)
                return
            self._follower.phases.set("finished")
            await self._write()
            seconds = trio.current_time() - since
            if seconds >= self._serve_seconds and not self._is_needed(seconds):
                orders.leave = True
                return
            await orders.wait(POLL_SECONDS)

    def _go_on(self, orders: Orders) -> None:
        log.info("the run is not finished any more: training goes on")
        if not orders.pause:
            self._trainings.trainer.resume()
            self._trainings.feed.requeue()

    def _is_needed(self, seconds: float) -> bool:
        """Returns whether a peer still needs this node, `seconds` after the end of the run here."""
        phases = {announce.phase for announce in self._swarm.living().values()}
        return seconds < FAREWELL_SECONDS and (
            self._rounds.is_delivering or bool(phases & ON_THE_WAY)
        )

    async def _evaluate(self) -> None:
        """The loss of the final state, where the trainer is there to compute it, or comes soon."""
        progress, number = self._follower.phases.progress, self._committed.entry.round
        if progress.heldout_loss_of(number) is None and self._heldout.can_evaluate:
            await self._until_trainer_is_up()
        if self._trainings.trainer.is_up:
            await self._heldout.evaluate_now(number)

    async def _until_trainer_is_up(self) -> None:
        """Waits for a trainer that starts, as one does that died near the end of the run. Others
        that leave at the end wait for this node meanwhile."""
        orders, trainer = self._trainings.orders, self._trainings.trainer
        with trio.move_on_after(TRAINER_SECONDS):
            while not (trainer.is_up or trainer.failure or orders.pause or orders.leave):
                await orders.wait(POLL_SECONDS)

    async def _write(self) -> None:
        """Writes the final state as a whole: newcomers get it without older rounds."""
        head = self._committed.head
        if self._written == head or trio.current_time() < self._retry_seconds:
            return
        try:
            await self._trainings.run_in_thread(self._committed.checkpoint)
        except DiskError as error:
            self._retry_seconds = trio.current_time() + RETRY_SECONDS
            self._health.failed("blocks", error)
        else:
            self._written = head
            self._health.wrote("blocks")

    def _report(self) -> None:
        progress, entry = self._follower.phases.progress, self._committed.entry
        measured: dict[str, float] = {}  # a newcomer may not have measured the state
        if (heldout_loss := progress.heldout_loss_of(entry.round)) is not None:
            measured["heldout_loss"] = round(heldout_loss, 4)
        log.info(
            "the run is finished: this node has the final state",
            round=entry.round,
            head=short(entry.head),
            tokens=entry.tokens_total,
            **measured,
        )
        if self._trainings.orders.leave:
            return  # the order came before this node had the state
        seconds = self._serve_seconds
        if seconds == math.inf:
            log.info("this node serves the final state until it is told to leave")
        elif seconds:
            shown = format_duration(int(seconds))
            log.info(
                f"this node serves the final state for {shown}, then leaves",
                fields={"event": "serves the final state", "seconds": seconds},
            )
