"""A webhook on loopback that notes what it gets."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Hook:
    """A webhook that gives these answers in turn, and the last one for ever."""

    answers: list[int]
    bodies: list[dict[str, object]] = field(default_factory=list)
    url: str = ""


@contextmanager
def hook(*answers: int) -> Iterator[Hook]:
    one = Hook(list(answers))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            one.bodies.append(json.loads(body))
            self.send_response(one.answers.pop(0) if len(one.answers) > 1 else one.answers[0])
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        one.url = f"http://127.0.0.1:{server.server_port}/secret?key=s3cret"
        try:
            yield one
        finally:
            server.shutdown()
            thread.join()
