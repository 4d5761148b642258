"""The owner's limit of all connections together, by the time of the day."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from gossamer.node.base.limit_periods import Period, parse_limit
from gossamer.node.base.rate_limit import (
    BURST_SECONDS,
    HEADER_BYTES,
    PACKET_BYTES,
    RateLimit,
)

EVENING, NIGHT = 20 * 60, 2 * 60


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10", Period(10.0)),
        ("2.5@18:00-23:00", Period(2.5, 18 * 60, 23 * 60)),
        ("5@22:00-06:30", Period(5.0, 22 * 60, 6 * 60 + 30)),
    ],
)
def test_limits_as_people_write_them(text: str, expected: Period) -> None:
    assert parse_limit(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "not a limit"),
        ("10Mbit", "not a limit"),
        ("0.1", "not allowed"),
        ("10@18:00", "not a limit"),
        ("10@25:00-26:00", "no time of the day"),
        ("5@24:30-06:00", "no time of the day"),
        ("5@06:00-24:01", "no time of the day"),
        ("10@18:00-18:00", "no length"),
    ],
)
def test_what_is_no_limit_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_limit(text)


def test_the_first_period_that_holds_decides() -> None:
    minute = EVENING
    limit = RateLimit([parse_limit("8@18:00-23:00"), parse_limit("40@23:00-08:00")], lambda: minute)
    assert limit.bytes_per_second == 1_000_000
    minute = NIGHT
    assert limit.bytes_per_second == 5_000_000
    minute = 12 * 60
    assert limit.bytes_per_second == math.inf


def test_all_callers_together_stay_within_the_limit_headers_included() -> None:
    num_callers, num_pieces, rate = 4, 50, 1_000_000.0
    moved = 0

    async def main() -> float:
        nonlocal moved
        limit = RateLimit([Period(8.0)])
        started = trio.current_time()

        async def caller() -> None:
            nonlocal moved
            for _ in range(num_pieces):
                await limit.take(10 * PACKET_BYTES)
                moved += 10 * (PACKET_BYTES + HEADER_BYTES)

        async with trio.open_nursery() as nursery:
            for _ in range(num_callers):
                nursery.start_soon(caller)
        return trio.current_time() - started

    seconds = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert moved / rate - BURST_SECONDS == pytest.approx(seconds, rel=0.01)


def test_without_a_limit_nothing_waits() -> None:
    async def main() -> None:
        with trio.fail_after(0):
            await RateLimit().take(10**12)

    trio.run(main)


def test_what_is_small_goes_first_and_counts() -> None:
    order: list[str] = []

    async def main() -> float:
        limit = RateLimit([Period(8.0)])
        limit.charge(1_000_000)  # a second of debt

        async def caller(name: str, is_small: bool) -> None:
            await limit.turn(is_small=is_small)
            limit.charge(100_000)
            order.append(name)

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(caller, f"bulk {number}", False)
            await trio.sleep(0.5)
            nursery.start_soon(caller, "small", True)
        return trio.current_time()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert order[0] == "small"
    assert sorted(order[1:]) == ["bulk 0", "bulk 1"]


def test_a_caller_that_gives_up_holds_up_no_other_one() -> None:
    async def main() -> None:
        limit = RateLimit([Period(8.0)])
        limit.charge(1_000_000)
        with trio.move_on_after(0.1):
            await limit.turn()
        with trio.fail_after(1.2):
            await limit.turn()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_higher_limit_ends_the_wait_for_a_lower_one() -> None:
    async def main() -> None:
        limit = RateLimit([Period(0.5)])
        limit.charge(10_000_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limit.turn)
            await trio.sleep(0.1)
            limit.change([Period(100.0)])
            with trio.fail_after(0.1):
                await limit.turn()
        limit.change([])
        with trio.fail_after(0):
            await limit.take(10**12)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_limit_is_no_higher_than_the_one_that_it_is_part_of() -> None:
    whole = RateLimit([Period(8.0)])
    part = RateLimit([Period(100.0)], most=lambda: whole.bytes_per_second / 2)
    assert part.bytes_per_second == 500_000
    assert RateLimit(most=lambda: whole.bytes_per_second).is_limited
