"""One question over HTTP to a server on this machine.

`http.client` would do the same. It loads the parsers of mail and TLS first, which takes longer than
all else that `gossamer status` does to get its answer.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

from gossamer.node.base.address_text import HostPort

HEAD_BYTES_MAX = 16 * 1024
"""Limit of the status line and the headers; those of our daemon take less than 1 KiB."""

_PIECE_BYTES = 64 * 1024
_END_OF_HEAD = b"\r\n\r\n"


class AnswerError(Exception):
    """The reply is no answer of HTTP, or not a whole one."""


class Answer(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes
    """At most one byte more than was allowed, by which the caller sees that it is too long."""


def ask(
    where: HostPort,
    method: str,
    path: str,
    headers: Mapping[str, str],
    *,
    timeout_seconds: float,
    body_bytes_max: int,
) -> Answer:
    """Sends a request without a body and returns the answer. HTTP/1.0 has the server send the body
    as it is and then close.

    Args:
        path: with its query, escaped.
        headers: besides `Host`. Their values hold no line breaks.
        timeout_seconds: of each operation of the socket.

    Raises:
        OSError: no connection, or it broke; TimeoutError: nothing came in time.
        AnswerError: something else than HTTP answers, or the answer ended early.
    """
    lines = [f"{method} {path} HTTP/1.0", f"Host: {where}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    try:
        request = "\r\n".join([*lines, "", ""]).encode("ascii")
    except UnicodeEncodeError:
        raise AnswerError(f"{str(where)!r} is no address of a server") from None
    # Bytes, which the stubs do not know: for text the tables of international names are loaded.
    address = (where.host.encode("ascii"), where.port)
    with socket.create_connection(address, timeout_seconds) as connection:  # type: ignore[arg-type]
        connection.sendall(request)
        data = bytearray()
        end = -1
        while end < 0 and len(data) <= HEAD_BYTES_MAX and _received(connection, data):
            end = data.find(_END_OF_HEAD)
        if end < 0:
            raise AnswerError("what came is no answer of HTTP")
        status, length = _parsed(bytes(data[:end]))
        del data[: end + len(_END_OF_HEAD)]
        wanted = body_bytes_max + 1 if length is None else min(length, body_bytes_max + 1)
        while len(data) < wanted and _received(connection, data):
            pass
    if length is not None and len(data) < wanted:
        raise AnswerError(f"the answer ended after {len(data):,} of {length:,} bytes")
    return Answer(status, bytes(data[:wanted]))


def _received(connection: socket.socket, data: bytearray) -> bool:
    """Appends what comes next; returns False at the end."""
    piece = connection.recv(_PIECE_BYTES)
    data += piece
    return bool(piece)


def _parsed(head: bytes) -> tuple[int, int | None]:
    """Returns the status, and the length of the body if the answer says it. AnswerError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not (len(code) == 3 and code.isdecimal()):
        raise AnswerError("what came is no answer of HTTP")
    length = None
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if name == "content-length":
            if not (value.isascii() and value.isdecimal()):
                raise AnswerError("the answer has a length that is no number")
            length = int(value)
        elif name == "transfer-encoding":
            raise AnswerError("the answer is encoded as HTTP/1.0 does not allow")
    return int(code), length
