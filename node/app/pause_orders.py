"""The owner's orders to pause and to resume: kept on disk first, and then obeyed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.pausing import UserPause, is_over
from gossamer.node.base.threads import RunInThread
from gossamer.node.storage.pause_file import read_pause, write_pause
from gossamer.node.storage.state_dir import StateDir

CLOCK_SECONDS = 5.0
"""Time between two looks at the clock while a pause has an end: the clock may be set, and the
machine may sleep."""

log = structlog.get_logger("node")


class Pausable(Protocol):
    """The participant, as these orders see it."""

    def pause(self, order: UserPause) -> None: ...

    def resume(self) -> None: ...


class PauseOrders:
    """Takes orders on the event loop, and writes them in a thread.

    Of several orders that come while one is written the newest counts.
    """

    def __init__(
        self, state_dir: StateDir, run_in_thread: RunInThread, unix_seconds: Callable[[], float]
    ) -> None:
        self._path = state_dir.paused_path
        self._run_in_thread = run_in_thread
        self._unix_seconds = unix_seconds
        self._wanted: UserPause | None = None
        self._given = trio.Event()
        self._since_seconds = 0.0
        """When the order came that holds, by the clock that nobody sets."""

    def read(self) -> UserPause | None:
        """Returns the order of an earlier life that still holds, or one that came before this."""
        if self._given.is_set():
            return self._wanted
        self._since_seconds = trio.current_time()
        self._wanted = read_pause(self._path, self._unix_seconds())
        return self._wanted

    def pause(self, seconds: float | None = None, *, after_round: bool = False) -> None:
        """Orders a pause, for some time or until the owner resumes. It returns at once."""
        until = None if seconds is None else self._unix_seconds() + seconds
        self._give(UserPause(until, seconds, after_round))

    def resume(self) -> None:
        """Orders an end of the pause. It returns at once."""
        self._give(None)

    def _give(self, order: UserPause | None) -> None:
        self._wanted = order
        self._since_seconds = trio.current_time()
        self._given.set()

    async def run(self, participant: Pausable) -> None:
        """Obeys orders until cancelled. An order that was given before is obeyed now."""
        while True:
            await self._next()
            self._given = trio.Event()
            wanted = self._wanted
            try:
                await self._keep(wanted)
            except DiskError as error:
                log.warning("the order holds only until this node ends", problem=str(error))
            if wanted is not None:
                participant.pause(wanted)
            else:
                participant.resume()

    async def _keep(self, order: UserPause | None) -> None:
        await self._run_in_thread(lambda: write_pause(self._path, order))

    async def _next(self) -> None:
        """Returns when there is an order to obey, or when the present one has ended by itself."""
        while not self._given.is_set():
            with trio.move_on_after(CLOCK_SECONDS):
                await self._given.wait()
                return
            order, since = self._wanted, trio.current_time() - self._since_seconds
            if order is not None and is_over(order, self._unix_seconds(), since):
                log.info("the pause is over")
                self._wanted = None
                return
