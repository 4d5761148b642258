"""Words to the service manager, at a real socket."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from gossamer.node.app.service_notify import STATUS_CHARACTERS_MAX, ServiceManager

LIMIT_SECONDS = 0.4


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """The socket of a manager, as systemd has one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        channel.setblocking(False)
        yield channel


def heard(channel: socket.socket) -> list[str]:
    """All words that have come."""
    words = []
    while True:
        try:
            words += channel.recv(4096).decode().split("\n")
        except BlockingIOError:
            return words


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_manager_hears_when_the_node_is_ready_and_stops(tmp_path: Path, kind: str) -> None:
    address = str(tmp_path / "s") if kind == "path" else f"@gossamer-test-{os.getpid()}"
    environment = {"NOTIFY_SOCKET": address, "OTHER": "x"}
    with listening(address) as channel:
        manager = ServiceManager.of(environment)
        manager.ready()
        manager.stopping()
        assert heard(channel) == ["READY=1", "STOPPING=1"]
    assert environment == {"OTHER": "x"}  # a trainer is no service
    assert manager.watchdog_seconds is None


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_limit_of_the_watchdog(variables: dict[str, str], seconds: float | None) -> None:
    manager = ServiceManager.of({"NOTIFY_SOCKET": "/none", **variables})
    assert manager.watchdog_seconds == seconds
    assert ServiceManager.of(dict(variables)).watchdog_seconds is None


def test_an_event_loop_that_hangs_sends_no_beat(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    address = str(tmp_path / "s")
    told = []

    async def main(channel: socket.socket) -> None:
        manager = ServiceManager(address, LIMIT_SECONDS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.run, lambda: "training")
            await trio.sleep(2 * LIMIT_SECONDS)
            told.append(heard(channel))
            time.sleep(2 * LIMIT_SECONDS)  # noqa: ASYNC251
            told.append(heard(channel))
            await trio.sleep(LIMIT_SECONDS)
            told.append(heard(channel))
            nursery.cancel_scope.cancel()

    with listening(address) as channel:
        trio.run(main, channel, clock=autojump_clock)
    before, hanging, after = told
    assert before.count("WATCHDOG=1") >= 4
    assert hanging == []
    assert "WATCHDOG=1" in after


def test_what_the_node_does_is_told_when_it_changes(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    address = str(tmp_path / "s")
    doing = ["training,\nround 1", "training, round 1", "x" * 500]

    async def main() -> None:
        with trio.move_on_after(12):
            await ServiceManager(address).run(lambda: doing.pop(0))

    with listening(address) as channel:
        trio.run(main, clock=autojump_clock)
        assert heard(channel) == [
            "STATUS=training, round 1",
            f"STATUS={'x' * STATUS_CHARACTERS_MAX}",
        ]


def test_without_a_manager_nothing_is_told(tmp_path: Path) -> None:
    manager = ServiceManager.of({})
    manager.ready()
    trio.run(manager.run, lambda: "training")  # returns at once
    ServiceManager(str(tmp_path / "gone")).ready()  # a manager that has ended


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)
