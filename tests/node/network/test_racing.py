"""The race of several ways to one end: what it returns, and what it leaves behind."""

from __future__ import annotations

import gc
import time
import warnings

import pytest
import trio
import trio.testing
from multiaddr import Multiaddr

from gossamer.node.network.over_libp2p.tcp.tcp import PortReusingTcp
from gossamer.node.network.racing import RaceLost, race

HEAD_START_SECONDS = 0.25
SHORT_SECONDS = 0.02


class Door:
    """What an attempt opens, and somebody has to close."""

    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def test_the_first_way_that_succeeds_wins_and_the_others_are_cancelled() -> None:
    async def attempt(seconds: float) -> float:
        await trio.sleep(seconds)
        return seconds

    async def main() -> None:
        began = trio.current_time()
        assert await race(attempt, [9.0, 1.0, 0.9], HEAD_START_SECONDS, OSError) == (1.0, 1.0)
        assert trio.current_time() - began == pytest.approx(HEAD_START_SECONDS + 1.0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_lost_race_names_every_failure() -> None:
    async def attempt(way: str) -> None:
        raise OSError(way)

    async def main() -> None:
        with pytest.raises(RaceLost, match="first; second"):
            await race(attempt, ["first", "second"], HEAD_START_SECONDS, OSError)

    trio.run(main)


def test_a_way_that_is_near_is_waited_for() -> None:
    begun: list[str] = []

    async def attempt(way: str) -> str:
        begun.append(way)
        await trio.sleep(9.0)
        if way == "fails":
            raise OSError(way)
        return way

    async def main() -> None:
        ways = ["near", "other"]
        await race(attempt, ways, HEAD_START_SECONDS, OSError, is_near=lambda way: way == "near")
        assert begun == ["near"]
        ways = ["fails", "other", "third"]
        await race(attempt, ways, HEAD_START_SECONDS, OSError, is_near=lambda way: way == "fails")
        assert begun == ["near", "fails", "other", "third"]
        assert trio.current_time() == 9.0 + 9.0 + 9.0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_process_that_comes_late_to_everything_begins_no_second_way() -> None:
    """The first way needs as many turns of the event loop as a dial does before its first packet;
    each turn takes longer than the head start."""
    begun: list[str] = []

    async def attempt(way: str) -> str:
        begun.append(way)
        for _ in range(8):
            await trio.lowlevel.checkpoint()
        return way

    async def busy() -> None:
        while True:
            time.sleep(2 * SHORT_SECONDS)  # noqa: ASYNC251 - busy
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy)
            await race(attempt, ["first", "second"], SHORT_SECONDS, OSError)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert begun == ["first"]


def test_of_two_ways_that_succeed_in_one_step_the_second_is_discarded() -> None:
    opened: list[Door] = []

    async def main() -> None:
        both = trio.Event()

        async def attempt(_: int) -> Door:
            await both.wait()
            opened.append(Door())
            return opened[-1]

        async def run() -> None:
            _, winner = await race(attempt, [1, 2], 0.0, OSError, Door.close)
            assert winner.is_open

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            both.set()

    trio.run(main)
    assert sorted(door.is_open for door in opened) == [False, True]


def test_a_race_that_is_cancelled_when_it_is_won_discards_the_result() -> None:
    opened = Door()

    async def main() -> None:
        with trio.CancelScope() as scope:

            async def attempt(_: int) -> Door:
                scope.cancel()
                return opened

            await race(attempt, [1], HEAD_START_SECONDS, OSError, Door.close)

    trio.run(main)
    assert not opened.is_open


def test_a_dial_that_is_cancelled_as_it_connects_closes_its_socket() -> None:
    """A busy process sees both in one step: the socket is connected, and the time is over."""

    async def dial(maddr: Multiaddr) -> None:
        connection = await PortReusingTcp().dial(maddr)
        with trio.CancelScope(shield=True):
            await connection.close()

    async def dial_for(steps: int, maddr: Multiaddr) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial, maddr)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
                time.sleep(0.001)  # noqa: ASYNC251 - busy, while the kernel connects
            nursery.cancel_scope.cancel()

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener:
            maddr = Multiaddr(f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}")
            for steps in range(12):
                await dial_for(steps, maddr)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        trio.run(main)
        gc.collect()
    assert [str(each.message) for each in caught] == []
