"""Messages over the stdin and stdout of processes on this machine, in frames:

4 bytes   length of the message, big-endian
...       the message
"""

from __future__ import annotations

import os
import struct
from typing import IO

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size


class MessageError(ValueError):
    """Bytes between two processes that are not a message: a bug, or a broken pipe."""


def frame(body: bytes, bytes_max: int, what: str = "message") -> bytes:
    """The whole frame of a message. Raises MessageError: it is longer than `bytes_max`."""
    if len(body) > bytes_max:
        raise MessageError(f"{what} of {len(body)} bytes; {bytes_max} is the limit")
    return _LENGTH.pack(len(body)) + body


def decode_length(prefix: bytes | bytearray | memoryview, bytes_max: int) -> int:
    """Length of the message behind a prefix of `LENGTH_BYTES`. MessageError as `frame`."""
    (length,) = _LENGTH.unpack(prefix)
    if length > bytes_max:
        raise MessageError(f"message of {length} bytes; {bytes_max} is the limit")
    return int(length)


def read(stream: IO[bytes], bytes_max: int) -> bytes | None:
    """The next message; None at the end of the stream, also inside of a frame. MessageError as
    `frame`."""
    prefix = stream.read(LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES:
        return None
    length = decode_length(prefix, bytes_max)
    body = stream.read(length)
    return body if len(body) == length else None


def write(stream: IO[bytes], body: bytes, bytes_max: int) -> None:
    """Writes the frame of a message. MessageError as `frame`; or ValueError: the stream is closed;
    or OSError: the other side is gone."""
    stream.write(frame(body, bytes_max))
    stream.flush()


def take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Stdin and stdout, for messages alone: anything else that prints goes to stderr, and finds
    nothing to read."""
    source, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, output
