"""One request over HTTP to a router, with a bound of its answer and of its time.

It goes to an IP address, over a connection of its own. An answer that leads elsewhere is an answer
like any other: nothing follows it. h11 reads what comes.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import h11

from gossamer.protocol.limits import KIB

ANSWER_BYTES_MAX = 256 * KIB
"""Of all that comes, heads and frames of chunks too. Descriptions of routers have up to some tens
of kilobytes, and other answers one."""

HEAD_BYTES_MAX = 16 * KIB
"""Of the head of an answer: routers send some hundred bytes."""

EXCHANGE_SECONDS_MAX = 3.0
"""From the dial to the last byte. A router is one hop away; slow ones take a second."""

_READ_BYTES = 16 * KIB
_USER_AGENT = "gossamer UPnP/1.1"


class ExchangeError(Exception):
    """There is no whole answer; the text says why, for people."""


@dataclass(frozen=True)
class Answer:
    """A whole answer of HTTP."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Place:
    """Where a router is asked."""

    host: str
    """An IP address."""
    port: int
    target: str
    """Path and query, as a request has them."""


def get(place: Place, deadline: float) -> Answer:
    """Fetches a document.

    Args:
        deadline: time of `time.monotonic` at which the answer has to be there, if that is earlier
            than `EXCHANGE_SECONDS_MAX` from now.

    Raises:
        ExchangeError: there is none in time, it is too long, or it is no HTTP.
    """
    return _exchanged(place, _request("GET", place, [], b""), deadline)


def post(place: Place, headers: list[tuple[str, str]], body: bytes, deadline: float) -> Answer:
    """Sends a document. For the arguments and errors see `get`."""
    length = ("Content-Length", str(len(body)))
    return _exchanged(place, _request("POST", place, [*headers, length], body), deadline)


def _request(
    method: str, place: Place, headers: list[tuple[str, str]], body: bytes
) -> tuple[h11.Connection, bytes]:
    """The connection's state behind a request, and the bytes of the request: they leave together,
    because some routers read no body that comes after its head."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    standing = [
        ("Host", f"{place.host}:{place.port}"),
        ("User-Agent", _USER_AGENT),
        ("Connection", "close"),
    ]
    request = h11.Request(method=method, target=place.target, headers=[*standing, *headers])
    sent = connection.send(request) or b""
    if body:
        sent += connection.send(h11.Data(data=body)) or b""
    sent += connection.send(h11.EndOfMessage()) or b""
    return connection, sent


def _exchanged(place: Place, request: tuple[h11.Connection, bytes], deadline: float) -> Answer:
    connection, sent = request
    deadline = min(deadline, time.monotonic() + EXCHANGE_SECONDS_MAX)
    try:
        address = (place.host, place.port)
        with socket.create_connection(address, timeout=_seconds_left(deadline)) as line:
            line.settimeout(_seconds_left(deadline))
            line.sendall(sent)
            return _received(connection, line, deadline)
    except TimeoutError:
        raise ExchangeError("it does not answer in time") from None
    except OSError as error:
        raise ExchangeError(error.strerror or type(error).__name__) from error
    except h11.RemoteProtocolError as error:
        raise ExchangeError(f"its answer is no HTTP: {error}") from error


def _received(connection: h11.Connection, line: socket.socket, deadline: float) -> Answer:
    status, num_received, body = 0, 0, bytearray()
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                line.settimeout(_seconds_left(deadline))
                data = line.recv(_READ_BYTES)
                num_received += len(data)
                if num_received > ANSWER_BYTES_MAX:
                    raise ExchangeError(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
                connection.receive_data(data)
            case h11.Response():
                status = event.status_code
            case h11.Data():
                body += event.data
            case h11.EndOfMessage():
                return Answer(status, bytes(body))
            case h11.InformationalResponse():
                pass
            case _:
                raise ExchangeError("it ends the connection without an answer")


def _seconds_left(deadline: float) -> float:
    """Raises TimeoutError where no time is left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
