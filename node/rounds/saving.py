"""Writes carried work and the trainer's own state to disk, between rounds."""

from __future__ import annotations

import math

import trio

from gossamer.node.base.disk_health import DiskError, DiskHealth
from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer_client import Trainer
from gossamer.node.modes.sync_mode import SyncMode
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.work import Work

SAVE_SECONDS = 30.0
"""Carried rounding errors, and the trainer's own state (the inner optimiser, or the momentum of
shared steps), are written at most this often."""

SAVE_SHARE = 0.02
"""Upper bound on the part of the wall time in which the trainer writes and does not train. It
writes one or two vectors of the model's size, perhaps to a slow disk."""


class WorkSaver:
    """Saves the work that a kill would lose."""

    def __init__(
        self,
        committed: CommittedState,
        work: Work,
        trainer: Trainer,
        mode: SyncMode,
        health: DiskHealth,
        run_in_thread: RunInThread,
    ) -> None:
        self._committed = committed
        self._work = work
        self._trainer = trainer
        self._mode = mode
        self._health = health
        self._run_in_thread = run_in_thread
        self._due_seconds = -math.inf
        """Local time of the next regular save."""

    async def save(self, *, now: bool = False) -> None:
        """Saves what is due; with `now` everything, and waits until the trainer has written."""
        if not self._committed.is_loaded:
            return  # nothing is carried yet, and the disk may hold what has not been read
        is_due = now or trio.current_time() > self._due_seconds
        if not (is_due or self._work.must_save):
            return
        try:
            await self._run_in_thread(self._work.save)
            if is_due:
                await self._save_trainer(wait=now)
                pause_seconds = max(SAVE_SECONDS, self._trainer.save_seconds / SAVE_SHARE)
                self._due_seconds = trio.current_time() + pause_seconds
        except DiskError as error:
            self._health.failed("residual", error)
        else:
            self._health.wrote("residual")

    async def _save_trainer(self, *, wait: bool) -> None:
        if wait:
            await self._trainer.is_saved()  # an earlier save may be under way
        await self._trainer.save(await self._mode.place())
        if wait:
            await self._trainer.is_saved()
