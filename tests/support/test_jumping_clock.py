"""Time that jumps passes as under trio's own clock, and looks come when there is something new."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from tests.support.jumping_clock import JumpingClock, until

CLOCKS = (JumpingClock, lambda: trio.testing.MockClock(autojump_threshold=0))


def times_of(
    story: Callable[[Callable[[str], None]], Awaitable[None]], clock: trio.abc.Clock
) -> list[tuple[float, str]]:
    """When what happened in a story, at a clock."""
    happened: list[tuple[float, str]] = []
    began = 0.0

    def note(what: str) -> None:
        happened.append((round(trio.current_time() - began, 6), what))

    async def main() -> None:
        nonlocal began
        began = trio.current_time()
        await story(note)

    trio.run(main, clock=clock)
    return happened


async def steps_and_looks(note: Callable[[str], None]) -> None:
    """One task counts at uneven times, and two wait for its numbers with looks of their own."""
    count = 0

    async def counts() -> None:
        nonlocal count
        for seconds in (0.1, 0.0002, 7.0, 0.05, 0.013):
            await trio.sleep(seconds)
            count += 1
            note(f"count {count}")

    async def waits(look_seconds: float) -> None:
        nonlocal count
        for number in (1, 2, 3, 5):
            await until(lambda number=number: count >= number, look_seconds)  # type: ignore[misc]
            note(f"{look_seconds} saw {number}")
        await trio.testing.wait_all_tasks_blocked()
        note("blocked")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(counts)
        nursery.start_soon(waits, 0.005)
        nursery.start_soon(waits, 0.03)


def test_everything_happens_at_the_times_of_mock_clock() -> None:
    one, other = (sorted(times_of(steps_and_looks, clock())) for clock in CLOCKS)
    assert one == other
    assert len(one) == 5 + 2 * 5
    assert one[-1][0] > 7.0


def test_what_a_looking_task_does_is_seen_by_another() -> None:
    async def story(note: Callable[[str], None]) -> None:
        states = ["first"]

        async def leads() -> None:
            await until(lambda: trio.current_time() >= 1.0, 0.3)
            states.append("second")
            await until(lambda: "third" in states, 0.3)
            note("third")

        async def follows() -> None:
            await until(lambda: "second" in states, 0.07)
            note("second")
            states.append("third")
            await until(lambda: False, 0.07)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follows)
            nursery.start_soon(trio.sleep, 1.0)
            nursery.start_soon(trio.sleep, 50.0)  # looks before that could be left out
            await leads()
            nursery.cancel_scope.cancel()

    one, other = (times_of(story, clock()) for clock in CLOCKS)
    assert one == other
    assert [what for _, what in one] == ["second", "third"]


def test_looks_that_would_see_the_same_are_left_out() -> None:
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return False

    async def main() -> None:
        with trio.move_on_after(100.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until, look, 0.005)
                for _ in range(10):
                    await trio.sleep(5.0)
        assert trio.current_time() == pytest.approx(100.0)

    trio.run(main, clock=JumpingClock())
    assert looks <= 2 + 10


def test_a_look_ends_with_its_scope() -> None:
    async def main() -> None:
        with pytest.raises(trio.TooSlowError), trio.fail_after(3.0):
            await until(lambda: False, math.pi)
        with pytest.raises(trio.TooSlowError), trio.fail_after(10.0):
            await until(lambda: False, math.pi)
        assert trio.current_time() == pytest.approx(13.0)

    trio.run(main, clock=JumpingClock())
