"""The file with the owner's order to pause, which holds over a restart.

It is there while the order holds. It is empty where the owner has to resume, and else holds two
numbers: when the pause ends (Unix time), and for how many seconds it was ordered.
"""

from __future__ import annotations

import math
from pathlib import Path

from gossamer.node.base.disk_health import disk_error, sync_directory, write_atomically
from gossamer.node.base.pausing import PAUSE_SECONDS_MAX, UserPause
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.protocol.errors import OversizedError

_FILE_BYTES_MAX = 256


def write_pause(path: Path, pause: UserPause | None) -> None:
    """Keeps an order to pause, or forgets it. DiskError."""
    if pause is not None:
        until, seconds = pause.until_unix_seconds, pause.seconds
        text = "" if until is None or seconds is None else f"{until:.3f} {seconds:.3f}\n"
        write_atomically(path, text.encode())
        return
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise disk_error(path, 0, error) from error


def read_pause(path: Path, unix_seconds: float) -> UserPause | None:
    """Returns the order that holds at a moment; None if there is none.

    An order that let a round end holds now: that round ended with the process. A damaged file means
    a pause that the owner has to end.
    """
    if not path.exists():
        return None
    try:
        words = (read_bounded(path, _FILE_BYTES_MAX) or b"").split()
        until, seconds = (float(word) for word in words)
    except (OSError, OversizedError, ValueError):
        return UserPause()
    if not 0 <= seconds <= PAUSE_SECONDS_MAX or not math.isfinite(until):
        return UserPause()
    # A clock that was set back makes the pause no longer than it was ordered to be.
    left = min(until - unix_seconds, seconds)
    return UserPause(unix_seconds + left, left) if left > 0 else None
