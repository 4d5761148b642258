"""The owner's orders that hold over restarts: a pause, and limits and schedule.

paused    there while an order to pause holds. It is empty where the owner has to resume, and
          else holds two numbers: when the pause ends (Unix time), and for how many seconds it
          was ordered.
limits    JSON: each text by its name, as `gossamer limits set` and `gossamer schedule set` take
          it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gossamer.node.base.disk_health import disk_error, sync_directory, write_atomically
from gossamer.node.base.pausing import PAUSE_SECONDS_MAX, UserPause
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.node.storage.state_dir import StateDirError, unreadable

_PAUSE_BYTES_MAX = 256

_LIMITS_BYTES_MAX = 64 * 1024
"""13 values of at most 1,000 characters, with 4 bytes for each."""


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
        words = (read_bounded(path, _PAUSE_BYTES_MAX) or b"").split()
        until, seconds = (float(word) for word in words)
    except (OSError, ValueError):
        return UserPause()
    if not 0 <= seconds <= PAUSE_SECONDS_MAX or not math.isfinite(until):
        return UserPause()
    # A clock that was set back makes the pause no longer than it was ordered to be.
    left = min(until - unix_seconds, seconds)
    return UserPause(unix_seconds + left, left) if left > 0 else None


def write_limits(path: Path, limits: Mapping[str, str]) -> None:
    """Keeps the owner's limits. DiskError."""
    write_atomically(path, msgspec.json.encode(dict(limits)) + b"\n", is_order=True)


def read_limits(path: Path) -> dict[str, str]:
    """Returns the owner's limits; none where the owner has set none.

    Raises:
        StateDirError: the file cannot be used. To go on without it would break the owner's word.
    """
    try:
        data = read_bounded(path, _LIMITS_BYTES_MAX)
        return {} if data is None else msgspec.json.decode(data, type=dict[str, str])
    except OSError as error:
        raise unreadable(path, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateDirError(
            f"{path} with the limits and the schedule of this node cannot be used ({error}): "
            "remove it, and set them again"
        ) from error
