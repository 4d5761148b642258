"""The owner's orders to pause: what is kept, and what the owner is told of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from gossamer.node.app.owner.pause_orders import CLOCK_SECONDS, PauseOrders
from gossamer.node.base.disk_health import DiskFullError, write_atomically
from gossamer.node.base.pausing import UserPause
from gossamer.node.base.threads import RunInThread
from gossamer.node.storage import owner_orders
from gossamer.node.storage.state_dir import StateDir

T = TypeVar("T")

NOW = 1_700_000_000.0


class Disk:
    """A disk that may be full, in place of the one below a pause file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self._write = write_atomically
        monkeypatch.setattr(owner_orders, "write_atomically", self.write)

    def write(self, path: Path, *parts: bytes) -> None:
        if self.is_full:
            raise DiskFullError(path, sum(map(len, parts)))
        self._write(path, *parts)


class Participant:
    """A participant that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def pause(self, order: UserPause) -> None:
        self.told.append(order)

    def resume(self) -> None:
        self.told.append("resume")

    def pause_is_over(self) -> None:
        self.told.append("over")


async def at_once(do: Callable[[], T]) -> T:
    await trio.lowlevel.checkpoint()
    return do()


def running(
    tmp_path: Path,
    story: Callable[[PauseOrders, Participant], Awaitable[None]],
    run_in_thread: RunInThread = at_once,
) -> StateDir:
    """Runs a story with the orders of a node, in virtual time."""
    state_dir = StateDir(tmp_path)

    async def main() -> None:
        orders, participant = PauseOrders(state_dir, run_in_thread, lambda: NOW), Participant()
        assert orders.read() is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(orders.run, participant)
            with trio.fail_after(600):
                await story(orders, participant)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return state_dir


def test_an_order_that_the_disk_does_not_take_is_obeyed_and_its_owner_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def story(orders: PauseOrders, participant: Participant) -> None:
        orders.pause()
        assert "the disk is full" in await orders.kept()
        assert participant.told == [UserPause()]
        disk.is_full = False
        orders.pause(60)
        assert await orders.kept() == ""

    state_dir = running(tmp_path, story)
    assert state_dir.paused_path.exists()


def test_a_disk_that_hangs_delays_no_order(tmp_path: Path) -> None:
    async def hangs(_do: Callable[[], T]) -> T:
        await trio.sleep_forever()
        raise AssertionError

    async def story(orders: PauseOrders, participant: Participant) -> None:
        orders.pause()
        await trio.sleep(1)
        assert participant.told == [UserPause()]
        orders.resume()
        await trio.sleep(1)
        assert participant.told == [UserPause(), "resume"]
        orders.pause(60)
        await trio.sleep(61 + CLOCK_SECONDS)
        assert participant.told[3:] == ["over"]

    running(tmp_path, story, hangs)


def test_a_disk_that_has_room_again_takes_the_order_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def story(orders: PauseOrders, participant: Participant) -> None:
        orders.pause()
        await orders.kept()
        await trio.sleep(3 * CLOCK_SECONDS)
        disk.is_full = False
        assert not (tmp_path / "paused").exists()
        await trio.sleep(CLOCK_SECONDS + 1)
        assert (tmp_path / "paused").exists()
        assert await orders.kept() == ""
        assert participant.told == [UserPause()]  # the node was told once

    state_dir = running(tmp_path, story)
    assert state_dir.health.problem is None


def test_the_status_says_that_an_order_is_not_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch)

    async def story(orders: PauseOrders, _participant: Participant) -> None:
        orders.pause()
        await orders.kept()

    assert "the disk is full" in (running(tmp_path, story).health.problem or "")


def test_a_pause_whose_time_is_over_is_no_order_to_resume(tmp_path: Path) -> None:
    """An order to finish that came after the pause stays."""

    async def story(orders: PauseOrders, participant: Participant) -> None:
        orders.pause(60, after_round=True)
        await trio.sleep(61 + CLOCK_SECONDS)
        assert participant.told[1:] == ["over"]
        orders.pause(60)
        await orders.kept()
        orders.resume()
        await orders.kept()
        assert participant.told[3:] == ["resume"]

    running(tmp_path, story)
