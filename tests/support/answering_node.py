"""The HTTP endpoint of a paused node that takes every order, for commands that ask a node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import PeerStatus, Status, encode_status

STATUS = Status(
    peer_id="me",
    run_id="ab" * 32,
    version="0",
    phase="paused",
    paused_reason="user",
    round=12,
    peers=tuple(
        PeerStatus(peer_id=f"peer {number}", phase="training", round=12, device="CPU")
        for number in range(7)
    ),
)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(encode_status(STATUS))

    def do_POST(self) -> None:
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None: ...


@contextmanager
def answering_node(root: Path) -> Iterator[None]:
    """A state directory whose node answers."""
    files = DaemonFiles(StateDir(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        files.new_token()
        files.write_api(f"127.0.0.1:{server.server_port}")
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
