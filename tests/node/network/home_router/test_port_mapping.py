"""A router's port is asked for, renewed, given back, and its absence is told once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
import trio
import trio.testing

from gossamer.node.network.home_router import port_mapping
from gossamer.node.network.home_router.port_mapping import (
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


PROCESS = """#!/bin/sh
{commands}
"""
"""In the place of Python: the process that asks the router. It gets `-m`, the module, what to do
and the port."""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], UpnpGateway]:
    """Makes a gateway whose process does so."""

    def made(commands: str) -> UpnpGateway:
        path = tmp_path / "python"
        path.write_text(PROCESS.format(commands=commands))
        path.chmod(0o755)
        monkeypatch.setattr(port_mapping, "sys", SimpleNamespace(executable=str(path)))
        return UpnpGateway()

    return made


def test_a_process_asks_the_router(process: Callable[[str], UpnpGateway], tmp_path: Path) -> None:
    gateway = process(f"""echo "$@" >> {tmp_path}/asked; echo noise; echo '["8.8.8.8", 4612]'""")
    assert gateway.map(PORT) == Endpoint("8.8.8.8", 4612)
    process(f"""echo "$@" >> {tmp_path}/asked; echo '[null]'""").unmap(4612)
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"-m gossamer.node.network.home_router.upnp map {PORT}",
        "-m gossamer.node.network.home_router.upnp unmap 4612",
    ]


@pytest.mark.parametrize(
    ("commands", "problem"),
    [
        ("""echo '["no router answers UPnP\\u001b[2J"]'""", "no router answers UPnP"),
        ("exit 3", "makes no sense"),
        ("echo words", "makes no sense"),
        ("""echo '["8.8.8.8", "4612"]'""", "makes no sense"),
        ("echo '[null]'", "makes no sense"),
    ],
)
def test_a_router_that_does_not_is_told(
    process: Callable[[str], UpnpGateway], commands: str, problem: str
) -> None:
    with pytest.raises(MappingError, match=problem) as raised:
        process(commands).map(PORT)
    assert "\x1b" not in str(raised.value)


def test_a_removal_that_fails_is_told(process: Callable[[str], UpnpGateway]) -> None:
    with pytest.raises(MappingError, match="NoSuchEntry"):
        process("""echo '["NoSuchEntryInArray (714)"]'""").unmap(PORT)
    with pytest.raises(MappingError, match="makes no sense"):
        process("""echo '["8.8.8.8", 4612]'""").unmap(PORT)


def test_a_process_that_takes_too_long_is_ended(
    process: Callable[[str], UpnpGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_mapping, "PROCESS_SECONDS_MAX", 0.3)
    with pytest.raises(MappingError, match="in time"):
        process("exec sleep 20").map(PORT)


def test_a_process_that_cannot_be_started_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(port_mapping, "sys", SimpleNamespace(executable=str(tmp_path / "absent")))
    with pytest.raises(MappingError, match="no process can be started"):
        UpnpGateway().map(PORT)
