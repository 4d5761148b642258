"""Time that jumps passes as under trio's own clock, and looks come when there is something new."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from tests.support.jumping_clock import JumpingClock, Sleeper, sleep, until
from tests.support.memory_transport import run_simulated

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


async def sleeps_and_wakes(note: Callable[[str], None]) -> None:
    """One task sleeps until times that others bring forward."""
    times, sleeper = [0.0, 3.0, 5.0, 5.0, math.inf, 9.0], Sleeper()
    began = trio.current_time()

    async def sleeps() -> None:
        for seconds in times:
            await sleeper.sleep_until(began + seconds)
            note(f"until {seconds}")

    async with trio.open_nursery() as nursery:
        sleeper.wake()  # nobody sleeps yet
        nursery.start_soon(sleeps)
        for seconds in (1.0, 6.0):
            await sleep(seconds)
            sleeper.wake()
            sleeper.wake()


def test_a_sleeper_wakes_at_the_times_of_mock_clock() -> None:
    one, other = (times_of(sleeps_and_wakes, clock()) for clock in CLOCKS)
    assert one == other
    assert [seconds for seconds, _ in one] == [0.0, 1.0, 5.0, 5.0, 7.0, 9.0]


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_sleep_ends_with_its_scope(clock: Callable[[], trio.abc.Clock]) -> None:
    async def main() -> None:
        began = trio.current_time()
        with trio.move_on_after(1.0):
            await sleep(2.0)
            pytest.fail("the sleep went on")
        await sleep(0.5)
        assert trio.current_time() == pytest.approx(began + 1.5)

    trio.run(main, clock=clock())


def test_a_task_that_is_cancelled_when_its_sleep_is_over_does_no_more_than_one_of_trio() -> None:
    """The two happen at one time, and each seed has an order of them."""

    def outcomes(sleep: Callable[[float], Awaitable[None]]) -> list[list[str]]:
        return [outcome(sleep, seed) for seed in range(20)]

    def outcome(sleep: Callable[[float], Awaitable[None]], seed: int) -> list[str]:
        after: list[str] = []

        async def sleeps() -> None:
            await sleep(2.0)
            after.append("awake")
            await trio.lowlevel.checkpoint()
            after.append("still awake")

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sleeps)
                await until(lambda: trio.current_time() >= 2.0, 2.0)
                nursery.cancel_scope.cancel()

        run_simulated(main, seed)
        return after

    assert outcomes(sleep) == outcomes(trio.sleep)
    assert [] in outcomes(sleep)
    assert ["awake"] in outcomes(sleep)
