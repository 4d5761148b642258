"""A request to a router ends, whatever answers it and however long that takes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from gossamer.node.network.home_router import gateway_http
from gossamer.node.network.home_router.gateway_http import (
    ANSWER_BYTES_MAX,
    Answer,
    ExchangeError,
    Place,
    get,
    post,
)
from tests.support.home_network import Asked, WebServer, page

OK = b"HTTP/1.1 200 OK\r\n"


def _answer_of(
    *pieces: bytes, pause_seconds: float = 0.0, deadline_seconds: float = 10.0
) -> Answer:
    """What comes of a GET from a server that sends these pieces; the last one without an end if
    there is a pause."""

    def answer(_asked: Asked) -> Iterator[bytes]:
        yield from pieces
        while pause_seconds:
            time.sleep(pause_seconds)
            yield pieces[-1]

    with WebServer(answer).running() as server:
        place = Place(server.host, server.port, "/root.xml?a=b")
        found = get(place, time.monotonic() + deadline_seconds)
    [asked] = server.asked
    assert (asked.method, asked.target) == ("GET", "/root.xml?a=b")
    return found


@pytest.mark.parametrize(
    "pieces",
    [
        [OK + b"Content-Length: 4\r\n\r\n", b"te", b"xt", b"more"],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\ntex\r\n1\r\nt\r\n0\r\n\r\n"],
        [OK + b"\r\ntext"],
        [b"HTTP/1.0 200 OK\nServer: old\n\ntext"],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 4\r\n\r\ntext"],
    ],
)
def test_a_document_is_fetched(pieces: list[bytes]) -> None:
    assert _answer_of(*pieces) == Answer(200, b"text")


def test_a_document_is_sent() -> None:
    with WebServer(lambda _asked: page("no", "500 Internal Server Error")).running() as server:
        place = Place(server.host, server.port, "/ctl")
        answer = post(place, [("SOAPAction", '"x#y"')], b"<order/>", time.monotonic() + 10.0)
    assert answer == Answer(500, b"no")
    [asked] = server.asked
    assert (asked.method, asked.body, asked.headers["soapaction"]) == ("POST", "<order/>", '"x#y"')


def test_nothing_follows_a_redirect() -> None:
    with WebServer(lambda _asked: page("secret")).running() as other:
        head = f"HTTP/1.1 302 Found\r\nLocation: {other.url('/')}\r\nContent-Length: 0\r\n\r\n"
        assert _answer_of(head.encode()).status == 302
    assert other.asked == []


ENDLESS = 1e-6
"""A pause after each piece of an answer that has no end."""


@pytest.mark.parametrize(
    "pieces",
    [
        [OK + b"\r\n", b" " * 2**16],
        [OK + b"Content-Length: 999999999999\r\n\r\n", b" " * 2**16],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + b" " * 2**15 + b"\r\n"],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 1000 + b"\r\n \r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n" * 1000],
    ],
    ids=["body", "length", "chunks", "names of chunks", "informal heads"],
)
def test_an_answer_without_an_end_is_not_read_on(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    """Its size ends it, and not the time that a slow machine takes for so much."""
    monkeypatch.setattr(gateway_http, "EXCHANGE_SECONDS_MAX", 60.0)
    with pytest.raises(ExchangeError, match=f"more than {ANSWER_BYTES_MAX} bytes"):
        _answer_of(*pieces, pause_seconds=ENDLESS, deadline_seconds=60.0)


@pytest.mark.parametrize(
    "pieces", [[OK + b"X: ", b"x" * 2**12], [OK, b"X: y\r\n" * 2**10], [b"x" * 2**12]]
)
def test_a_head_without_an_end_is_no_http(pieces: list[bytes]) -> None:
    with pytest.raises(ExchangeError, match="is no HTTP"):
        _answer_of(*pieces, pause_seconds=ENDLESS)


@pytest.mark.parametrize(
    "pieces",
    [[b""], [b"SSH-2.0-x\r\n\r\n"], [OK], [OK + b"Content-Length: 9\r\n\r\ntext"]],
)
def test_half_an_answer_is_none(pieces: list[bytes]) -> None:
    with pytest.raises(ExchangeError):
        _answer_of(*pieces)


@pytest.mark.parametrize("piece", [b" ", b"1\r\n \r\n"])
def test_an_answer_that_drips_has_an_end(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    """Each byte comes in time, and the answer does not."""
    kind = b"Transfer-Encoding: chunked\r\n\r\n" if len(piece) > 1 else b"\r\n"
    monkeypatch.setattr(gateway_http, "EXCHANGE_SECONDS_MAX", 0.3)
    began = time.monotonic()
    with pytest.raises(ExchangeError, match="in time"):
        _answer_of(OK + kind, piece, pause_seconds=0.05)
    assert time.monotonic() - began < 5.0


def test_a_deadline_is_kept() -> None:
    with pytest.raises(ExchangeError, match="in time"):
        _answer_of(OK + b"\r\n", b" ", pause_seconds=0.05, deadline_seconds=0.3)
    began = time.monotonic()
    with pytest.raises(ExchangeError, match="in time"):
        get(Place("127.0.0.1", 1, "/"), began)


def test_a_closed_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ExchangeError, match="refused"):
        get(Place("127.0.0.1", port, "/"), time.monotonic() + 5.0)


def test_the_largest_answer_fits() -> None:
    """With its head it has as many bytes as the bound."""
    extra = len(OK + b"Content-Length: 123456\r\n\r\n")
    head = OK + f"Content-Length: {ANSWER_BYTES_MAX - extra}\r\n\r\n".encode()
    assert len(head) == extra
    body = b" " * (ANSWER_BYTES_MAX - extra)
    assert _answer_of(head + body).body == body
