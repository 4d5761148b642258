"""A home on this machine: a node, its router and another machine, in network namespaces.

The servers are threads of the test. Each belongs to the namespace of the machine it is on, keeps
what it was asked, and ends with its block.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

from tests.support.netns import LINE, Network, run_tool

NODE, ROUTER, OTHER = range(3)

SSDP = ("239.255.255.250", 1900)

_IP_TRANSPARENT = 19
"""The option of <linux/in.h> with which a socket sends from an address of another machine."""

_LOOK_SECONDS = 0.2
"""Interval in which a thread looks whether its block has ended."""


class HomeNetwork:
    """The three machines. Use as a context. NamespacesUnavailable: on entering, see `netns`."""

    def __init__(self) -> None:
        self._network = Network([1000.0] * 3)

    def __enter__(self) -> HomeNetwork:
        self._network.__enter__()
        node = self._network.prefix(NODE)
        run_tool(*node, "ip", "route", "add", "default", "via", self.host(ROUTER), "dev", LINE)
        return self

    def __exit__(self, *_error: object) -> None:
        self._network.__exit__(None, None, None)

    def host(self, machine: int) -> str:
        return self._network.host(machine)

    def inside(self, machine: int) -> AbstractContextManager[None]:
        """Sockets and processes that this thread makes within the block are the machine's."""
        return self._network.inside(machine)

    def run(self, machine: int, *command: str) -> None:
        """Runs a command that must succeed on a machine."""
        run_tool(*self._network.prefix(machine), *command)


@dataclass(frozen=True)
class Asked:
    """A request of HTTP."""

    method: str
    target: str
    headers: dict[str, str]
    """By lower-case name."""
    body: str


Answer = Callable[[Asked], Iterator[bytes]]
"""The pieces of an answer, head included, each sent by itself."""


@dataclass
class WebServer:
    """Answers HTTP on an address, one request a connection."""

    answer: Answer
    host: str = "127.0.0.1"
    where: Callable[[], AbstractContextManager[None]] = nullcontext
    """Is entered while the server's socket is made."""
    port: int = field(default=0, init=False)
    asked: list[Asked] = field(default_factory=list, init=False)

    @contextmanager
    def running(self) -> Iterator[WebServer]:
        with ExitStack() as threads:
            is_over = threading.Event()
            with self.where():
                server = socket.create_server((self.host, 0), backlog=64)
            threads.enter_context(server)
            server.settimeout(_LOOK_SECONDS)
            self.port = server.getsockname()[1]

            def accept() -> None:
                while not is_over.is_set():
                    with suppress(TimeoutError):
                        connection, _ = server.accept()
                        talk = threading.Thread(target=self._talk, args=(connection, is_over))
                        talk.start()
                        threads.callback(talk.join)

            accepting = threading.Thread(target=accept)
            accepting.start()
            try:
                yield self
            finally:
                is_over.set()
                accepting.join()

    def url(self, target: str) -> str:
        return f"http://{self.host}:{self.port}{target}"

    def _talk(self, connection: socket.socket, is_over: threading.Event) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5.0)
            request = _read(connection)
            self.asked.append(request)
            for piece in self.answer(request):
                if is_over.is_set():
                    return
                connection.sendall(piece)


def _read(connection: socket.socket) -> Asked:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(4096) or b"\r\n\r\n"
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(4096)
    method, target, *_ = [*first.split(" "), ""]
    return Asked(method, target, headers, body.decode())


def page(body: str | bytes, status: str = "200 OK") -> Iterator[bytes]:
    """A whole answer."""
    content = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/xml\r\nContent-Length: {len(content)}\r\n\r\n"
    yield head.encode() + content


@contextmanager
def answering_searches(
    network: HomeNetwork,
    machine: int,
    locations: Callable[[str], Sequence[str]],
    source: str | None = None,
) -> Iterator[list[str]]:
    """Answers the searches for UPnP devices. Yields the targets that were searched for.

    Args:
        locations: the descriptions that are told to somebody who searches for a target.
        source: the address that the answers come from; None: the machine's own.
    """
    searched: list[str] = []
    is_over = threading.Event()
    with network.inside(machine):
        heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        said = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with heard, said:
        heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        heard.bind(("", SSDP[1]))
        own = socket.inet_aton(network.host(machine))
        joined = struct.pack("4s4s", socket.inet_aton(SSDP[0]), own)
        heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        heard.settimeout(_LOOK_SECONDS)
        if source is not None:
            said.setsockopt(socket.IPPROTO_IP, _IP_TRANSPARENT, 1)
        said.bind((source or network.host(machine), 0))

        def hear() -> None:
            while not is_over.is_set():
                with suppress(TimeoutError):
                    data, sender = heard.recvfrom(2048)
                    target = data.decode().partition("\r\nST: ")[2].partition("\r\n")[0]
                    searched.append(target)
                    for location in locations(target):
                        said.sendto(_found(target, location), sender)

        thread = threading.Thread(target=hear)
        thread.start()
        try:
            yield searched
        finally:
            is_over.set()
            thread.join()


def _found(target: str, location: str) -> bytes:
    lines = [
        "HTTP/1.1 200 OK",
        "CACHE-CONTROL: max-age=120",
        f"ST: {target}",
        f"USN: uuid:00000000-0000-0000-0000-000000000000::{target}",
        "EXT:",
        "SERVER: Linux UPnP/1.1 Router/1.0",
        f"LOCATION: {location}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
