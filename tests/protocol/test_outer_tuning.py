"""The outer step that a run tunes itself."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from gossamer.protocol.outer_tuning import (
    GAIN_MAX,
    OuterTuning,
    agreement,
    expected_agreement,
    inner_product,
)


def vector(seed: int, length: int = 10_001) -> np.ndarray:
    n = np.arange(length, dtype=np.int64)
    return ((n * (2654435761 + seed) % 1000003) - 500001).astype(np.float32) / np.float32(3e5)


def test_an_inner_product_is_nearly_exact() -> None:
    a, b = vector(1), vector(2)
    exact = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
    assert inner_product(a, b) == pytest.approx(float(exact), rel=1e-12)


def test_an_inner_product_is_the_same_wherever_it_is_computed() -> None:
    assert inner_product(vector(1), vector(2)).hex() == "0x1.187c28d71fad3p+13"
    # Neither the alignment nor the strides of a vector play a part.
    doubled = np.repeat(vector(1), 2)[::2]
    shifted = np.concatenate([[np.float32(0)], vector(2)])[1:]
    assert inner_product(doubled, shifted) == inner_product(vector(1), vector(2))


def test_agreement_is_a_cosine() -> None:
    a = vector(1)
    assert agreement(a, a * np.float32(2)) == pytest.approx(1.0)
    assert agreement(a, -a) == pytest.approx(-1.0)
    assert agreement(a, np.zeros_like(a)) == 0.0
    assert agreement(a * np.float32(1e20), a * np.float32(1e20)) == pytest.approx(1.0)


def test_a_run_begins_with_plain_averaging_and_goes_further_while_peers_agree() -> None:
    tuning = OuterTuning()
    assert tuning.rates == (1.0, 0.0)
    gains = []
    for _ in range(30):
        tuning = tuning.after(0.4, 0.1)
        gains.append(tuning.gain)
    assert gains == sorted(gains)
    assert gains[-1] == GAIN_MAX
    assert tuning.rates == (1.0, pytest.approx(0.9))
    for _ in range(30):
        tuning = tuning.after(-0.2, 0.1)
    assert tuning == OuterTuning(1.0)


def test_it_finds_the_gain_of_a_slow_direction() -> None:
    """Rounds that each work off a twentieth of what is left: the tuned run needs far fewer."""

    def left_after(num_rounds: int, tuned: bool) -> float:
        theta, momentum, tuning = 1.0, 0.0, OuterTuning()
        for _ in range(num_rounds):
            average = 0.05 * theta
            if tuned:
                sign = math.copysign(1.0, average * momentum) if momentum else 0.0
                tuning = tuning.after(sign, 0.0)
            rate, mu = tuning.rates
            momentum = mu * momentum + average
            theta -= rate * (average + mu * momentum)
        return abs(theta)

    assert left_after(40, tuned=True) < 0.2 * left_after(40, tuned=False)


@pytest.mark.parametrize(("steps", "momentum"), [(1, 0.0), (4, 0.0), (20, 0.0), (20, 0.8)])
def test_what_noise_alone_looks_like(steps: int, momentum: float) -> None:
    """Rounds of AdamW's first moment over white noise, with many independent elements."""
    random = np.random.default_rng(1)
    moment, outer = np.zeros(20_000), np.zeros(20_000)
    seen = []
    for number in range(60):
        work = np.zeros_like(moment)
        for _ in range(steps):
            moment = 0.9 * moment + random.standard_normal(len(moment))
            work += moment
        if number >= 40:
            seen.append(agreement(work.astype(np.float32), outer.astype(np.float32)))
        outer = momentum * outer + work
    assert expected_agreement(steps, 0.9, momentum) == pytest.approx(np.mean(seen), abs=0.01)


def test_long_rounds_expect_nothing() -> None:
    assert 0.0 < expected_agreement(500, 0.9, 0.9) < expected_agreement(200, 0.9, 0.0) < 0.03
    assert expected_agreement(100_000, 0.9, 0.0) < 1e-4
    assert expected_agreement(20, 0.0, 0.0) == 0.0
