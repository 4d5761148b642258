"""Tasks that look now and then wake up together."""

from __future__ import annotations

import trio
import trio.testing

from gossamer.node.base.orders import Orders
from gossamer.node.base.ticks import TICK_SECONDS, sleep_to_tick


def test_tasks_that_begin_at_different_moments_wake_up_together() -> None:
    moments: list[float] = []

    async def look(begins_seconds: float, every_seconds: float) -> None:
        await trio.sleep(begins_seconds)
        for _ in range(40):
            await sleep_to_tick(every_seconds)
            moments.append(trio.current_time())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(18):
                nursery.start_soon(look, 0.013 * (1 + number), 1.0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(moments) == 18 * 40
    assert len(set(moments)) == 40


def test_a_sleep_is_no_shorter_than_asked_and_less_than_a_tick_longer() -> None:
    async def main() -> None:
        for seconds in (0.0, 0.1, TICK_SECONDS, 0.6, 1.0, 5.0):
            for _ in range(3):
                await trio.sleep(0.07)
                began = trio.current_time()
                await sleep_to_tick(seconds)
                slept = trio.current_time() - began
                assert seconds - 1e-5 <= slept < seconds + TICK_SECONDS

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_news_ends_a_wait_at_once() -> None:
    async def main() -> None:
        orders = Orders()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(orders.wait_to_tick, 5.0)
            await trio.sleep(0.3)
            orders.notify()
        assert trio.current_time() < 0.31

    async def timed() -> None:
        began = trio.current_time()
        await Orders().wait_to_tick(1.0)
        assert 1.0 <= trio.current_time() - began < 1.0 + TICK_SECONDS

    for case in (main, timed):
        trio.run(case, clock=trio.testing.MockClock(autojump_threshold=0))
