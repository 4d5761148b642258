"""What all HTTP servers of the project have in common.

They listen on loopback by default. Even there, a web page that is open in a browser on this machine
can resolve a name of its own to 127.0.0.1 (DNS rebinding) and read everything. Therefore the Host
header must be an address, a loopback name, or a name from the settings.

h11 bounds the headers (16 KiB), `Guard` the body, and `http_places` the connections. Idle and
stalled ones are closed. All of that is so in HTTP/1 alone, and so the servers speak nothing else.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import hypercorn.protocol
import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio import serve
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossamer.node.app.http.http_places import PlacedConfig
from gossamer.node.app.http.http_turns import Turns
from gossamer.node.app.http.order_rules import LOOPBACK_NAMES, address_of, host_of
from gossamer.node.base.address_text import HostPort, bind_remedy, parse_host_port
from gossamer.node.base.settings.settings import ConfigError
from gossamer.protocol.limits import MIB

if TYPE_CHECKING:
    import h11
    from hypercorn.typing import Framework
    from trio_typing import TaskStatus

log = structlog.get_logger()

# A client that reads nothing delays the end of its connection, and an orderly exit, no longer.
STALLED_CLIENT_MS_MAX = 5_000
IDLE_SECONDS_MAX = 15
# What is read of a body that no endpoint wants, before the answer goes out. A client that still
# sends when the connection ends may lose the answer, or use the connection again.
UNREAD_BYTES_MAX = 4 * MIB
UNREAD_SECONDS_MAX = 2.0
# Pause after a failure of the server itself. Without it a persistent failure would loop at once.
_RESTART_SECONDS = 1.0

ALIVE_PATH, ALIVE_TEXT = "/livez", "ok\n"
"""The liveness probe, and its answer while the process answers anything."""

_VERSIONS = ("1.0", "1.1")
"""The versions of HTTP that are spoken. In a later one a body may have no length, and a connection
that asks for nothing stays open."""


class _Http1Protocol(H11Protocol):
    """Connections stay with HTTP/1. Hypercorn has no setting for that."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Hypercorn changes to HTTP/2 here, if the client begins with it or offers it.

        A client that offers it is answered as if it had not (RFC 9110, 7.8).
        """

    async def _create_stream(self, request: h11.Request) -> None:
        """Hands a request on, if it is one of HTTP/1. HTTP/2 begins with what looks like one.

        Symptom: where a client sends more behind the request for a websocket, Hypercorn answers
        both. The second answer raises an error in it that ends the whole server.
        """
        if request.http_version.decode() not in _VERSIONS:
            refusal = 505
        elif any(name == b"upgrade" and b"websocket" in to.lower() for name, to in request.headers):
            refusal = 403
        else:
            await super()._create_stream(request)
            return
        await self._send_error_response(refusal)
        await self.send(Closed())


# The class that Hypercorn takes for each new connection (tested over a socket).
hypercorn.protocol.H11Protocol = _Http1Protocol  # type: ignore[attr-defined]


class ApiBindError(OSError):
    """The HTTP endpoint cannot use its address. The message says what to do."""


async def serve_app(
    app: ASGIApp,
    listener: socket.socket,
    *,
    read_seconds: float | None,
    task_status: TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `task_status` gets the HOST:PORT that it really listens on.

    Cancelling drops open connections. A failure while serving a client never leaves this function.

    Args:
        read_seconds: after which a connection whose client sends nothing is closed, also while it
            waits for an answer; None: it may wait.
    """
    host, port, *_ = listener.getsockname()
    task_status.started(str(HostPort(host, port)))  # the system keeps who comes before Hypercorn
    while True:
        try:
            await serve(cast("Framework", app), _config(listener, read_seconds), mode="asgi")
            return
        except Exception as error:
            # Hypercorn ends as a whole when its handling of one connection fails.
            log.error("the HTTP endpoint failed; it starts again", error=repr(error))
            await trio.sleep(_RESTART_SECONDS)


def bind_address(option: str, address_text: str) -> socket.socket:
    """Returns a listening socket on a HOST:PORT; port 0 picks a free one.

    Args:
        option: that gave the address, for the error.

    Raises:
        ConfigError: the text is no HOST:PORT.
        ApiBindError: the address is in use, or does not belong to this machine.
    """
    try:
        where = parse_host_port(address_text)
    except ValueError as error:
        raise ConfigError([f"{option}: {error}"]) from error
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
    except OSError as error:
        raise ApiBindError(
            f"{option} {where}: {error.strerror}; use an address of this machine, such as "
            "127.0.0.1:0"
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # inherited by what it accepts
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_CLIENT_MS_MAX)
        listener.bind(address)
        listener.listen(100)
    except OSError as error:
        listener.close()
        raise ApiBindError(
            f"{option} {where}: {error.strerror}. {bind_remedy(error, option)}"
        ) from error
    return listener


def _config(listener: socket.socket, read_seconds: float | None) -> Config:
    config = PlacedConfig()
    config.bind = [f"fd://{listener.dup().detach()}"]
    config.errorlog = logging.getLogger("hypercorn.error")
    config.include_server_header = False
    config.keep_alive_timeout = IDLE_SECONDS_MAX
    # The stubs do not know None, hypercorn's default.
    config.read_timeout = read_seconds  # type: ignore[assignment]
    config.graceful_timeout = 1.0
    return config


class Guard:
    """Refuses requests that break the rules of an endpoint, and adds headers to every answer."""

    _HEADERS: Mapping[str, str] = {
        "cache-control": "no-store",
        "cross-origin-resource-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
    _POLICY = "default-src 'none'; frame-ancestors 'none'"

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        body_bytes_max: int,
        turns: Turns | None = None,
    ) -> None:
        """
        Args:
            hosts: host names that requests may use besides loopback names and addresses.
            body_bytes_max: 0 for an endpoint whose requests have no body.
            turns: of the requests; None: all are answered when they come.
        """
        self._app = app
        self._turns = turns
        self._body_bytes_max = body_bytes_max
        self._hosts = frozenset(name.lower() for name in (*LOOPBACK_NAMES, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        turns = self._turns
        if turns is None or turns.is_owner(Headers(scope=scope)):
            await self._answer(scope, receive, send)
        elif turns.is_full:
            await self._turn_away(scope, receive, send)
        else:
            async with turns:
                await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(receive)
        is_known_version = scope["http_version"] in _VERSIONS

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._HEADERS)
                headers.setdefault("content-security-policy", self._POLICY)
                if not (is_known_version and await body.ends()):
                    headers["connection"] = "close"
            await send(message)

        refusal = (
            self._refuse(Headers(scope=scope))
            if is_known_version
            else PlainTextResponse("this endpoint speaks HTTP/1.1\n", status_code=505)
        )
        await (refusal or self._app)(scope, body.receive, send_guarded)

    async def _turn_away(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request in whose turn too many others wait. Nothing here waits for its
        client.

        A liveness probe is answered as always. The answer costs no more than a refusal, and a
        refusal makes an orchestrator restart a node that is well.
        """
        headers = {**self._HEADERS, "connection": "close"}
        if scope["path"] == ALIVE_PATH:
            answer = PlainTextResponse(ALIVE_TEXT, headers=headers)
        else:
            answer = PlainTextResponse(
                "too many requests wait for this node. Ask again later\n",
                status_code=503,
                headers={**headers, "retry-after": "1"},
            )
        await answer(scope, receive, send)

    def _refuse(self, headers: Headers) -> Response | None:
        if not self._is_known_host(headers.getlist("host")):
            return PlainTextResponse(
                "this node does not answer to that host name. Use its address, or add the name "
                "to the setting api_hosts (GOSSAMER_API_HOSTS)\n",
                status_code=421,
            )
        if not self._has_fitting_body(headers):
            allowed = (
                f"have a body of at most {self._body_bytes_max:,} bytes, and say its length"
                if self._body_bytes_max
                else "have no body"
            )
            return PlainTextResponse(f"requests to this endpoint {allowed}\n", status_code=413)
        return None

    def _has_fitting_body(self, headers: Headers) -> bool:
        length = headers.get("content-length", "0").strip()
        # The length is checked here, and h11 takes no more than it says.
        if "transfer-encoding" in headers or not length.isdecimal() or len(length) > 12:
            return False
        return int(length) <= self._body_bytes_max

    def _is_known_host(self, values: list[str]) -> bool:
        if len(values) != 1:
            return False
        host = host_of(values[0])
        # Only names can be rebound: the owner of a name decides where it points.
        return host in self._hosts or address_of(host) is not None


class _Body:
    """The body of one request, on its way to the application.

    Hypercorn ends a connection whose request has not come to its end when it is answered, and says
    so in no header.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._has_ended = False

    async def receive(self) -> Message:
        """Returns the next message of the request, as ASGI's `receive`."""
        message = await self._receive()
        self._has_ended |= not message.get("more_body", False)
        return message

    async def ends(self) -> bool:
        """Reads what the application left of the body, within the limits of this module.

        Returns:
            Whether the body came to its end. If not, the connection cannot be used again.
        """
        num_bytes = 0
        with trio.move_on_after(UNREAD_SECONDS_MAX):
            while not self._has_ended and num_bytes < UNREAD_BYTES_MAX:
                num_bytes += len((await self.receive()).get("body", b""))
        return self._has_ended
