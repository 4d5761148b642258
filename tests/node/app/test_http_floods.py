"""Programs that ask the page without end keep its owner out no more, and cost what was measured."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from gossamer.node.app.http import http, http_places, http_turns
from gossamer.node.app.http.client import fetch_status
from gossamer.node.app.http.http import build_app, serve_http
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.owner_files import RoundSamples, Sample
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.limits import MIB
from gossamer.protocol.policy.conduct.throttle import Rate
from tests.node.app.test_http import ORDER, TOKEN, Node, serving

ASKED = b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@contextlib.asynccontextmanager
async def _asking(address: str, num_clients: int, said: bytes = ASKED) -> Any:
    """Clients that have asked and wait."""
    host, port = address.split(":")
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(num_clients):
            stream = await trio.open_tcp_stream(host, int(port))
            clients.append(await stack.enter_async_context(stream))
            with contextlib.suppress(trio.BrokenResourceError):  # it is turned away already
                await stream.send_all(said)
            await trio.testing.wait_all_tasks_blocked(0.01)
        yield clients


def test_the_owner_waits_behind_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' requests that waited had all connections, and `gossamer pause` came to nothing."""
    monkeypatch.setattr(http, "REQUESTS_RATE", Rate(per_second=0.01, burst=1))
    monkeypatch.setattr(http_places, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(http_turns, "IN_WORK_MAX", 4)
    node = Node()

    async def use(address: str) -> None:
        async with _asking(address, 24), httpx.AsyncClient(base_url=f"http://{address}") as owner:
            assert (await owner.post("/api/pause", headers=ORDER)).status_code == 202
            assert (await owner.get("/api/status", headers=ORDER)).status_code == 200
        assert node.orders == ["pause"]

    serving(node, use)


def test_the_status_of_the_command_line_is_the_owner_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUESTS_RATE", Rate(per_second=0.01, burst=0))
    state_dir = StateDir(tmp_path)
    token = DaemonFiles(state_dir).new_token()

    async def main() -> None:
        node = Node()
        app = build_app(node.status, CollectorRegistry(), node, token)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                address: str = await nursery.start(
                    lambda task_status: serve_http("127.0.0.1:0", app, task_status=task_status)
                )
                DaemonFiles(state_dir).write_api(address)
                assert (await trio.to_thread.run_sync(fetch_status, state_dir)).round == 3
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_wrong_token_waits_like_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUESTS_RATE", Rate(per_second=0.01, burst=0))

    async def use(address: str) -> None:
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            for given in ("Bearer 5", "Bearer " + TOKEN[::-1], "Basic " + TOKEN, TOKEN):
                with pytest.raises(httpx.ReadTimeout):
                    await client.get("/livez", headers={"authorization": given}, timeout=0.2)

    serving(Node(), use)


def test_a_request_is_refused_at_once_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUESTS_RATE", Rate(per_second=0.01, burst=0))
    monkeypatch.setattr(http_turns, "IN_WORK_MAX", 4)

    async def use(address: str) -> None:
        async with _asking(address, 4), _asking(address, 1) as (last,):
            answer = b"".join([part async for part in last])  # until its connection ends
        assert answer.startswith(b"HTTP/1.1 503")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"connection: close" in answer.lower()

    serving(Node(), use)


def test_a_liveness_probe_is_answered_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused with 503, for which an orchestrator restarts a node that is well."""
    monkeypatch.setattr(http, "REQUESTS_RATE", Rate(per_second=0.01, burst=0))
    monkeypatch.setattr(http_turns, "IN_WORK_MAX", 4)
    probe = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    async def use(address: str) -> None:
        async with _asking(address, 4), _asking(address, 1, probe) as (last,):
            answer = b"".join([part async for part in last])  # until its connection ends
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"\r\n\r\nok\n")
        assert b"connection: close" in answer.lower()

    serving(Node(), use)


def _num_served() -> int:
    """Connections that have a task in this process."""
    root = trio.lowlevel.current_root_task()
    tasks, found = [root], 0
    while tasks and (task := tasks.pop()) is not None:
        found += "_run_handler" in task.name
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
def test_a_client_that_has_gone_leaves_no_task(said: bytes) -> None:
    """Each left some for 15 s, so clients that came and went made a daemon grow by 13 kB each."""

    async def use(address: str) -> None:
        async with _asking(address, 20, said):
            assert _num_served() == 20
        with trio.fail_after(5.0):  # a third of the idle time
            while _num_served():  # noqa: ASYNC110 - they end in the server
                await trio.sleep(0.01)

    serving(Node(), use)


def test_a_client_that_hardly_reads_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes now and then were enough to keep it for as long as the client wanted."""
    monkeypatch.setattr(http_places, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(http_places, "SENT_SECONDS_MAX", 0.5)
    monkeypatch.setattr(http_places, "READ_BYTES_PER_SECOND_MIN", 1024 * MIB)
    kept = (RoundSamples(3, (Sample("Once", "x" * 16 * MIB),)),)  # more than the kernel holds

    async def is_answered(address: str) -> bool:
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient(base_url=f"http://{address}") as asking:
                return (await asking.get("/livez")).status_code == 200
        return False

    async def reads_slowly(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            # Fewer bytes open no window, and the kernel ends what has a closed one for seconds.
            while await stream.receive_some(65_536):  # noqa: ASYNC110 - it is slow on purpose
                await trio.sleep(0.3)

    async def main() -> None:
        node = Node()
        app = build_app(node.status, node.metrics.registry, node, TOKEN, samples=lambda: kept)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                address: str = await nursery.start(
                    lambda task_status: serve_http("127.0.0.1:0", app, task_status=task_status)
                )
                wanted = ASKED.replace(b"status", b"samples")
                async with _asking(address, 1, wanted) as (slow,):
                    nursery.start_soon(reads_slowly, slow)
                    assert not await is_answered(address)
                    while not await is_answered(address):  # noqa: ASYNC110 - the server's doing
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()

    trio.run(main)
