"""The local HTTP endpoint: the page and what it shows, metrics, probes, and orders.

The endpoint listens on loopback by default. Even there, a web page that is open in a browser on
this machine can send a plain form. Therefore an order (POST) needs the header `X-Gossamer: 1`. A
foreign page can send that header only after a CORS preflight, which nothing here answers. Orders
are accepted only from this machine.

Orders have more rules, see `order_rules`. The log has the same: it may name files and peers that
are nobody else's business.

Requests have no body. `http_server` has what holds for every HTTP server of the project.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gossamer.node.app.http.http_server import (
    ALIVE_TEXT,
    IDLE_SECONDS_MAX,
    Guard,
    bind_address,
    serve_app,
)
from gossamer.node.app.http.http_turns import Turns
from gossamer.node.app.http.order_rules import parse_pause, refuse_order
from gossamer.node.app.http.page import load_page, qr_code
from gossamer.node.app.reporting.credit_view import CreditView
from gossamer.node.base.pausing import LEAVING_CODE, LeavingError
from gossamer.node.base.terminal.printable import printable_json
from gossamer.node.base.threads import run_abandonable
from gossamer.node.storage.owner_files import RoundSamples
from gossamer.node.telemetry.logs import newest_lines
from gossamer.node.telemetry.status import Status, encode_status, is_ready, link_of
from gossamer.protocol.policy.conduct.throttle import Rate

if TYPE_CHECKING:
    from trio_typing import TaskStatus


# Orders have no body, so a request with one does not come from a Gossamer client.
_BODY_BYTES_MAX = 0

REQUESTS_RATE = Rate(per_second=20, burst=100)
"""Rate of all requests but the owner's: each takes the event loop 1 to 3 ms, so they take a
twentieth of a processor at most. A page asks six times at once, and then once or twice a second.
Any program of this machine can ask, and so can a page of a foreign site in its browser, which
cannot read the answer."""

KEPT_SECONDS_MAX = 5.0
"""Limit of the wait for the disk before an order is answered: the client waits for twice as long.
The order stands, and the disk may still take it."""

log = structlog.get_logger("node")


Samples = Callable[[], Sequence[RoundSamples]]


class Controls(Protocol):
    """The node, as the orders see it. The status shows their effect. A node that leaves refuses to
    pause and to resume (LeavingError)."""

    def pause(self, seconds: float | None = None, *, after_round: bool = False) -> None: ...

    def resume(self) -> None: ...

    async def order_kept(self) -> str:
        """Waits until the disk had its chance to take the pause, or its end. Returns the reason why
        it will not hold over a restart; empty if it will."""

    def leave(self) -> None: ...

    def finish(self) -> None: ...

    @property
    def disk_problem(self) -> str:
        """The reason why the disk takes nothing now; empty if it takes everything."""

    async def set_limits(self, changes: Mapping[str, str]) -> str:
        """Returns the reason why the limits, which hold now, will not hold over a restart; empty if
        they will. Raises ValueError for a change that cannot be made."""


async def serve_http(
    bind: str, app: ASGIApp, *, task_status: TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serves the endpoint until cancelled; `task_status` gets the HOST:PORT that it really listens
    on.

    Cancelling drops open connections. A failure while serving a client never leaves this function,
    so that the status page cannot end the node.

    Args:
        bind: HOST:PORT; port 0 picks a free one.

    Raises:
        ApiBindError: the address is in use, or does not belong to this machine.
    """
    with bind_address("--api", bind) as listener:
        await serve_app(app, listener, read_seconds=IDLE_SECONDS_MAX, task_status=task_status)


def require_free(bind: str) -> None:
    """Checks an address before minutes of other work. Raises ApiBindError if it cannot be used."""
    bind_address("--api", bind).close()


def build_app(
    status: Callable[[], Status],
    registry: CollectorRegistry,
    controls: Controls,
    token: str,
    hosts: Sequence[str] = (),
    credit: CreditView | None = None,
    samples: Samples = tuple,
) -> ASGIApp:
    """Returns the endpoint as an ASGI application.

    Args:
        status: returns the status; it is called on the event loop for each request.
        token: the secret that orders need. A request with it waits for no other.
        hosts: host names that requests may use besides loopback names and addresses.
        credit: counts what each member has given; None: nothing is counted.
        samples: returns what the model wrote, oldest round first.
    """
    page, policy = load_page()

    async def show_page(_request: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    async def show_status(_request: Request) -> Response:
        return Response(encode_status(status()), media_type="application/json")

    async def show_link(_request: Request) -> Response:
        link = link_of(status())
        if link is None:
            return PlainTextResponse("this node is in no run yet\n", status_code=404)
        return Response(qr_code(link), media_type="image/svg+xml")

    app = Starlette(
        routes=[
            Route("/", show_page),
            Route("/api/status", show_status),
            Route("/join.svg", show_link),
            *_detail_routes(credit, samples, token),
            *_probe_routes(status, registry),
            *_order_routes(controls, token),
        ]
    )
    return Guard(app, hosts, _BODY_BYTES_MAX, Turns(REQUESTS_RATE, token))


def _detail_routes(credit: CreditView | None, samples: Samples, token: str) -> list[Route]:
    """What the page shows besides the status."""

    async def show_credit(_request: Request) -> Response:
        answer = await credit.answer() if credit is not None else None
        if answer is None:
            return PlainTextResponse("nothing is counted yet\n", status_code=503)
        return Response(answer, media_type="application/json")

    async def show_samples(_request: Request) -> Response:
        # As in the status: a terminal must not obey what a model writes.
        text = printable_json(msgspec.json.encode(samples()).decode())
        return Response(text, media_type="application/json")

    async def show_log(request: Request) -> Response:
        refusal = refuse_order(request, token)
        return refusal or JSONResponse({"lines": newest_lines()})

    return [
        Route("/api/credit", show_credit),
        Route("/api/samples", show_samples),
        Route("/api/log", show_log),
    ]


def _probe_routes(status: Callable[[], Status], registry: CollectorRegistry) -> list[Route]:
    """What monitoring asks."""
    scrape_limiter = trio.CapacityLimiter(1)

    async def show_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # In a thread: the encoder reads the GPUs, and a driver may answer slowly.
        text = await run_abandonable(lambda: encode(registry), limiter=scrape_limiter)
        return Response(text, headers={"content-type": content_type})

    async def show_alive(_request: Request) -> Response:
        return PlainTextResponse(ALIVE_TEXT)

    async def show_ready(_request: Request) -> Response:
        now = status()
        if is_ready(now):
            return PlainTextResponse("ok\n")
        reason = now.put_out or now.phase
        return PlainTextResponse(f"not taking part in rounds: {reason}\n", status_code=503)

    return [
        Route("/metrics", show_metrics),
        Route("/livez", show_alive),
        Route("/readyz", show_ready),
    ]


def _order_routes(controls: Controls, token: str) -> list[Route]:
    async def pause(request: Request) -> str:
        seconds, after_round = parse_pause(request.query_params)
        controls.pause(seconds, after_round=after_round)
        return await _order_kept(controls)

    async def resume(_request: Request) -> str:
        controls.resume()
        return await _order_kept(controls)

    async def finish(_request: Request) -> str:
        log.info("ordered to leave when the present round ends")
        controls.finish()
        return controls.disk_problem

    async def leave(_request: Request) -> str:
        log.info("ordered to leave")
        controls.leave()
        return controls.disk_problem

    async def set_limits(request: Request) -> str:
        return await controls.set_limits(dict(request.query_params))

    return [
        Route("/api/pause", _order(pause, token), methods=["POST"]),
        Route("/api/resume", _order(resume, token), methods=["POST"]),
        Route("/api/limits", _order(set_limits, token), methods=["POST"]),
        Route("/api/finish", _order(finish, token), methods=["POST"]),
        Route("/api/leave", _order(leave, token), methods=["POST"]),
    ]


async def _order_kept(controls: Controls) -> str:
    with trio.move_on_after(KEPT_SECONDS_MAX):
        return await controls.order_kept()
    return f"the disk has not taken it in {KEPT_SECONDS_MAX:g} s"


def _order(
    act: Callable[[Request], Awaitable[str]], token: str
) -> Callable[[Request], Awaitable[Response]]:
    """Returns the handler of an order.

    Args:
        act: gives the order, and returns the reason why the disk did not take it, or takes nothing
            of a node that leaves; empty if it does.
            ValueError: it is no order, or one that cannot be carried out.
    """

    async def handle(request: Request) -> Response:
        refusal = refuse_order(request, token)
        if refusal is not None:
            return refusal
        try:
            problem = await act(request)
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        except LeavingError as error:
            return PlainTextResponse(f"{error}\n", status_code=LEAVING_CODE)
        answer = {"accepted": True, "problem": problem} if problem else {"accepted": True}
        return JSONResponse(answer, status_code=202)

    return handle
