"""The lock of a folder in which commands leave orders for the node: what one command counts there
is still true when it writes."""

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
        until = time.monotonic() + LOCK_SECONDS_MAX
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise DiskError(
                        f"another command gives an order in {folder}: give this one again when "
                        "that has ended"
                    ) from None
                time.sleep(_TRY_SECONDS)
        yield
    finally:
        os.close(descriptor)
