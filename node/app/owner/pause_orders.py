"""The owner's orders to pause and to resume: obeyed at once, and kept on disk.

A disk that hangs delays no order. Of one that the disk does not take the owner is told that it does
not hold over a restart, and the disk is tried again until it takes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import structlog
import trio

from gossamer.node.base.pausing import UserPause, is_over
from gossamer.node.base.threads import RunInThread
from gossamer.node.storage.owner_orders import read_pause, write_pause
from gossamer.node.storage.state_dir import StateDir

CLOCK_SECONDS = 5.0
"""Time between two looks at the clock while a pause has an end: the clock may be set, and the
machine may sleep. A disk that has not taken an order is tried again as often."""

_KEPT = "pause"
"""The kind of the file, for the health of the disk."""

log = structlog.get_logger("node")


class Pausable(Protocol):
    """The participant, as these orders see it."""

    def pause(self, order: UserPause) -> None: ...

    def resume(self) -> None: ...

    def pause_is_over(self) -> None: ...


class PauseOrders:
    """Obeys orders on the event loop, and writes them in a thread.

    Of several orders that come while one is written the newest is written next.
    """

    def __init__(
        self, state_dir: StateDir, run_in_thread: RunInThread, unix_seconds: Callable[[], float]
    ) -> None:
        self._path = state_dir.paused_path
        self._health = state_dir.health
        self._run_in_thread = run_in_thread
        self._unix_seconds = unix_seconds
        self._participant: Pausable | None = None
        """None until the node takes part: an order that comes before is obeyed then."""
        self._wanted: UserPause | None = None
        self._given = trio.Event()
        self._num_given = 0
        self._num_tried = 0
        """Orders that were written, or replaced by a newer one, or that the disk did not take."""
        self._tried = trio.Event()
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
        """Orders a pause, for some time or until the owner resumes."""
        until = None if seconds is None else self._unix_seconds() + seconds
        self._give(UserPause(until, seconds, after_round))

    def resume(self) -> None:
        """Orders an end of the pause."""
        self._give(None)

    async def kept(self) -> str:
        """Waits until the disk had its chance to take the orders so far.

        Returns the reason why the newest one will not hold over a restart; empty if it will.
        """
        number = self._num_given
        while self._num_tried < number:
            await self._tried.wait()
        return self._health.problem_of(_KEPT)

    def _give(self, order: UserPause | None) -> None:
        self._wanted = order
        self._num_given += 1
        self._since_seconds = trio.current_time()
        self._given.set()
        self._obey()

    def _obey(self) -> None:
        if self._participant is None:
            return
        if self._wanted is None:
            self._participant.resume()
        else:
            self._participant.pause(self._wanted)

    async def run(self, participant: Pausable) -> None:
        """Keeps orders, and ends a pause whose time is over, until cancelled."""
        self._participant = participant
        if self._given.is_set():
            self._obey()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep)
            while True:
                await trio.sleep(CLOCK_SECONDS)
                order, since = self._wanted, trio.current_time() - self._since_seconds
                if order is not None and is_over(order, self._unix_seconds(), since):
                    log.info("the pause is over")
                    self._wanted = None
                    participant.pause_is_over()
                    self._given.set()

    async def _keep(self) -> None:
        """Writes what holds: when it changes, and again while the disk does not take it."""
        while True:
            with trio.move_on_after(CLOCK_SECONDS):
                await self._given.wait()
            is_new = self._given.is_set()
            if not is_new and not self._health.problem_of(_KEPT):
                continue
            self._given = trio.Event()
            order, number = self._wanted, self._num_given
            with self._health.writing(_KEPT):
                await self._run_in_thread(functools.partial(write_pause, self._path, order))
            if is_new and (problem := self._health.problem_of(_KEPT)):
                log.warning("the order holds only until this node ends", problem=problem)
            self._num_tried = number
            self._tried.set()
            self._tried = trio.Event()
