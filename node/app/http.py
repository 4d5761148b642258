"""The local HTTP endpoint: the page and what it shows, metrics, probes, and orders.

The endpoint listens on loopback by default. Even there, a web page that is open in a browser on
this machine can attack it in two ways:

- A page can resolve a name of its own to 127.0.0.1 (DNS rebinding) and read everything. Therefore
  the Host header must be an address, a loopback name, or a name from the settings.
- A page can send a plain form. Therefore an order (POST) needs the header `X-Gossamer: 1`. A
  foreign page can send that header only after a CORS preflight, which nothing here answers.
  Orders are accepted only from this machine.

Orders have more rules, see `order_rules`. The log has the same: it may name files and peers that
are nobody else's business.

Requests have no body. h11 bounds the headers (16 KiB). Idle and stalled connections are closed.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossamer.node.app.credit_view import CreditView
from gossamer.node.app.order_rules import LOOPBACK_NAMES, host_of, parse_pause, refuse_order
from gossamer.node.app.page import load_page, qr_code
from gossamer.node.base.address_text import HostPort, parse_host_port
from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.settings import ConfigError
from gossamer.node.telemetry.logs import newest_lines
from gossamer.node.telemetry.status import Status, encode_status, is_ready, link_of

if TYPE_CHECKING:
    from hypercorn.typing import Framework
    from trio_typing import TaskStatus

log = structlog.get_logger()


class _Encode(Protocol):
    """Writes a registry in one of the formats of Prometheus."""

    def __call__(self, registry: CollectorRegistry, /) -> bytes: ...


class _RunInThread(Protocol):
    """`trio.to_thread.run_sync`. The stubs that libp2p brings do not know `abandon_on_cancel`."""

    async def __call__(
        self,
        encode: _Encode,
        registry: CollectorRegistry,
        /,
        *,
        limiter: trio.CapacityLimiter,
        abandon_on_cancel: bool,
    ) -> bytes: ...


_run_in_thread = cast(_RunInThread, trio.to_thread.run_sync)

# A client that reads nothing delays the end of its connection, and an orderly exit, no longer.
_STALLED_CLIENT_MS_MAX = 5_000
_IDLE_SECONDS_MAX = 15
# Orders have no body, so a request with one does not come from a Gossamer client.
_BODY_BYTES_MAX = 0
# Pause after a failure of the server itself. Without it a persistent failure would loop at once.
_RESTART_SECONDS = 1.0


class ApiBindError(OSError):
    """The HTTP endpoint cannot use its address. The message says what to do."""


class Controls(Protocol):
    """The node, as the orders see it. They return at once; the status shows their effect."""

    def pause(self, seconds: float | None = None, *, after_round: bool = False) -> None: ...

    def resume(self) -> None: ...

    def leave(self) -> None: ...

    def finish(self) -> None: ...

    async def set_limits(self, changes: Mapping[str, str]) -> None:
        """Raises ConfigError for a change that cannot be made, and DiskError."""


async def serve_http(
    bind: str,
    status: Callable[[], Status],
    registry: CollectorRegistry,
    controls: Controls,
    token: str,
    *,
    hosts: Sequence[str] = (),
    credit: CreditView | None = None,
    task_status: TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `task_status` gets the HOST:PORT that it really listens on.

    Cancelling drops open connections. A failure while serving a client never leaves this function,
    so that the status page cannot end the node.

    Args:
        bind: HOST:PORT; port 0 picks a free one.
        status: returns the status; it is called on the event loop for each request.
        token: the secret that orders need.
        hosts: host names that requests may use besides loopback names and addresses.
        credit: counts what each member has given; None: nothing is counted.

    Raises:
        ApiBindError: the address is in use, or does not belong to this machine.
    """
    listener = _bind(parse_host_port(bind))
    name = listener.getsockname()
    address = str(HostPort(name[0], name[1]))
    app = build_app(status, registry, controls, token, hosts, credit)
    with listener:
        started = task_status
        while True:
            try:
                await serve(
                    cast("Framework", app),
                    _config(listener),
                    mode="asgi",
                    task_status=_Started(started, address),
                )
                return
            except Exception as error:
                # Hypercorn ends as a whole when its handling of one connection fails.
                log.error("the HTTP endpoint failed; it starts again", error=repr(error))
                started = trio.TASK_STATUS_IGNORED
                await trio.sleep(_RESTART_SECONDS)


class _Started:
    """Passes our address, in place of hypercorn's list, to the task that waits for the start."""

    def __init__(self, task_status: TaskStatus[str], address: str) -> None:
        self._task_status = task_status
        self._address = address

    def started(self, _binds: Sequence[str] | None = None) -> None:
        self._task_status.started(self._address)


def require_free(bind: str) -> None:
    """Checks an address before minutes of other work. Raises ApiBindError if it cannot be used."""
    _bind(parse_host_port(bind)).close()


def _bind(where: HostPort) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
    except OSError as error:
        raise ApiBindError(
            f"--api {where}: {error.strerror}; use an address of this machine, such as 127.0.0.1:0"
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # inherited by what it accepts
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED_CLIENT_MS_MAX)
        listener.bind(address)
        listener.listen(100)
    except OSError as error:
        listener.close()
        raise ApiBindError(
            f"--api {where}: {error.strerror}. Give another port (0 picks a free one), "
            "or stop the program that listens there"
        ) from error
    return listener


def _config(listener: socket.socket) -> Config:
    config = Config()
    config.bind = [f"fd://{listener.dup().detach()}"]
    config.errorlog = logging.getLogger("hypercorn.error")
    config.include_server_header = False
    config.keep_alive_timeout = _IDLE_SECONDS_MAX
    config.read_timeout = _IDLE_SECONDS_MAX
    config.graceful_timeout = 1.0
    return config


def build_app(
    status: Callable[[], Status],
    registry: CollectorRegistry,
    controls: Controls,
    token: str,
    hosts: Sequence[str] = (),
    credit: CreditView | None = None,
) -> ASGIApp:
    """The endpoint as an ASGI application; see `serve_http`."""
    page, policy = load_page()
    scrape_limiter = trio.CapacityLimiter(1)

    async def show_page(_request: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    async def show_status(_request: Request) -> Response:
        return Response(encode_status(status()), media_type="application/json")

    async def show_link(_request: Request) -> Response:
        link = link_of(status())
        if link is None:
            return PlainTextResponse("this node is in no run yet\n", status_code=404)
        return Response(qr_code(link), media_type="image/svg+xml")

    async def show_credit(_request: Request) -> Response:
        answer = await credit.answer() if credit is not None else None
        if answer is None:
            return PlainTextResponse("nothing is counted yet\n", status_code=503)
        return Response(answer, media_type="application/json")

    async def show_log(request: Request) -> Response:
        refusal = refuse_order(request, token)
        return refusal or JSONResponse({"lines": newest_lines()})

    async def show_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # In a thread: the encoder reads the GPUs, and a driver may answer slowly.
        text = await _run_in_thread(
            encode, registry, limiter=scrape_limiter, abandon_on_cancel=True
        )
        return Response(text, headers={"content-type": content_type})

    async def show_alive(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def show_ready(_request: Request) -> Response:
        now = status()
        if is_ready(now):
            return PlainTextResponse("ok\n")
        return PlainTextResponse(f"not taking part in rounds: {now.phase}\n", status_code=503)

    def pause(request: Request) -> None:
        seconds, after_round = parse_pause(request.query_params)
        controls.pause(seconds, after_round=after_round)

    async def set_limits(request: Request) -> Response:
        refusal = refuse_order(request, token)
        if refusal is not None:
            return refusal
        try:
            await controls.set_limits(dict(request.query_params))
        except ConfigError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        except DiskError as error:
            return PlainTextResponse(f"{error}\n", status_code=507)
        return JSONResponse({"accepted": True}, status_code=202)

    app = Starlette(
        routes=[
            Route("/", show_page),
            Route("/api/status", show_status),
            Route("/api/credit", show_credit),
            Route("/api/log", show_log),
            Route("/join.svg", show_link),
            Route("/metrics", show_metrics),
            Route("/livez", show_alive),
            Route("/readyz", show_ready),
            Route("/api/pause", _order(pause, token), methods=["POST"]),
            Route("/api/resume", _order(lambda _: controls.resume(), token), methods=["POST"]),
            Route("/api/limits", set_limits, methods=["POST"]),
            Route("/api/finish", _order(lambda _: controls.finish(), token), methods=["POST"]),
            Route("/api/leave", _order(lambda _: controls.leave(), token), methods=["POST"]),
        ]
    )
    return _Guard(app, hosts)


def _order(act: Callable[[Request], None], token: str) -> Callable[[Request], Awaitable[Response]]:
    # Async, because Starlette runs a plain function in a thread, and orders change the daemon.
    async def handle(request: Request) -> Response:
        refusal = refuse_order(request, token)
        if refusal is not None:
            return refusal
        try:
            act(request)
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        return JSONResponse({"accepted": True}, status_code=202)

    return handle


class _Guard:
    """Refuses requests that break the rules of the endpoint, and adds headers to every answer."""

    _HEADERS = (
        (b"cache-control", b"no-store"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
    )
    _POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(name.lower() for name in (*LOOPBACK_NAMES, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                headers.extend(self._HEADERS)
                if not any(name == self._POLICY[0] for name, _ in headers):
                    headers.append(self._POLICY)
                message = {**message, "headers": headers}
            await send(message)

        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        refusal = self._refuse(headers)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refuse(self, headers: dict[bytes, list[bytes]]) -> Response | None:
        if not self._is_known_host(headers.get(b"host", [])):
            return PlainTextResponse(
                "this node does not answer to that host name. Use its address, or add the name "
                "to the setting api_hosts (GOSSAMER_API_HOSTS)\n",
                status_code=421,
            )
        length = headers.get(b"content-length", [b"0"])[0]
        if b"transfer-encoding" in headers or length.strip() != str(_BODY_BYTES_MAX).encode():
            return PlainTextResponse(
                "requests to this endpoint have no body\n",
                status_code=413,
                headers={"connection": "close"},
            )
        return None

    def _is_known_host(self, values: list[bytes]) -> bool:
        if len(values) != 1:
            return False
        host = host_of(values[0].decode("latin-1"))
        # Only names can be rebound: the owner of a name decides where it points.
        return host in self._hosts or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
