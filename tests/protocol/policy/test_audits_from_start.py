"""Audits: how much work must gain from where it began."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.policy.auditing.audits import (
    CONTROL_MARGIN,
    SHARE,
    START_MARGIN,
    START_SHARE,
    Gain,
    gain_of,
    helps_from_start,
    least_from_start,
    share_of,
)

BEGAN = [2.0, 3.0, 4.0, 5.0]
HELPED = Gain(0.08, 0.01)
"""What a quarter of the average gains."""

GAINS = st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=16)
A_LOSS = st.floats(width=32)
"""As a trainer computes them: they may be no numbers."""
SHARES = st.floats(0.0, 1.0)
MEANS = st.floats()


def lowered(began: Sequence[float], by: float) -> list[float]:
    return [loss - by for loss in began]


def after(gains: Sequence[float]) -> tuple[list[float], list[float]]:
    """Losses before and after work that gains so much."""
    return [0.0] * len(gains), [-gain for gain in gains]


# What is asked for


def test_a_gain_that_chance_makes_is_not_enough_where_all_sequences_agree() -> None:
    """Each gains 1 % of what the average does, so there is no error."""
    least = least_from_start(HELPED, SHARE)
    ended = lowered(BEGAN, 0.01 * HELPED.mean)
    assert gain_of(BEGAN, ended).is_above(START_MARGIN)
    assert helps_from_start(BEGAN, ended), "any gain was enough"
    assert not helps_from_start(BEGAN, ended, least)


def test_work_that_gains_what_a_quarter_of_the_average_does_helps_from_its_start() -> None:
    """Whole work gains about four times as much."""
    least = least_from_start(HELPED, SHARE)
    assert helps_from_start(BEGAN, lowered(BEGAN, HELPED.mean), least)
    assert helps_from_start(BEGAN, lowered(BEGAN, SHARE * HELPED.mean), least)
    assert least == START_SHARE * SHARE * HELPED.mean


def test_enough_gain_is_still_not_enough_where_sequences_do_not_agree() -> None:
    least = least_from_start(Gain(0.001, 0.0), SHARE)
    ended = [1.0, 4.0, 2.9, 5.9]
    assert gain_of(BEGAN, ended).mean > least
    assert not helps_from_start(BEGAN, ended, least)


@pytest.mark.parametrize(("is_heldout", "missed"), [(True, 0), (False, 2)])
def test_less_is_asked_where_the_state_before_the_round_asks_for_less(
    *, is_heldout: bool, missed: int
) -> None:
    tokens = [100, 1000, 1000]
    usual = least_from_start(HELPED, share_of(tokens, 1))
    less = share_of(tokens, 1, is_heldout=is_heldout, missed=missed)
    assert 0 < least_from_start(HELPED, less) < usual
    assert least_from_start(HELPED, share_of(tokens, 0)) == pytest.approx(usual / 10)


@pytest.mark.parametrize("mean", [0.0, -0.0, -0.1, math.nan, math.inf, -math.inf, 5e-324])
def test_an_average_that_gains_nothing_asks_for_nothing(mean: float) -> None:
    least = least_from_start(Gain(mean, 0.0), SHARE)
    assert least == 0.0
    assert helps_from_start(BEGAN, lowered(BEGAN, 0.001), least)
    assert not helps_from_start(BEGAN, BEGAN, least)


# For whatever numbers


@given(MEANS, SHARES)
def test_what_is_asked_for_is_a_number_from_0(mean: float, share: float) -> None:
    least = least_from_start(Gain(mean, 0.0), share)
    assert 0.0 <= least < math.inf
    assert least <= max(0.0, mean) or math.isnan(mean)


@given(st.lists(st.tuples(A_LOSS, A_LOSS), max_size=16))
def test_where_nothing_is_asked_for_a_clear_gain_decides(pairs: list[tuple[float, float]]) -> None:
    """This is the rule as it was, also for losses that are no numbers."""
    began, ended = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert helps_from_start(began, ended) is gain_of(began, ended).is_above(START_MARGIN)


@given(GAINS, st.floats(-1.0, 1.0), st.floats(0.0, 1.0))
def test_work_that_helps_where_more_is_asked_for_helps_where_less_is(
    gains: list[float], less: float, more: float
) -> None:
    less, more = sorted((max(0.0, less), more))
    if helps_from_start(*after(gains), more):
        assert helps_from_start(*after(gains), less)


@given(GAINS, SHARES)
def test_work_that_gains_what_the_average_does_helps(gains: list[float], share: float) -> None:
    """Wherever an audit tells anything: its margin is no smaller."""
    control = gain_of(*after(gains))
    if control.is_above(CONTROL_MARGIN):
        assert helps_from_start(*after(gains), least_from_start(control, share))


@given(GAINS, SHARES, MEANS)
def test_no_work_and_its_opposite_do_not_help(
    gains: list[float], share: float, mean: float
) -> None:
    least = least_from_start(Gain(mean, 0.0), share)
    assert not helps_from_start(*after([0.0] * len(gains)), least)
    opposite = [-gain for gain in gains]
    both = [helps_from_start(*after(each), least) for each in (gains, opposite)]
    assert not all(both)


@given(st.lists(st.integers(-1000, 1000), min_size=4, max_size=16), st.integers(-1000, 1000))
def test_the_unit_of_the_losses_does_not_matter(numbers: list[int], control: int) -> None:
    found = set()
    for unit in (1.0, 2.0**-30):
        least = least_from_start(Gain(control * unit, 0.0), SHARE)
        found.add(helps_from_start(*after([number * unit for number in numbers]), least))
    assert len(found) == 1
