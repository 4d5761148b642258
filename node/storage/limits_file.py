"""The file with the limits and the schedule that the owner set on a running node; they hold over
restarts.

It is JSON: each text by its name, as `gossamer limits set` and `gossamer schedule set` take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.node.storage.state_dir import StateDirError, unreadable
from gossamer.protocol.errors import OversizedError

_FILE_BYTES_MAX = 64 * 1024
"""13 values of at most 1,000 characters, with 4 bytes for each."""


def write_limits(path: Path, limits: Mapping[str, str]) -> None:
    """Keeps the owner's limits. DiskError."""
    write_atomically(path, msgspec.json.encode(dict(limits)) + b"\n", is_order=True)


def read_limits(path: Path) -> dict[str, str]:
    """Returns the owner's limits; none where the owner has set none.

    Raises:
        StateDirError: the file cannot be used. To go on without it would break the owner's word.
    """
    try:
        data = read_bounded(path, _FILE_BYTES_MAX)
        return {} if data is None else msgspec.json.decode(data, type=dict[str, str])
    except OSError as error:
        raise unreadable(path, error) from error
    except (OversizedError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateDirError(
            f"{path} with the limits and the schedule of this node cannot be used ({error}): "
            "remove it, and set them again"
        ) from error
