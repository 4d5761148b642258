"""The robust average: its bits, its bounds, and training with three of eight hostile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.codecs.agreement import Products, agreement_of, numbers_alike
from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.inner_products import LANES
from gossamer.protocol.codecs.robust_average import (
    CLOSE_FADE,
    CLOSE_RADIUS,
    robust_average,
    robust_weights,
)
from gossamer.protocol.standing import Standing
from tests.support.small_training import HONEST_OF_EIGHT, Attack, loss_after

SIZE = 9 * LANES + 5


def parts_of(num_members: int, num_elements: int = 40) -> list[Float32Array]:
    draws = np.random.default_rng(num_members).standard_normal((num_members, num_elements))
    return list((draws + 0.3).astype(np.float32))


def mean_of(parts: Sequence[Float32Array], weights: Sequence[float]) -> Float32Array:
    total = sum(weights)
    shares = [np.float64(weight / total) for weight in weights]
    mean = sum(share * part for share, part in zip(shares, parts, strict=True))
    return np.asarray(mean, np.float32)


def test_the_average_is_that_of_plain_arithmetic() -> None:
    """Number by number in Python's floats, in the order that the specification gives. Agreement and
    lengths are in `test_agreement`: here member 5 is out, all others are close, and members 1 and 6
    are alike."""
    parts, weights = parts_of(7, SIZE), [3, 1, 2, 5, 4, 1, 2]
    parts[4] *= np.float32(50)
    parts[5] = -parts[5]
    parts[6] = (parts[1] + np.float32(0.5) * parts[6]).astype(np.float32)
    products = Products([float(np.abs(part).max()) for part in parts])
    products.add(np.stack(parts).astype(np.float64))
    agreement = agreement_of(products.cosines(), range(7), SIZE)
    assert agreement.close == {0, 1, 2, 3, 4, 6}
    assert agreement.out == {5}
    norms = products.norms()
    caps = [2 * max(1.0, 1.25 * norm / sorted(norms)[3]) for norm in norms]
    counted = [min(weight, cap) for weight, cap in zip(weights, caps, strict=True)]
    counted[5] = 0
    assert [cap > 2 for cap in caps] == [True] * 7
    assert caps[0] < weights[0] < caps[4]
    columns = [[float(part[i]) for part in parts] for i in range(SIZE)]
    centre = [sorted(column)[3] for column in columns]
    squares = []
    for member in range(7):
        lanes = [0.0] * LANES
        for i, column in enumerate(columns):
            difference = column[member] - centre[i]
            lanes[i % LANES] += difference * difference
        squares.append(math.fsum(lanes))
    median = sorted(squares)[3]
    faded, reaches = [], []
    for square, weight in zip(squares, counted, strict=True):
        faded.append(weight * min(1.0, CLOSE_FADE * CLOSE_FADE * median / square))
        reaches.append(math.sqrt(min(1.0, CLOSE_RADIUS * CLOSE_RADIUS * median / square)))
    assert faded[4] < weights[4]
    numbers = numbers_alike(products.cosines(), faded, agreement, SIZE)
    assert [number > 1 for number in numbers] == [False, True, False, False, False, False, True]
    faded = [weight / number for weight, number in zip(faded, numbers, strict=True)]
    pulls = [weight * reach for weight, reach in zip(faded, reaches, strict=True)]
    total = math.fsum(faded)
    expected = []
    for i, column in enumerate(columns):
        step = 0.0
        for value, pull in zip(column, pulls, strict=True):
            step += (value - centre[i]) * (pull / total)
        expected.append(centre[i] + step)
    found = robust_average(parts, weights)
    assert found.tobytes() == np.array(expected, np.float32).tobytes()


def test_one_member_is_its_own_average() -> None:
    (part,) = parts_of(1)
    assert robust_average([part], [7]).tobytes() == part.tobytes()


def test_of_two_members_neither_is_shortened() -> None:
    parts = [np.float32(9) * parts_of(2)[0], parts_of(2)[1]]
    found = robust_average(parts, [1, 2], usual=2)
    np.testing.assert_allclose(found, mean_of(parts, [1, 2]), rtol=1e-5, atol=1e-6)


def test_members_that_are_like_each_other_have_nearly_their_mean() -> None:
    parts = parts_of(8, 100_000)
    found, mean = robust_average(parts, [1] * 8), mean_of(parts, [1] * 8)
    assert np.linalg.norm(found - mean) < 0.002 * np.linalg.norm(mean)


@given(
    liars=st.lists(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=40, max_size=40),
        min_size=3,
        max_size=3,
    )
)
def test_three_of_eight_move_it_by_no_more_than_the_honest_differ(liars: list[list[float]]) -> None:
    """Whatever they send: the centre lies between honest values, and none pulls it farther than
    the farthest honest member."""
    honest = parts_of(8)[:5]
    parts = [*honest, *(np.array(each, np.float32) for each in liars)]
    found = robust_average(parts, [1] * 8).astype(np.float64)
    stacked = np.stack(honest).astype(np.float64)
    spread = float(np.linalg.norm(stacked.max(axis=0) - stacked.min(axis=0)))
    assert np.linalg.norm(found - stacked.mean(axis=0)) <= 3 * spread


def test_the_sign_of_a_zero_is_in_no_bit() -> None:
    parts = [np.array([0.0, -0.0, 0.0], np.float32), np.array([-0.0, -0.0, 0.0], np.float32)]
    negated = [-part for part in parts]
    assert robust_average(parts, [1, 1]).tobytes() == robust_average(negated, [1, 1]).tobytes()
    assert robust_average(parts, [1, 1]).tobytes() == bytes(12)


def test_what_would_be_subnormal_is_zero() -> None:
    tiny = np.array([2.0**-127, 2.0**-126, -(2.0**-127)], np.float32)
    assert robust_average([tiny], [1]).tolist() == [0.0, 2.0**-126, 0.0]


def test_the_largest_values_of_all_codecs_do_not_overflow() -> None:
    parts = [np.full(50, sign * 2.0**100, np.float32) for sign in (1, -1, 1)]
    assert robust_average(parts, [1, 1, 1]).tolist() == [2.0**100] * 50


def test_weights_are_at_most_twice_the_lower_median() -> None:
    assert robust_weights([100, 110, 50, 10**12]) == [100, 110, 50, 200]
    assert robust_weights([1, 5]) == [1, 2]
    assert robust_weights([0, 5]) == [1, 5]


def test_what_counts_twice_is_close_and_longer() -> None:
    """Two members that claim twice the others' work: one is as long as that, the other is not."""
    draw = np.random.default_rng(3)
    shared = draw.standard_normal(SIZE)
    works = [shared + 0.5 * draw.standard_normal(SIZE) for _ in range(5)]
    lengths, weights = [1.0, 1.0, 1.0, 1.0, 2.0], [10, 10, 10, 20, 20]
    parts = [
        np.float32(of) * work.astype(np.float32) for of, work in zip(lengths, works, strict=True)
    ]
    found = robust_average(parts, weights)
    np.testing.assert_allclose(found, mean_of(parts, [10, 10, 10, 12.5, 20]), rtol=0, atol=0.02)


def test_three_of_eight_that_send_the_opposite_change_nothing() -> None:
    """Of uneven members, half of whose work is their own."""
    draw = np.random.default_rng(5)
    shared, speeds = draw.standard_normal(SIZE), (2.0, 0.5, 1.0, 0.5, 1.5, 1.0, 1.0, 0.5)
    works = [speed * (shared + draw.standard_normal(SIZE)) for speed in speeds]
    parts = [work.astype(np.float32) for work in works]
    weights = [200, 50, 100, 50, 150, 200, 200, 200]
    parts[5:] = [-part for part in parts[5:]]
    found = robust_average(parts, weights, usual=100)
    np.testing.assert_allclose(found, mean_of(parts[:5], weights[:5]), rtol=0, atol=1e-5)


def test_three_of_eight_that_add_the_same_move_it_as_one_member_does() -> None:
    """A bias as long as what honest members add (ALIE). Three that count for themselves move it
    by half of that."""
    draw = np.random.default_rng(7)
    shared, speeds = draw.standard_normal(SIZE), (2.0, 0.5, 1.0, 0.5, 1.5)
    works = [speed * (shared + draw.standard_normal(SIZE)) for speed in speeds]
    honest = [work.astype(np.float32) for work in works]
    weights = [200, 50, 100, 50, 150, 200, 200, 200]
    mean, bias = mean_of(honest, weights[:5]), np.std(honest, axis=0)
    lie = np.mean(honest, axis=0) - bias

    def moved(liars: int) -> float:
        found = robust_average([*honest, *[lie] * liars], weights[: 5 + liars], usual=100)
        return float(np.dot(mean - found, bias) / np.dot(bias, bias))

    assert 0.1 < moved(3) <= moved(1) < 0.25
    noise = [0.5 * bias * draw.standard_normal(SIZE) for _ in range(3)]
    noisy = [(lie + each).astype(np.float32) for each in noise]
    found = robust_average([*honest, *noisy], weights, usual=100)
    assert np.dot(mean - found, bias) / np.dot(bias, bias) < 0.4


def test_weights_grow_with_the_rounds_of_a_member() -> None:
    """What members on probation claim does not move the cap."""
    standing = Standing([4, 4, 2, 0, 3], needed=4)
    assert robust_weights([100, 80, 90, 10**12, 10**12], standing) == [400, 320, 160, 0, 240]


@given(
    st.lists(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=40, max_size=40),
        min_size=1,
        max_size=6,
    )
)
def test_any_number_on_probation_moves_it_by_no_more_than_the_judges_differ(
    fresh: list[list[float]],
) -> None:
    judges = parts_of(3)
    parts = [*judges, *(np.array(each, np.float32) for each in fresh)]
    found = robust_average(parts, [4] * 3 + [3] * len(fresh), range(3)).astype(np.float64)
    stacked = np.stack(judges).astype(np.float64)
    centre = np.median(stacked, axis=0)
    radius = sorted(np.linalg.norm(stacked - centre, axis=1))[1]
    assert np.linalg.norm(found - centre) <= radius * 1.001


ATTACKS: dict[str, Attack] = {
    "ten times the negative": lambda own, _others, _draw: -10 * own,
    "noise a hundred times as large": lambda _own, others, draw: (
        100 * others.std(axis=0) * draw.standard_normal(others.shape[1])
    ),
    "a constant of 2^99": lambda own, _others, _draw: np.full_like(own, 2.0**99),
    "a bias inside the spread (ALIE, arXiv 1902.06156)": lambda _own, others, _draw: (
        others.mean(axis=0) - others.std(axis=0)
    ),
}


@pytest.fixture(scope="module")
def honest_five() -> float:
    """The loss that the five honest members reach alone."""
    return loss_after(mean_of, members=HONEST_OF_EIGHT)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_training_with_three_of_eight_hostile(attack: Attack, honest_five: float) -> None:
    with_mean = loss_after(mean_of, attack)
    with_robust = loss_after(robust_average, attack)
    print(f"honest five {honest_five:.4f}, mean {with_mean:.4f}, robust {with_robust:.4f}")
    assert with_robust < 1.03 * honest_five
    assert with_robust < with_mean


@pytest.mark.parametrize("steps", [(20,) * 8, (40, 20, 10, 20, 20, 10, 20, 30)])
def test_training_with_nobody_hostile_costs_little(steps: tuple[int, ...]) -> None:
    def average(aggregate: Callable[..., Float32Array]) -> float:
        return loss_after(aggregate, steps=steps)

    assert average(robust_average) < 1.01 * average(mean_of)
