"""The incarnation: the number of this node's life. Other peers believe the highest one.

The number grows with every start. It begins with the wall clock, so a node whose file was lost does
not fall behind its earlier lives. It never goes back with the clock: after a clock that was a year
ahead, the number in the file is counted on. If the file is lost as well, other peers still know the
higher number. They return it with the announcements of the earlier life
(`Incarnation.raise_above`).

No two lives have the same number, for two statements under one number are a proof against their
author. A back-up that is put back twice while the clock is behind begins two lives with one file,
and no peer may be there that knows of the other one. So each number is raised by chance as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import trio

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.base.threads import RunInThread
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.limits import INCARNATION_MAX

# The year 2116: a clock that is wrong by centuries must not use up the numbers.
_CLOCK_NANOSECONDS_MAX = 2**62

_CHANCE_BYTES = 4
"""Bytes of the chance in a number: two lives from one file have the same one once in 4 thousand
million times. A start takes up to 4.3 s of the clock's numbers for it."""

_FILE_BYTES_MAX = 64
"""A number has 20 digits at most."""


class Incarnation:
    """The number, and its file."""

    def __init__(
        self,
        state_dir: StateDir,
        clock: Callable[[], int] = time.time_ns,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Begins a new life. Waits for the disk, so call it in a thread.

        Args:
            clock: the wall clock in nanoseconds.
            random_bytes: draws so many bytes by chance.

        Raises:
            DiskError: the number cannot be written, so the next life could not be told from this
                one.
        """
        self._path = state_dir.root / "incarnation"
        self._health = state_dir.health
        self._raised = trio.Event()
        """The event of the next write of the number. It is replaced when the file has the number
        again."""
        try:
            last = int(read_bounded(self._path, _FILE_BYTES_MAX) or 0)
        except (OSError, ValueError):
            last = 0
        if not 0 <= last < INCARNATION_MAX:
            last = 0
        self._random_bytes = random_bytes
        self.number = self._from(max(last + 1, min(clock(), _CLOCK_NANOSECONDS_MAX)))
        self._write()

    def _from(self, least: int) -> int:
        """Returns a number by chance that is `least` or some more. `least`: at most
        `INCARNATION_MAX`."""
        chance = int.from_bytes(self._random_bytes(_CHANCE_BYTES))
        return min(least + chance, INCARNATION_MAX)

    def raise_above(self, seen: int) -> bool:
        """Goes past the number with which another life of this node announced itself.

        `run` writes the new number soon. A node that is killed before that learns it from the
        others once more.

        Returns:
            False if this life has a higher number already, or if there is none.
        """
        if not self.number <= seen < INCARNATION_MAX:
            return False
        self.number = self._from(seen + 1)
        self._raised.set()
        return True

    async def run(self, run_in_thread: RunInThread) -> None:
        """Writes the number after each `raise_above`, until cancelled."""
        while True:
            await self._raised.wait()
            self._raised = trio.Event()
            await run_in_thread(self.save)

    def save(self) -> None:
        """Writes the number, in a thread. A disk that does not take it does not end the node."""
        with self._health.writing("incarnation"):
            self._write()

    def _write(self) -> None:
        write_atomically(self._path, str(self.number).encode())
