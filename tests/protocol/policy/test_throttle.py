"""A bucket against a model of it, and which buckets are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.policy.conduct.throttle import (
    THROTTLES_MAX,
    Rate,
    Throttle,
    throttle_of,
)

RATE = Rate(per_second=4.0, burst=10.0)

QUARTERS = st.integers(0, 60).map(lambda number: number / 4)
"""Seconds and amounts without any rounding."""

STEPS = st.tuples(QUARTERS, st.sampled_from(["take", "try", "give back"]), QUARTERS)


@given(st.lists(STEPS))
def test_a_bucket_fills_at_its_rate_and_holds_its_burst(
    steps: list[tuple[float, str, float]],
) -> None:
    """One that fills faster lets a flood in, and one that does not fill locks a peer out."""
    throttle, now, tokens = Throttle(RATE), 100.0, RATE.burst
    for seconds, what, amount in steps:
        now += seconds
        tokens = min(RATE.burst, tokens + seconds * RATE.per_second)
        has_enough = tokens >= amount
        assert throttle.holds(now, amount) == has_enough
        if what == "take":
            tokens -= amount
            assert throttle.take(now, amount) == max(0.0, -tokens / RATE.per_second)
        elif what == "try":
            assert throttle.try_take(now, amount) == has_enough
            tokens -= amount if has_enough else 0.0
        else:
            throttle.give_back(amount)
            tokens = min(RATE.burst, tokens + amount)
        assert throttle.is_full(now) == (tokens == RATE.burst)


@given(st.sampled_from(["take", "holds", "is full"]), QUARTERS)
def test_every_question_counts_the_time_that_has_passed(what: str, seconds: float) -> None:
    throttle = Throttle(RATE)
    throttle.take(1.0, RATE.burst)
    tokens = min(RATE.burst, seconds * RATE.per_second)
    now = 1.0 + seconds
    if what == "take":
        assert throttle.take(now, RATE.burst) == (RATE.burst - tokens) / RATE.per_second
    elif what == "holds":
        assert throttle.holds(now, RATE.burst) == (tokens == RATE.burst)
    else:
        assert throttle.is_full(now) == (tokens == RATE.burst)


def test_what_is_full_again_makes_room_before_what_is_in_use() -> None:
    """Else a flood of identities would give a peer that floods a new bucket each time."""
    kept: dict[str, Throttle] = {}
    throttle_of(kept, "in use", RATE, 0.0).take(0.0, RATE.burst)
    for number in range(THROTTLES_MAX - 1):
        throttle_of(kept, f"idle {number}", RATE, 0.0)
    assert len(kept) == THROTTLES_MAX
    throttle_of(kept, "new", RATE, 0.0)
    assert [*kept] == ["in use", "new"]
