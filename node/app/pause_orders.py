"""The owner's orders to pause and to resume: kept on disk first, and then obeyed."""

from __future__ import annotations

from typing import Protocol

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.threads import RunInThread
from gossamer.node.storage.state_dir import StateDir

log = structlog.get_logger("node")


class Pausable(Protocol):
    """The participant, as these orders see it."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class PauseOrders:
    """Takes orders on the event loop, and writes them in a thread.

    Of several orders that come while one is written the newest counts.
    """

    def __init__(self, state_dir: StateDir, run_in_thread: RunInThread) -> None:
        self._state_dir = state_dir
        self._run_in_thread = run_in_thread
        self._wanted: bool | None = None
        self._given = trio.Event()

    def give(self, *, pause: bool) -> None:
        """Gives an order. It returns at once."""
        self._wanted = pause
        self._given.set()

    async def run(self, participant: Pausable) -> None:
        """Obeys orders until cancelled. An order that was given before is obeyed now."""
        while True:
            await self._given.wait()
            self._given = trio.Event()
            wanted = self._wanted
            assert wanted is not None
            try:
                await self._keep(is_paused=wanted)
            except DiskError as error:
                log.warning("the order holds only until this node ends", problem=str(error))
            if wanted:
                participant.pause()
            else:
                participant.resume()

    async def _keep(self, *, is_paused: bool) -> None:
        await self._run_in_thread(lambda: self._state_dir.write_pause(is_paused=is_paused))
