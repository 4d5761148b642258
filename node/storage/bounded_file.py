"""Files of the state directory: read no further than a bound, or kept behind their digest."""

from __future__ import annotations

import os
from pathlib import Path

from gossamer.node.base.disk_health import write_atomically
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.ids import DIGEST_BYTES, digest_of


def read_bounded(path: Path, bytes_max: int) -> bytes | None:
    """The file's content, or None if there is no file. Raises OversizedError over the bound."""
    try:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    if len(data) > bytes_max:
        raise OversizedError(f"{path.name} is larger than {bytes_max} bytes")
    return data


def read_digested(path: Path | str) -> bytes:
    """The content of a file behind its digest. OSError, or MalformedError if it is damaged."""
    with open(path, "rb") as file:
        data = file.read()
    content = data[DIGEST_BYTES:]
    if data[:DIGEST_BYTES] != digest_of(content):
        raise MalformedError(f"{os.path.basename(path)} does not fit its digest")
    return content


def write_digested(path: Path, data: bytes) -> None:
    """Replaces such a file. Raises DiskError."""
    write_atomically(path, digest_of(data), data)
