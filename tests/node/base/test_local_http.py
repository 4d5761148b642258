from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gossamer.node.base.address_text import HostPort
from gossamer.node.base.local_http import HEAD_BYTES_MAX, Answer, AnswerError, ask


@contextmanager
def answering(*pieces: bytes) -> Iterator[tuple[HostPort, list[bytes]]]:
    """A server that sends these pieces to its one client and closes; and what it was sent."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    request += connection.recv(4096)
                requests.append(request)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield HostPort("127.0.0.1", server.getsockname()[1]), requests
        thread.join()


def asked(where: HostPort, body_bytes_max: int = 100) -> Answer:
    headers = {"X-Gossamer": "1"}
    return ask(where, "GET", "/a?b=1", headers, timeout_seconds=5.0, body_bytes_max=body_bytes_max)


def test_a_question_and_its_answer_in_pieces() -> None:
    pieces = (b"HTTP/1.1 2", b"00 OK\r\nContent-Le", b"ngth: 4\r\n\r", b"\nbo", b"dy")
    with answering(*pieces) as (where, requests):
        assert asked(where) == Answer(200, b"body")
    assert requests == [f"GET /a?b=1 HTTP/1.0\r\nHost: {where}\r\nX-Gossamer: 1\r\n\r\n".encode()]


def test_without_a_length_the_body_goes_to_the_end() -> None:
    with answering(b"HTTP/1.0 404 Not Found\r\n\r\nno", b" such", b" page") as (where, _):
        assert asked(where) == Answer(404, b"no such page")


@pytest.mark.parametrize(
    "head", [b"HTTP/1.0 200\r\n\r\n", b"HTTP/1.1 200 \r\nContent-Length: 9\r\n\r\n"]
)
def test_no_more_than_one_byte_too_many_is_kept(head: bytes) -> None:
    with answering(head + b"123456789") as (where, _):
        assert asked(where, 4) == Answer(200, b"12345")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\n", "no answer of HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 20\r\n\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 2\xb20\r\n\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + bytes(2 * HEAD_BYTES_MAX), "no answer of HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "ended after 4 of 9 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\n", "length that is no number"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "encoded"),
    ],
)
def test_something_else_than_a_whole_answer(answer: bytes, reason: str) -> None:
    with answering(answer) as (where, _), pytest.raises(AnswerError, match=reason):
        asked(where)


def test_an_address_that_is_none() -> None:
    with pytest.raises(AnswerError, match="is no address"):
        asked(HostPort("\u00fcber", 80))
