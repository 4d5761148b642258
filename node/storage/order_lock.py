"""Locks between processes of this machine.

A command that leaves an order for the node locks the folder of the orders: what it counts there is
still true when it writes.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gossamer.node.base.disk_health import DiskError

LOCK_SECONDS_MAX = 10.0
"""Limit of the wait for another command, which reads and writes some small files."""

_TRY_SECONDS = 0.02
"""Time between two tries: a person does not notice less."""


def lock_within(descriptor: int, seconds: float) -> None:
    """Locks what is open for this process alone. It blocks for as long as another one has it.

    Raises:
        BlockingIOError: another process has it for longer.
        OSError: it cannot be locked.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(_TRY_SECONDS)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keeps other commands of this machine from giving orders in a folder. A command that dies
    frees it. The node takes orders meanwhile.

    Raises:
        DiskError: another command holds it for too long.
        OSError: the folder is not there, or cannot be locked.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            lock_within(descriptor, LOCK_SECONDS_MAX)
        except BlockingIOError:
            raise DiskError(
                f"another command gives an order in {folder}: give this one again when that has "
                "ended"
            ) from None
        yield
    finally:
        os.close(descriptor)
