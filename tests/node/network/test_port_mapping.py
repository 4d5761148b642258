"""A router's port is asked for, renewed, given back, and its absence is told once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from gossamer.node.network import port_mapping
from gossamer.node.network.port_mapping import (
    LOOK_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    MappingError,
    PortMapper,
    UpnpGateway,
    needs_mapping,
)
from gossamer.node.network.reachability import Endpoint

PORT = 4610
OUTER = Endpoint("203.0.113.7", PORT)


class Router(UpnpGateway):
    """Answers from a list; the last answer is repeated."""

    def __init__(self, *answers: Endpoint | MappingError) -> None:
        self.answers = list(answers)
        self.mapped: list[int] = []
        self.unmapped: list[int] = []

    def map(self, port: int) -> Endpoint:
        self.mapped.append(port)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, MappingError):
            raise answer
        return answer

    def unmap(self, port: int) -> None:
        self.unmapped.append(port)


def _run(
    router: Router,
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
    hosts: Callable[[], list[str]] = lambda: ["192.168.1.10"],
    suspended: Callable[[], float] = lambda: 0.0,
) -> list[Endpoint | None]:
    """Returns the mappings that a mapper reports in this time."""
    told: list[Endpoint | None] = []

    async def inline(function: Callable[[], object]) -> object:
        await trio.lowlevel.checkpoint()
        return function()

    monkeypatch.setattr(port_mapping, "run_abandonable", inline)

    def interfaces() -> list[Endpoint]:
        return [Endpoint(host, PORT) for host in hosts()]

    async def main() -> None:
        with trio.move_on_after(seconds):
            mapper = PortMapper(PORT, router, interfaces, told.append, suspended=suspended)
            await mapper.run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return told


def test_a_mapping_is_renewed_before_its_lease_ends_and_removed_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = Router(OUTER)
    assert _run(router, 3.5 * RENEW_SECONDS, monkeypatch) == [OUTER]
    assert router.mapped == [PORT] * 4
    assert router.unmapped == [PORT]


def test_another_outer_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = Endpoint("203.0.113.8", PORT + 1)
    router = Router(OUTER, moved)
    assert _run(router, 1.5 * RENEW_SECONDS, monkeypatch) == [OUTER, moved]
    assert router.unmapped == [PORT + 1]


def test_a_router_that_says_no_is_asked_again_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = Router(MappingError("no router answers"))
    with structlog.testing.capture_logs() as lines:
        assert _run(router, 2.5 * RETRY_SECONDS, monkeypatch) == []
    assert len(router.mapped) == 3
    assert [line["reason"] for line in lines] == ["no router answers"]
    assert router.unmapped == []


def test_a_mapping_that_is_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(OUTER, MappingError("switched off"))
    assert _run(router, 1.5 * RENEW_SECONDS, monkeypatch) == [OUTER, None]
    assert router.unmapped == []


def test_the_router_of_another_network_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop is carried to another home, to a network without a router, and back."""
    moves = [(0.0, "192.168.1.10"), (50.0, "10.0.0.7"), (100.0, "203.0.113.9"), (150.0, "10.0.0.7")]
    other = Endpoint("203.0.113.8", PORT)
    asked: list[float] = []

    class Timed(Router):
        def map(self, port: int) -> Endpoint:
            asked.append(trio.current_time())
            return super().map(port)

    router = Timed(MappingError("no router answers"), other, OUTER)

    def hosts() -> list[str]:
        return [host for since, host in moves if since <= trio.current_time()][-1:]

    assert _run(router, 200.0, monkeypatch, hosts) == [other, None, OUTER]
    assert len(asked) == 3
    assert all(
        0 <= seconds - since <= LOOK_SECONDS
        for seconds, since in zip(asked, (0, 50, 150), strict=True)
    )


def test_the_router_is_asked_again_when_the_machine_has_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A laptop's lid is closed for two hours: the lease has ended, and the local clock stood."""
    asked: list[float] = []

    class Timed(Router):
        def map(self, port: int) -> Endpoint:
            asked.append(trio.current_time())
            return super().map(port)

    def suspended() -> float:
        return 100.0 + 1e-4 * trio.current_time() + (7200.0 if trio.current_time() >= 65 else 0.0)

    router = Timed(OUTER, MappingError("switched off meanwhile"))
    assert _run(router, 400.0, monkeypatch, suspended=suspended) == [OUTER, None]
    first, second = asked
    assert 65 <= second - first <= 65 + LOOK_SECONDS


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["192.168.1.10"], True),
        (["192.168.1.10", "2001:db8::7"], True),  # others may have no IPv6
        (["203.0.113.7", "10.0.0.5"], False),
        (["127.0.0.1"], False),
        ([], False),
    ],
)
def test_only_a_node_behind_a_router_asks_for_a_mapping(hosts: list[str], expected: bool) -> None:
    assert needs_mapping(hosts) == expected


ROUTER = """
import sys, time
{before}
class UPnP:
    lanaddr = "192.168.1.10"
    def discover(self):
        return 1
    def selectigd(self):
        {search}
    def externalipaddress(self):
        return {outer!r}
    def addportmapping(self, outer_port, *_others):
        if outer_port < {first_port}:
            raise Exception("ConflictInMappingEntry\x1b[2J")
    def deleteportmapping(self, *_others):
        {removal}
"""
"""In the place of the library that talks to the router."""

OUTSIDE = "8.8.8.8"


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., UpnpGateway]:
    """Makes a gateway to a router that answers so."""

    def made(
        search: str = "pass",
        outer: str = OUTSIDE,
        first_port: int = 0,
        removal: str = "pass",
        before: str = "",
    ) -> UpnpGateway:
        text = ROUTER.format(
            search=search, outer=outer, first_port=first_port, removal=removal, before=before
        )
        (tmp_path / "miniupnpc.py").write_text(text)
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.syspath_prepend(str(tmp_path))  # wherever the gateway looks for it
        monkeypatch.delitem(sys.modules, "miniupnpc", raising=False)
        return UpnpGateway()

    return made


def test_a_router_forwards_a_port_and_ends_it(router: Callable[..., UpnpGateway]) -> None:
    gateway = router(first_port=PORT + 2, before="print('noise of the library')")
    assert gateway.map(PORT) == Endpoint(OUTSIDE, PORT + 2)
    gateway.unmap(PORT + 2)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"search": "raise Exception"}, "no router answers UPnP"),
        ({"outer": "10.1.2.3"}, "behind another one"),
        ({"outer": "x" * 5000}, "no outer address"),
        ({"first_port": PORT + 100}, "forwards no port from 4610 on: Conflict"),
        ({"search": "sys.exit(3)"}, "makes no sense"),
    ],
)
def test_a_router_that_does_not_is_told(
    router: Callable[..., UpnpGateway], answers: dict[str, str], problem: str
) -> None:
    with pytest.raises(MappingError, match=problem) as raised:
        router(**answers).map(PORT)
    assert "\x1b" not in str(raised.value)


def test_an_answer_without_an_end_takes_neither_memory_nor_time(
    router: Callable[..., UpnpGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any machine of the network may answer. The library reads on in a call that nothing ends."""
    with pytest.raises(MappingError):
        router(search="self.answer = [bytearray(2**26) for _ in range(32)]").map(PORT)
    monkeypatch.setattr(port_mapping, "PROCESS_SECONDS_MAX", 2.0, raising=False)
    with pytest.raises(MappingError, match="in time"):
        router(search="time.sleep(20)").map(PORT)


def test_a_removal_that_fails_is_told(router: Callable[..., UpnpGateway]) -> None:
    with pytest.raises(MappingError, match="NoSuchEntry"):
        router(removal="raise Exception('NoSuchEntry')").unmap(PORT)
