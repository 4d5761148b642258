"""A router's port is asked for, renewed, given back, and its absence is told once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import structlog
import trio
import trio.testing

from gossamer.node.network import port_mapping
from gossamer.node.network.port_mapping import (
    LOOK_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    Mapping,
    MappingError,
    PortMapper,
    needs_mapping,
)
from gossamer.node.network.reachability import Endpoint

PORT = 4610
OUTER = Mapping("203.0.113.7", PORT)


class Router:
    """Answers from a list; the last answer is repeated."""

    def __init__(self, *answers: Mapping | MappingError) -> None:
        self.answers = list(answers)
        self.mapped: list[int] = []
        self.unmapped: list[int] = []

    def map(self, port: int) -> Mapping:
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
) -> list[Mapping | None]:
    """Returns the mappings that a mapper reports in this time."""
    told: list[Mapping | None] = []

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
    moved = Mapping("203.0.113.8", PORT + 1)
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
    other = Mapping("203.0.113.8", PORT)
    asked: list[float] = []

    class Timed(Router):
        def map(self, port: int) -> Mapping:
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
        def map(self, port: int) -> Mapping:
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
