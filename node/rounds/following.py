"""What a node does between rounds when it cannot begin one: follow the swarm's heads.

It takes over heavier heads, waits for its trainer or its disk, and serves blocks while it pauses.
"""

from __future__ import annotations

import structlog
import trio

from gossamer.node.base.disk_health import DiskError, DiskHealth
from gossamer.node.rounds.heads import Heads
from gossamer.node.rounds.phases import Phases
from gossamer.node.rounds.saving import WorkSaver
from gossamer.node.rounds.settlement import Settlement
from gossamer.node.rounds.turn import POLL_SECONDS
from gossamer.node.training.local_training import LocalTrainings

RETRY_SECONDS = 2.0
"""Between attempts to get the initial state, or to write what the disk did not take."""

log = structlog.get_logger("node")


class LeaveRequested(Exception):
    """The node was asked to leave, at a point where there is nothing to finish."""


class Follower:
    """Keeps a node at the swarm's head without training."""

    def __init__(
        self,
        trainings: LocalTrainings,
        heads: Heads,
        settlement: Settlement,
        saver: WorkSaver,
        phases: Phases,
        health: DiskHealth,
    ) -> None:
        self.heads = heads
        self.phases = phases
        self.settlement = settlement
        self._trainings = trainings
        self._orders = trainings.orders
        self._saver = saver
        self._health = health

    def check_leave(self) -> None:
        """Raises LeaveRequested if the operator asked this node to leave."""
        if self._orders.leave:
            raise LeaveRequested

    async def catch_up(self) -> bool:
        """Takes over the heaviest head, as long as one wins over the committed one.

        Returns:
            False if the disk does not take it: rounds on an older head would be of no use.
        """
        while (better := self.heads.better()) is not None:
            self.check_leave()
            if self.phases.progress.phase not in ("paused", "failed"):
                others_wait = self.heads.is_near(better.head) and self._trainings.trainer.is_up
                self.phases.set("training" if others_wait else "syncing")
            try:
                if await self.heads.try_take_over(better.head):
                    self._health.wrote("blocks")
            except DiskError as error:
                self._health.failed("blocks", error)
                return False
            finally:
                # The head may also have moved where it did not come all the way.
                await self.settlement.settle()
            await self.settlement.drop_if_stale()
            await self._saver.save()
        return True

    async def wait_for_disk(self) -> None:
        """The disk takes nothing, so the swarm cannot be followed; blocks are still served."""
        self.phases.pause("disk")
        await trio.sleep(RETRY_SECONDS)

    async def until_trainer_is_up(self) -> None:
        """Follows heads while the trainer starts or has failed. No other peer waits for it."""
        trainer, progress = self._trainings.trainer, self.phases.progress
        while not trainer.is_up and not self._orders.pause:
            self.check_leave()
            if trainer.failure is not None and progress.phase != "failed":
                progress.problem = trainer.failure
                log.error("failed", problem=trainer.failure)
                self.phases.set("failed")
                await self._saver.save(now=True)
            elif trainer.failure is None and progress.phase != "syncing":
                progress.problem = None
                self.phases.set("syncing")
            await self.catch_up()
            await self._orders.wait(POLL_SECONDS)
        if trainer.failure is None:
            progress.problem = None

    async def while_paused(self) -> None:
        """Frees the device until the operator resumes; heads are followed, blocks are served."""
        log.info("paused; the device is free")
        await self._saver.save(now=True)
        await self._trainings.trainer.suspend()
        self.phases.pause("user")
        while self._orders.pause and not self._orders.leave:
            await self.catch_up()
            await self._orders.wait(POLL_SECONDS)
        log.info("resumed")
        self._trainings.trainer.resume()
        self._trainings.feed.requeue()
