"""The number of this node's life, which grows with every start: others believe the newest life.

It begins with the wall clock, so that a node whose file was lost does not fall behind itself, and
never goes back with it: a file from a machine whose clock was a year ahead is simply counted on.
Where both are lost, the file and the clock's lead, others still know the higher number and hand it
back to us with the announcements of our earlier life (`Incarnation.raise_above`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gossamer.node.base.disk_health import DiskError, write_atomically
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.limits import INCARNATION_MAX

# The year 2116: a clock that is wrong by centuries must not use up the numbers.
_CLOCK_NANOSECONDS_MAX = 2**62


class Incarnation:
    """The number, and its file."""

    def __init__(self, state_dir: StateDir, clock: Callable[[], int] = time.time_ns) -> None:
        """Begins a new life. `clock` gives the wall clock in nanoseconds.

        Raises:
            DiskError: it cannot be written, so the next life could not be told from this one.
        """
        self._path = state_dir.root / "incarnation"
        self._health = state_dir.health
        try:
            last = int(self._path.read_text())
        except (OSError, ValueError):
            last = 0
        if not 0 <= last < INCARNATION_MAX:
            last = 0
        self.number = max(last + 1, min(clock(), _CLOCK_NANOSECONDS_MAX))
        self._write()

    def raise_above(self, seen: int) -> bool:
        """Another life of ours announced itself with a number that is not lower: go past it.

        False if that is not possible.
        """
        if not self.number <= seen < INCARNATION_MAX:
            return False
        self.number = seen + 1
        try:
            self._write()
        except DiskError as error:
            self._health.failed("incarnation", error)
        else:
            self._health.wrote("incarnation")
        return True

    def _write(self) -> None:
        write_atomically(self._path, str(self.number).encode())
