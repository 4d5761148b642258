"""Files of the state directory: read no further than a bound, records in MessagePack, and what is
kept behind its digest."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from gossamer.node.base.disk_health import write_atomically
from gossamer.protocol.decoding import decoded
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, digest_of

_Record = TypeVar("_Record")


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
        OSError: it cannot be read, is no file, or is over the bound (EFBIG).
    """
    try:
        with open_file(path) as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"It is larger than {bytes_max} bytes", str(path))
    return data


def read_record(path: Path, kind: type[_Record], bytes_max: int) -> _Record | None:
    """The record that a file holds, or None if there is no file.

    Raises:
        OSError: as `read_bounded`.
        MalformedError: the file holds no such record.
    """
    data = read_bounded(path, bytes_max)
    return None if data is None else record_in(data, kind, path.name)


def record_in(data: bytes, kind: type[_Record], name: str) -> _Record:
    """The record in the content of a file. MalformedError."""
    return decoded(msgspec.msgpack.Decoder(kind), data, f"the record of a file {name}")


def read_digested(path: Path | str, bytes_max: int = -1) -> bytes:
    """The content of a file behind its digest. OSError, or MalformedError if it is damaged.

    Args:
        bytes_max: limit of the content. -1: none, as for a file that this node alone writes.
    """
    with open_file(path) as file:
        data = file.read(bytes_max if bytes_max < 0 else DIGEST_BYTES + bytes_max + 1)
    content = data[DIGEST_BYTES:]
    if data[:DIGEST_BYTES] != digest_of(content):
        raise MalformedError(f"{os.path.basename(path)} does not fit its digest")
    return content


def write_digested(path: Path, data: bytes) -> None:
    """Replaces such a file. Raises DiskError."""
    write_atomically(path, digest_of(data), data)


def read_hex_digest(path: Path) -> Digest:
    """The digest that a file holds in hex. OSError, or ValueError if it holds none."""
    with open_file(path) as file:
        digest = bytes.fromhex(file.read(4 * DIGEST_BYTES).decode("ascii").strip())
    if len(digest) != DIGEST_BYTES:  # a power cut can leave an empty file
        raise ValueError(f"{path} holds {len(digest)} bytes in hex, and no digest")
    return Digest(digest)
