"""Files of the state directory: read no further than a bound, or kept behind their digest."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from gossamer.node.base.disk_health import write_atomically
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.ids import DIGEST_BYTES, digest_of


def open_file(path: Path | str) -> BinaryIO:
    """Opens a file to read. Raises OSError, also for a folder, a FIFO or a device in its place: to
    read these waits, perhaps for ever."""
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "It is no file", str(path))
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO waits for its writer otherwise


def read_bounded(path: Path, bytes_max: int) -> bytes | None:
    """The file's content, or None if there is no file.

    Raises:
        OversizedError: it is over the bound.
        OSError: it cannot be read, or is no file.
    """
    try:
        with open_file(path) as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    if len(data) > bytes_max:
        raise OversizedError(f"{path.name} is larger than {bytes_max} bytes")
    return data


def read_digested(path: Path | str) -> bytes:
    """The content of a file behind its digest. OSError, or MalformedError if it is damaged."""
    with open_file(path) as file:
        data = file.read()
    content = data[DIGEST_BYTES:]
    if data[:DIGEST_BYTES] != digest_of(content):
        raise MalformedError(f"{os.path.basename(path)} does not fit its digest")
    return content


def write_digested(path: Path, data: bytes) -> None:
    """Replaces such a file. Raises DiskError."""
    write_atomically(path, digest_of(data), data)
