import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gossamer.node.app.http import client
from gossamer.node.app.http.client import (
    ClientError,
    NotRunningError,
    StartingError,
    change_limits,
    fetch_status,
    give_order,
    page_link,
)
from gossamer.node.base.pausing import LEAVING_CODE
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status, encode_status
from tests.support.ports import free_ports

STATUS = Status(peer_id="me", run_id=None, version="0.1.0", phase="joining")


@contextmanager
def answering(
    state_dir: StateDir, code: int, body: bytes, seen: list[tuple[str, str, str | None, str | None]]
) -> Iterator[None]:
    """A daemon that gives one answer to everything and notes what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = (self.headers.get("X-Gossamer"), self.headers.get("Authorization"))
            seen.append((self.command, self.path, *headers))
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        DaemonFiles(state_dir).write_api(f"0.0.0.0:{server.server_port}")
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_the_link_of_the_page_has_the_secret_behind_the_hash(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    with pytest.raises(NotRunningError):
        page_link(state_dir)
    seen: list[tuple[str, str, str | None, str | None]] = []
    with answering(state_dir, 200, b"ok\n", seen):
        with pytest.raises(ClientError, match="token"):
            page_link(state_dir)
        token = DaemonFiles(state_dir).new_token()
        address = DaemonFiles(state_dir).read_api() or ""
        where = address.replace("0.0.0.0", "127.0.0.1")
        assert page_link(state_dir) == f"http://{where}/#token={token}"
    assert all(token not in str(request) for request in seen)
    with pytest.raises(NotRunningError):  # it has died, and left its files
        page_link(state_dir)


def test_status_and_orders(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    seen: list[tuple[str, str, str | None, str | None]] = []
    with answering(state_dir, 200, encode_status(STATUS), seen):
        assert fetch_status(state_dir) == STATUS
        token = DaemonFiles(state_dir).new_token()
        give_order(state_dir, "pause")
    assert seen == [
        ("GET", "/api/status", "1", None),
        ("POST", "/api/pause", "1", f"Bearer {token}"),
    ]


def test_a_daemon_that_ends_in_order(tmp_path: Path) -> None:
    """It closes its port first, and removes its address last."""
    (port,) = free_ports(1)
    state_dir = StateDir(tmp_path)
    with state_dir.locked():
        DaemonFiles(state_dir).write_api(f"127.0.0.1:{port}")
        with pytest.raises(NotRunningError, match=f"the node on {tmp_path} is ending"):
            fetch_status(state_dir)
    with pytest.raises(NotRunningError, match=f"no node runs on {tmp_path}. Start one"):
        fetch_status(state_dir)


def test_a_daemon_that_leaves_says_that_nothing_takes_it_back(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    with answering(state_dir, LEAVING_CODE, b"the node is leaving\n", []):
        DaemonFiles(state_dir).new_token()
        with pytest.raises(ClientError, match=f"the node on {tmp_path} is leaving, and nothing"):
            give_order(state_dir, "resume")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b'{"accepted":true}', ""),
        (b'{"accepted":true,"problem":"the disk is full"}', "the disk is full"),
    ],
)
def test_an_order_that_the_disk_of_the_node_does_not_take(
    tmp_path: Path, answer: bytes, problem: str
) -> None:
    state_dir = StateDir(tmp_path)
    with answering(state_dir, 202, answer, []):
        DaemonFiles(state_dir).new_token()
        assert give_order(state_dir, "pause") == problem
        assert change_limits(state_dir, {"upload": "9"}) == problem


def test_a_node_that_is_starting_says_what_it_does(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    with state_dir.locked():
        with pytest.raises(NotRunningError):
            fetch_status(state_dir)
        DaemonFiles(state_dir).write_starting("it founds a run: reading, 40% done")
        with pytest.raises(StartingError, match="is starting: it founds a run: reading, 40% done"):
            fetch_status(state_dir)
        with pytest.raises(StartingError):
            give_order(state_dir, "pause")
    with pytest.raises(NotRunningError):
        fetch_status(state_dir)
    # What a killed daemon leaves is no node.
    DaemonFiles(state_dir).write_starting("it founds a run")
    for pid in ("", "0", str(2**22 + 1)):
        state_dir.lock_path.write_text(pid)
        with pytest.raises(NotRunningError):
            fetch_status(state_dir)
    with state_dir.locked(), pytest.raises(NotRunningError):
        fetch_status(state_dir)


def test_an_order_without_a_token_says_what_is_missing(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    DaemonFiles(state_dir).write_api("127.0.0.1:1")
    with pytest.raises(ClientError, match="token is missing"):
        give_order(state_dir, "pause")


def test_an_order_to_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError, match=f"no node runs on {tmp_path}"):
        give_order(StateDir(tmp_path), "leave")


def test_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError, match=f"no node runs on {tmp_path}"):
        fetch_status(StateDir(tmp_path))


def test_a_daemon_that_was_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    state_dir = StateDir(tmp_path)
    DaemonFiles(state_dir).write_api(f"127.0.0.1:{port}")
    DaemonFiles(state_dir).new_token()
    with pytest.raises(NotRunningError, match="did not end in order"):
        give_order(state_dir, "leave")


@pytest.mark.parametrize(
    ("code", "body", "reason"),
    [
        (200, b"<html>some other service</html>", "sent an answer that is not a status"),
        (404, b"no such page", "refused /api/status: 404 no such page"),
        (200, b" " * 200, "sent more than 100 bytes"),
    ],
)
def test_something_else_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, body: bytes, reason: str
) -> None:
    monkeypatch.setattr(client, "_ANSWER_BYTES_MAX", 100)
    state_dir = StateDir(tmp_path)
    with answering(state_dir, code, body, []), pytest.raises(ClientError, match=reason):
        fetch_status(state_dir)


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (lambda connection: connection.recv(1), "did not answer within"),
        (lambda connection: connection.close(), "the connection to the daemon at .* broke"),
    ],
)
def test_a_daemon_that_hangs_or_dies(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    behave: Callable[[socket.socket], object],
    reason: str,
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.2)
    state_dir = StateDir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        DaemonFiles(state_dir).write_api(f"127.0.0.1:{server.getsockname()[1]}")
        accepted: list[socket.socket] = []

        def accept() -> None:
            connection, _ = server.accept()
            accepted.append(connection)
            behave(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(ClientError, match=reason):
            fetch_status(state_dir)
        thread.join()
        for connection in accepted:
            connection.close()


def test_an_order_to_a_daemon_that_hangs_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has taken it, and the daemon reads it when it goes on."""
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.2)
    state_dir = StateDir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server, state_dir.locked():
        DaemonFiles(state_dir).write_api(f"127.0.0.1:{server.getsockname()[1]}")
        DaemonFiles(state_dir).new_token()
        with pytest.raises(ClientError, match="It obeys the order when it goes on"):
            give_order(state_dir, "leave")


def test_a_damaged_address(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    state_dir.api_path.write_bytes(b"\xff\xff")
    with pytest.raises(ClientError, match="is damaged"):
        fetch_status(state_dir)


def test_the_address_of_a_crash_is_not_asked_where_nobody_holds_the_directory(
    tmp_path: Path,
) -> None:
    """Another node may listen there by now."""
    state_dir = StateDir(tmp_path)
    seen: list[tuple[str, str, str | None, str | None]] = []
    with answering(state_dir, 200, encode_status(STATUS), seen):
        left_behind = state_dir.api_path.read_text()
        with state_dir.locked():
            state_dir.api_path.write_text(left_behind)
            token = DaemonFiles(state_dir).new_token()
            assert fetch_status(state_dir) == STATUS
        assert len(seen) == 1
        state_dir.api_path.write_text(left_behind)
        state_dir.token_path.write_text(token)
        for use in (fetch_status, page_link, lambda where: give_order(where, "leave")):
            with pytest.raises(NotRunningError, match="did not end in order"):
                use(state_dir)
        assert len(seen) == 1
