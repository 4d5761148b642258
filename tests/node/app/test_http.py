import contextlib
import io
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import hypercorn.trio
import msgspec
import pytest
import segno
import structlog
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from gossamer.node.app.http import http, http_places
from gossamer.node.app.http.http import build_app, serve_http
from gossamer.node.app.http.http_server import UNREAD_BYTES_MAX, ApiBindError, Guard
from gossamer.node.base.pausing import LeavingError
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.storage.owner_files import RoundSamples, Sample
from gossamer.node.telemetry.logs import configure_logs
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.status import Status, link_of
from gossamer.protocol.limits import MIB
from gossamer.protocol.policy.conduct.throttle import Rate

TRAINING = Status(peer_id="me", run_id="ab" * 32, version="0.1.0", phase="training", round=3)
TOKEN = "5e" * 32
ORDER = {"x-gossamer": "1", "authorization": f"Bearer {TOKEN}"}


class Node:
    """The node, as the daemon hands it to the endpoint."""

    def __init__(self) -> None:
        self.now = TRAINING
        self.orders: list[str] = []
        self.pauses: list[tuple[float | None, bool]] = []
        self.metrics = Metrics()
        self.disk_problem = ""
        self.is_disk_hanging = False
        self.is_leaving = False

    def status(self) -> Status:
        return self.now

    def pause(self, seconds: float | None = None, *, after_round: bool = False) -> None:
        self.orders.append("pause")
        self.pauses.append((seconds, after_round))

    def resume(self) -> None:
        if self.is_leaving:
            raise LeavingError
        self.orders.append("resume")

    async def order_kept(self) -> str:
        if self.is_disk_hanging:
            await trio.sleep_forever()
        return self.disk_problem

    def finish(self) -> None:
        self.orders.append("finish")

    def leave(self) -> None:
        self.orders.append("leave")

    async def set_limits(self, changes: Mapping[str, str]) -> str:
        if "upload" not in changes:
            raise ConfigError(["sleep: there is no such limit"])
        self.orders.append(f"upload {changes['upload']}")
        return self.disk_problem


def ask(
    node: Node,
    method: str,
    path: str,
    *,
    headers: dict[str, str] | None = None,
    content: bytes | None = None,
    host: str = "127.0.0.1:4611",
    client: str = "127.0.0.1",
    server: str = "127.0.0.1",
    hosts: tuple[str, ...] = (),
    clock: trio.abc.Clock | None = None,
) -> httpx.Response:
    """Asks the endpoint. `server`: the address of this machine at which the request comes in."""

    async def main() -> httpx.Response:
        built: Any = build_app(node.status, node.metrics.registry, node, TOKEN, hosts)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await built({**scope, "server": (server, 4611)}, receive, send)

        transport = httpx.ASGITransport(app, client=(client, 5))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as asking:
            return await asking.request(method, path, headers=headers, content=content)

    return trio.run(main, clock=clock)


def serving(node: Node, use: Callable[[str], Awaitable[None]]) -> None:
    """Runs `use` with the address of a real server."""

    async def main() -> None:
        async def start(task_status: Any) -> None:
            app = build_app(node.status, node.metrics.registry, node, TOKEN)
            await serve_http("127.0.0.1:0", app, task_status=task_status)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                address: str = await nursery.start(start)
                await use(address)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_status() -> None:
    answer = ask(Node(), "GET", "/api/status")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["phase"] == "training"
    assert answer.json()["round"] == 3


def test_samples_are_there_without_the_token() -> None:
    kept = (RoundSamples(3, (Sample("Once", " upon"),)),)

    async def main() -> httpx.Response:
        node = Node()
        app: Any = build_app(node.status, node.metrics.registry, node, TOKEN, samples=lambda: kept)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as asking:
            return await asking.get("/api/samples")

    answer = trio.run(main)
    assert answer.json() == [{"round": 3, "samples": [{"prompt": "Once", "text": " upon"}]}]
    assert ask(Node(), "GET", "/api/samples").json() == []


def test_the_link_is_a_qr_code_once_the_run_is_known() -> None:
    node = Node()
    address, other = "/ip4/203.0.113.7/tcp/4610/p2p/12D3", "/ip4/203.0.113.8/tcp/4610/p2p/12D3"
    node.now = msgspec.structs.replace(TRAINING, run_id=None, addresses=(address,))
    assert ask(node, "GET", "/join.svg").status_code == 404
    pictures = []
    for first in (address, other):
        node.now = msgspec.structs.replace(
            TRAINING, run_id="ab" * 32, addresses=("/ip4/127.0.0.1/tcp/4610/p2p/12D3", first)
        )
        assert link_of(node.now) == f"{first}#{'ab' * 32}"
        answer = ask(node, "GET", "/join.svg")
        assert answer.headers["content-type"] == "image/svg+xml"
        pictures.append(answer.content)
        num_modules = segno.make(f"{first}#{'ab' * 32}", error="m").symbol_size(border=3)[0]
        assert f'width="{4 * num_modules}"'.encode() in answer.content
    assert pictures[0] != pictures[1]
    settled = msgspec.structs.replace(node.now, settled_head="cd" * 32)
    assert link_of(settled) == f"{other}#{'ab' * 32}@{'cd' * 32}"


def test_ready_only_while_taking_part_in_rounds() -> None:
    node = Node()
    assert ask(node, "GET", "/readyz").status_code == 200
    node.now = msgspec.structs.replace(TRAINING, phase="syncing")
    refused = ask(node, "GET", "/readyz")
    assert refused.status_code == 503
    assert "syncing" in refused.text
    assert ask(node, "GET", "/livez").status_code == 200
    node.now = msgspec.structs.replace(TRAINING, put_out="its work counts nowhere")
    refused = ask(node, "GET", "/readyz")
    assert refused.status_code == 503
    assert "its work counts nowhere" in refused.text


def test_metrics_in_both_formats() -> None:
    node = Node()
    node.metrics.inner_steps.inc(7)
    plain = ask(node, "GET", "/metrics")
    assert "gossamer_inner_steps_total 7.0" in plain.text
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    accept = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    modern = ask(node, "GET", "/metrics", headers=accept)
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")


def test_the_page_is_self_contained_and_may_run_nothing_else() -> None:
    answer = ask(Node(), "GET", "/")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "unsafe" not in policy
    # Nothing is loaded from elsewhere, and nothing that peers say is parsed as HTML.
    for forbidden in ("http://", "https://", "innerHTML", "insertAdjacent", "document.write"):
        assert forbidden not in answer.text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("path", ["/", "/api/status", "/metrics", "/nothing"])
def test_headers_of_every_answer(path: str) -> None:
    headers = ask(Node(), "GET", path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "content-security-policy" in headers
    assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4611", "localhost:1", "LOCALHOST", "[::1]:4611", "192.0.2.3", "seed:4611"]
)
def test_hosts_that_are_known(host: str) -> None:
    assert ask(Node(), "GET", "/livez", host=host, hosts=("seed",)).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_rebound_name_is_refused(host: str) -> None:
    for path in ("/api/status", "/", "/metrics"):
        answer = ask(Node(), "GET", path, host=host)
        assert answer.status_code == 421
        assert "me" not in answer.text.split()


@pytest.mark.parametrize("order", ["pause", "resume", "finish", "leave"])
def test_orders(order: str) -> None:
    node = Node()
    assert ask(node, "POST", f"/api/{order}", headers=ORDER).status_code == 202
    assert node.orders == [order]


@pytest.mark.parametrize(
    ("order", "said"),
    [("leave", "ordered to leave"), ("finish", "ordered to leave when the present round ends")],
)
def test_the_log_says_why_a_node_leaves(order: str, said: str) -> None:
    with structlog.testing.capture_logs() as lines:
        ask(Node(), "POST", f"/api/{order}", headers=ORDER)
    assert [line["event"] for line in lines] == [said]


def test_a_node_that_leaves_refuses_to_stay() -> None:
    node = Node()
    node.is_leaving = True
    answer = ask(node, "POST", "/api/resume", headers=ORDER)
    assert (answer.status_code, node.orders) == (409, [])
    assert answer.text == "the node is leaving, and nothing takes that back\n"


@pytest.mark.parametrize("order", ["pause", "resume", "limits?upload=10", "finish", "leave"])
def test_the_answer_says_that_the_disk_does_not_have_the_order(order: str) -> None:
    node = Node()
    assert ask(node, "POST", f"/api/{order}", headers=ORDER).json() == {"accepted": True}
    node.disk_problem = "the disk is full"
    answer = ask(node, "POST", f"/api/{order}", headers=ORDER)
    assert answer.status_code == 202
    assert answer.json() == {"accepted": True, "problem": "the disk is full"}


def test_a_disk_that_hangs_keeps_no_order_from_its_answer() -> None:
    node = Node()
    node.is_disk_hanging = True
    clock = trio.testing.MockClock(autojump_threshold=0)
    answer = ask(node, "POST", "/api/pause", headers=ORDER, clock=clock)
    assert answer.status_code == 202
    assert "the disk has not taken it in 5 s" in answer.json()["problem"]
    assert node.orders == ["pause"]


def test_limits_are_set_and_a_mistake_is_told() -> None:
    node = Node()
    assert ask(node, "POST", "/api/limits?upload=10", headers=ORDER).status_code == 202
    answer = ask(node, "POST", "/api/limits?sleep=10", headers=ORDER)
    assert (answer.status_code, answer.text) == (400, "sleep: there is no such limit\n")
    assert ask(node, "POST", "/api/limits?upload=20").status_code == 403
    assert node.orders == ["upload 10"]


def test_a_pause_has_a_length_and_may_let_the_round_end() -> None:
    node = Node()
    for query in ("", "?seconds=7200", "?after_round=1", "?seconds=60&after_round=0"):
        assert ask(node, "POST", f"/api/pause{query}", headers=ORDER).status_code == 202
    assert node.pauses == [(None, False), (7200, False), (None, True), (60, False)]


@pytest.mark.parametrize(
    "query",
    ["seconds=0", "seconds=-1", "seconds=1e3", "seconds=", "seconds=\u0661", "seconds=2592001",
     "after_round=yes", "minutes=5"],
)  # fmt: skip
def test_a_pause_that_makes_no_sense_is_refused(query: str) -> None:
    node = Node()
    answer = ask(node, "POST", f"/api/pause?{query}", headers=ORDER)
    assert (answer.status_code, node.orders) == (400, [])
    assert "of a pause" in answer.text or "a pause has" in answer.text


def test_orders_that_are_refused() -> None:
    node = Node()
    # A form on another page, a script on one, another machine, a link.
    assert ask(node, "POST", "/api/leave").status_code == 403
    origin = {**ORDER, "origin": "http://evil.example"}
    assert ask(node, "POST", "/api/leave", headers=origin).status_code == 403
    assert ask(node, "POST", "/api/leave", headers=ORDER, client="192.0.2.1").status_code == 403
    assert ask(node, "GET", "/api/leave", headers=ORDER).status_code == 405
    assert ask(node, "OPTIONS", "/api/leave", headers=ORDER).status_code == 405
    assert node.orders == []


@pytest.mark.parametrize("host", ["127.0.0.1:4611", "localhost:4611", "[::1]:4611"])
def test_the_node_s_own_page_gives_orders(host: str) -> None:
    """A browser adds the origin of the page to each POST."""
    node = Node()
    headers = {**ORDER, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    assert ask(node, "POST", "/api/pause", headers=headers, host=host).status_code == 202
    del headers["authorization"]
    assert ask(node, "POST", "/api/pause", headers=headers, host=host).status_code == 401
    assert node.orders == ["pause"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:8000"},  # another program of this machine
        {"origin": "http://localhost:4611"},  # another name is another site
        {"origin": "https://127.0.0.1:4611"},
        {"origin": "null"},
        {"origin": ""},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:4611", "sec-fetch-site": "cross-site"},
    ],
)
def test_another_page_gives_no_orders_and_reads_no_log(headers: dict[str, str]) -> None:
    """Whatever secret it brings."""
    node = Node()
    for order in ("pause", "resume", "finish", "leave"):
        answer = ask(node, "POST", f"/api/{order}", headers={**ORDER, **headers})
        assert (answer.status_code, node.orders) == (403, [])
    assert ask(node, "GET", "/api/log", headers={**ORDER, **headers}).status_code == 403


def test_the_log_is_for_those_who_may_steer() -> None:
    configure_logs(stream=io.StringIO())
    structlog.get_logger().info("round committed", peers=3)
    answer = ask(Node(), "GET", "/api/log", headers=ORDER)
    assert answer.json()["lines"][-1].endswith("info    round committed  peers=3")
    without = ask(Node(), "GET", "/api/log", headers={"x-gossamer": "1"})
    assert (without.status_code, "round committed" in without.text) == (401, False)
    other = ask(Node(), "GET", "/api/log", headers=ORDER, client="192.0.2.1")
    assert other.status_code == 403


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}0",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xe9",
    ],
)
def test_an_order_without_the_token_is_refused(given: str | None) -> None:
    """Another user of the machine, or a program in a container that shares its network."""
    node = Node()
    headers = {"x-gossamer": "1"}
    if given is not None:
        headers["authorization"] = given
    for order in ("pause", "resume", "finish", "leave"):
        raw = {name: value.encode("latin-1") for name, value in headers.items()}
        answer = ask(node, "POST", f"/api/{order}", headers=raw)  # type: ignore[arg-type]
        assert answer.status_code == 401
        assert TOKEN not in answer.text
    assert node.orders == []


@pytest.mark.parametrize(
    "name",
    ["forwarded", "Via", "X-Forwarded-For", "x-forwarded-host", "x-forwarded-proto", "X-Real-IP"],
)
def test_a_reverse_proxy_on_this_machine_is_not_this_machine(name: str) -> None:
    node = Node()
    headers = {**ORDER, name: "192.0.2.1"}
    assert ask(node, "POST", "/api/leave", headers=headers).status_code == 403
    assert node.orders == []
    assert ask(node, "GET", "/api/status", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["node.example.org", "192.0.2.3:4611", "[2001:db8::1]:80"])
def test_an_order_to_another_name_than_this_machines_is_refused(host: str) -> None:
    """A proxy that hides itself keeps the name by which it was called."""
    node = Node()
    answer = ask(node, "POST", "/api/leave", headers=ORDER, host=host, hosts=("node.example.org",))
    assert answer.status_code == 403
    assert node.orders == []
    for mine in ("localhost:4611", "127.0.0.1:1", "[::1]:4611"):
        assert ask(node, "POST", "/api/pause", headers=ORDER, host=mine).status_code == 202


def test_an_endpoint_at_an_address_of_this_machine_takes_its_owners_orders() -> None:
    """`--api 192.0.2.3:4611`: a client on this machine comes from that address, too."""
    node = Node()
    here: Any = {"host": "192.0.2.3:4611", "server": "192.0.2.3"}
    assert ask(node, "POST", "/api/pause", headers=ORDER, client="192.0.2.3", **here).is_success
    for client, headers in (
        ("192.0.2.1", ORDER),
        ("192.0.2.3", {"x-gossamer": "1"}),
        ("192.0.2.3", {**ORDER, "via": "1.1 proxy"}),
        ("192.0.2.3", {**ORDER, "origin": "http://evil.example"}),
    ):
        answer = ask(node, "POST", "/api/leave", headers=headers, client=client, **here)
        assert answer.status_code in (401, 403)
    # A name that somebody points here, and what another address of this machine is called.
    for host in ("node.example.org", "192.0.2.4:4611"):
        given: Any = {**here, "host": host, "hosts": ("node.example.org",)}
        answer = ask(node, "POST", "/api/leave", headers=ORDER, client="192.0.2.3", **given)
        assert answer.status_code == 403
    assert node.orders == ["pause"]


def test_what_is_read_needs_no_token() -> None:
    for path in ("/", "/api/status", "/metrics", "/livez", "/readyz"):
        assert ask(Node(), "GET", path).status_code == 200


def test_a_body_is_refused() -> None:
    node = Node()
    answer = ask(node, "POST", "/api/pause", headers=ORDER, content=b"x" * 100)
    assert answer.status_code == 413
    assert node.orders == []


def test_a_real_server() -> None:
    node = Node()

    async def use(address: str) -> None:
        async with httpx.AsyncClient(base_url=f"http://{address}") as asking:
            assert (await asking.get("/api/status")).json()["peer_id"] == "me"
            assert (await asking.get("/metrics")).status_code == 200
            assert (await asking.post("/api/pause", headers=ORDER)).status_code == 202
        assert node.orders == ["pause"]

    serving(node, use)


HEAD = b"POST /api/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n"


def test_a_body_that_comes_late_leaves_the_connection_of_use() -> None:
    node = Node()

    async def use(address: str) -> None:
        host, port = address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            for _ in range(3):
                await stream.send_all(HEAD)
                await trio.testing.wait_all_tasks_blocked(0.1)  # the server has seen the head
                await stream.send_all(b"12345")
                answer = bytearray()
                while not answer.endswith(b"have no body\n"):
                    part = await stream.receive_some()
                    assert part, "the connection ended"
                    answer += part
                assert answer.startswith(b"HTTP/1.1 413")
                assert b"connection: close" not in answer.lower()
        assert node.orders == []

    serving(node, use)


def test_a_body_that_does_not_come_ends_the_connection_and_the_answer_says_so() -> None:
    async def use(address: str) -> None:
        host, port = address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(HEAD + b"123")
            answer = bytearray()
            async for part in stream:
                answer += part
            assert answer.startswith(b"HTTP/1.1 413")
            assert b"connection: close" in answer.lower()

    serving(Node(), use)


def test_an_endless_body_is_read_to_a_limit() -> None:
    async def use(address: str) -> None:
        host, port = address.split(":")
        head = HEAD.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked")
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(head)
            num_sent = 0
            with contextlib.suppress(trio.BrokenResourceError):
                while True:  # ends in time because the server ends the connection
                    await stream.send_all(chunk)
                    num_sent += len(chunk)
            assert num_sent < UNREAD_BYTES_MAX + 16 * MIB  # with the kernel's buffers

    serving(Node(), use)


async def _ask_if_alive(stream: trio.SocketStream) -> None:
    await stream.send_all(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\nok\n"):
        part = await stream.receive_some(4096)
        assert part, "the connection has ended"
        answer += part


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x00\xff" * 50_000,
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n",
        b"POST /api/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\nx",
        b"POST /api/pause HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nx",
        b"GET /%ff%00/../.. HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        + b"\x00\xff"
        * 50,
    ],
)
def test_rubbish_costs_its_own_connection_and_nothing_else(rubbish: bytes) -> None:
    node = Node()

    async def use(address: str) -> None:
        host, port = address.split(":")
        beside = await trio.open_tcp_stream(host, int(port))
        await _ask_if_alive(beside)
        stream = await trio.open_tcp_stream(host, int(port))
        with trio.move_on_after(5):
            try:
                await stream.send_all(rubbish)
                await stream.send_eof()
                answer = await stream.receive_some(64)
                assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5"))
            except trio.BrokenResourceError:
                pass
        await stream.aclose()
        await _ask_if_alive(beside)
        await beside.aclose()
        assert node.orders == []

    serving(node, use)


def test_what_comes_while_a_connection_ends_costs_no_other_one() -> None:
    """The answer to it meets a socket that another task of the server is just closing."""

    async def send_behind_the_last(address: str) -> None:
        host, port = address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(b"GET /livez HTTP/1.0\r\n\r\nGET /livez HTTP/1.1\r\n\r\n")
                await stream.receive_some(4096)
                await stream.send_all(bytes(100))
                await stream.receive_some(4096)

    async def use(address: str) -> None:
        host, port = address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as beside:
            for _ in range(10):
                await _ask_if_alive(beside)
                async with trio.open_nursery() as nursery:
                    for _ in range(12):
                        nursery.start_soon(send_behind_the_last, address)

    serving(Node(), use)


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nHost: 127"])
def test_connections_that_ask_nothing_are_few_and_keep_nobody_out(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them took all file descriptors of a daemon, and ended it."""
    monkeypatch.setattr(http_places, "CONNECTIONS_MAX", 8)

    async def use(address: str) -> None:
        host, port = address.split(":")
        async with contextlib.AsyncExitStack() as stack:
            silent = []
            for _ in range(24):
                stream = await trio.open_tcp_stream(host, int(port))
                silent.append(await stack.enter_async_context(stream))
                await stream.send_all(said)
                await trio.testing.wait_all_tasks_blocked(0.01)
            async with httpx.AsyncClient(base_url=f"http://{address}") as asking:
                assert (await asking.get("/livez")).status_code == 200
            ended = []
            for stream in silent:
                with trio.move_on_after(0.1):
                    try:
                        ended.append(await stream.receive_some() == b"")
                    except trio.BrokenResourceError:
                        ended.append(True)
            assert len(ended) >= 24 - 8

    serving(Node(), use)


def test_a_request_that_is_being_answered_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_places, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(http, "KEPT_SECONDS_MAX", 1.0)
    node = Node()
    node.is_disk_hanging = True

    async def use(address: str) -> None:
        host, port = address.split(":")
        async with (
            httpx.AsyncClient(base_url=f"http://{address}") as asking,
            contextlib.AsyncExitStack() as stack,
            trio.open_nursery() as nursery,
        ):

            async def pause() -> None:
                assert (await asking.post("/api/pause", headers=ORDER)).status_code == 202

            nursery.start_soon(pause)
            await trio.testing.wait_all_tasks_blocked(0.1)
            for _ in range(12):
                stream = await trio.open_tcp_stream(host, int(port))
                await stack.enter_async_context(stream)
                await trio.testing.wait_all_tasks_blocked(0.01)

    serving(node, use)


def test_requests_beyond_the_rate_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that asked without an end took the whole event loop: a newcomer waited 5 s."""
    rate = Rate(per_second=20, burst=5)
    monkeypatch.setattr(http, "REQUESTS_RATE", rate)

    async def use(address: str) -> None:
        host, port = address.split(":")
        num_answers = 0

        async def ask_on_and_on() -> None:
            nonlocal num_answers
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50)
                async for part in stream:
                    num_answers += part.count(b"HTTP/1.1 200")

        with trio.move_on_after(1.0):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(ask_on_and_on)
        assert 5 < num_answers <= rate.burst + 1.5 * rate.per_second
        async with httpx.AsyncClient(base_url=f"http://{address}") as asking:
            assert (await asking.get("/livez")).status_code == 200

    serving(Node(), use)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, 3.4


@pytest.mark.parametrize("rest", [b"", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"\xff" * 1000])
def test_http_2_is_refused_and_ends_the_connection(rest: bytes) -> None:
    """Its bodies need no length, and it has ways of its own to keep a connection open."""

    async def use(address: str) -> None:
        host, port = address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(PREFACE + rest)
            answer = bytearray()
            with contextlib.suppress(trio.BrokenResourceError):
                async for part in stream:
                    answer += part
            assert answer.startswith(b"HTTP/1.1 505")
            assert b"connection: close" in answer.lower()

    serving(Node(), use)


def test_a_client_that_offers_http_2_is_answered_in_http_1() -> None:
    """As `curl --http2` does."""

    async def use(address: str) -> None:
        host, port = address.split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(
                b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"
            )
            assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 200")

    serving(Node(), use)


def test_another_version_of_http_gets_to_no_endpoint() -> None:
    """Whatever server passes it on: without a length nothing bounds the body."""
    passed_on: list[str] = []
    pieces = [{"type": "http.request", "body": bytes(MIB), "more_body": True} for _ in range(3)]
    answer: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        passed_on.append(scope["path"])

    async def receive() -> Any:
        return pieces.pop() if pieces else {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        answer.append(message)

    scope = {
        "type": "http",
        "http_version": "2",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"host", b"127.0.0.1")],
    }
    trio.run(Guard(inner, (), 2 * MIB), scope, receive, send)
    assert (answer[0]["status"], passed_on) == (505, [])


def test_a_failing_server_is_started_again_on_the_same_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = 1

    async def failing_serve(*arguments: Any, **options: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("one client too many")
        await hypercorn.trio.serve(*arguments, **options)

    monkeypatch.setattr("gossamer.node.app.http.http_server.serve", failing_serve)
    monkeypatch.setattr("gossamer.node.app.http.http_server._RESTART_SECONDS", 0.0)

    async def use(address: str) -> None:
        async with httpx.AsyncClient(base_url=f"http://{address}") as asking:
            assert (await asking.get("/livez")).status_code == 200

    serving(Node(), use)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("127.0.0.1", r"in use. Give --api another port \(0 picks a free one\)"),
        ("192.0.2.1", r"--api 192.0.2.1:\d+: .*This machine has no such address"),
    ],
)
def test_an_address_that_cannot_be_had(host: str, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"{host}:{taken.getsockname()[1]}"
        node = Node()
        with pytest.raises(ApiBindError, match=reason):
            trio.run(serve_http, bind, build_app(node.status, CollectorRegistry(), node, TOKEN))


def test_the_status_is_json_that_any_tool_reads() -> None:
    assert json.loads(ask(Node(), "GET", "/api/status").content)["problem"] is None
