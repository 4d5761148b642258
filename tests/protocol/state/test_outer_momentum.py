"""The outer momentum that a round chooses itself."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from gossamer.protocol import limits
from gossamer.protocol.codecs.inner_products import inner_product, norm_of
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.state.outer_momentum import (
    LENGTH_MAX,
    PLAIN_SHARE,
    OuterRates,
    Products,
    momentum_for,
    scale_to,
    tuned_rates,
)
from gossamer.protocol.state.outer_step import nesterov


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


def step_of(average: np.ndarray, momentum: np.ndarray, mu: float) -> np.ndarray:
    parameters, new = np.zeros_like(average), np.zeros_like(average)
    nesterov(parameters, momentum, average, 1.0, mu, parameters, new)
    return parameters


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("mu", [0.0, 0.3, 0.9])
def test_products_know_the_length_of_an_outer_step(mu: float, sign: int) -> None:
    average, momentum = vector(1), vector(1) + np.float32(sign) * vector(2)
    parts = (slice(0, 5000), slice(5000, None))
    products = Products.of_pieces(Products.of_piece(average[p], momentum[p]) for p in parts)
    length = norm_of(step_of(average, momentum, mu))
    assert math.sqrt(products.square_of_step(mu)) == pytest.approx(length, rel=1e-5)


@pytest.mark.parametrize("displacement", [1.1, 1.4, 1.9])
def test_the_step_is_as_long_as_is_wanted(displacement: float) -> None:
    """Two members whose work has a common part and parts of their own."""
    works = [vector(1) + vector(n) for n in (2, 3)]
    average, momentum = (works[0] + works[1]) / np.float32(2), vector(1) + vector(4)
    norms = [norm_of(work) for work in works]
    mu = momentum_for(Products.of_piece(average, momentum), norms, displacement, 0.9)
    assert 0.0 < mu < 0.9
    length = norm_of(step_of(average, momentum, mu))
    assert length == pytest.approx(displacement * np.median(norms), rel=1e-4)


def test_the_momentum_has_bounds() -> None:
    work = vector(1)
    alike = Products.of_piece(work, np.zeros_like(work))
    assert momentum_for(alike, [norm_of(work)], 1.0, 0.9) == pytest.approx(0.0, abs=1e-6)
    assert momentum_for(alike, [norm_of(work)], 0.5, 0.9) == 0.0
    assert momentum_for(alike, [norm_of(work)], 5.0, 0.9) == 0.9
    assert momentum_for(Products(), [0.0], 1.4, 0.9) == 0.9  # nothing was done: any will do


def test_one_of_three_that_lies_about_its_work_changes_little() -> None:
    works = [vector(1) + vector(n) for n in (2, 3, 4)]
    average = (works[0] + works[1] + works[2]) / np.float32(3)
    products = Products.of_piece(average, vector(1))
    norms = [norm_of(work) for work in works]
    honest = momentum_for(products, norms, 1.4, 0.9)
    for lie in (0.0, math.nextafter(limits.NORM_MAX, 0)):
        assert momentum_for(products, [lie, *norms[1:]], 1.4, 0.9) == pytest.approx(honest, abs=0.1)


def test_two_that_lie_do_not_break_it() -> None:
    products = Products.of_piece(vector(1), vector(2))
    biggest = math.nextafter(limits.NORM_MAX, 0)
    assert momentum_for(products, [biggest, biggest], 10.0, 0.9) == 0.9
    assert momentum_for(products, [0.0, 0.0], 10.0, 0.9) == 0.0


def outer_config(learning_rate: float = 1.0, warmup_rounds: int = 0) -> OuterConfig:
    return OuterConfig(
        inner_steps=20,
        learning_rate=learning_rate,
        momentum=0.9,
        warmup_rounds=warmup_rounds,
        warmup_inner_steps=1,
        codec="fp32",
        chunk_elements=1024,
        displacement=1.4,
    )


def test_the_first_quarter_of_a_run_is_plain_averaging() -> None:
    outer, work = outer_config(), vector(1)
    products = Products.of_piece(work, np.zeros_like(work))
    rates = [tuned_rates(outer, 800, number, products, [norm_of(work)]) for number in (1, 10, 11)]
    assert PLAIN_SHARE * 800 == 10 * 20
    assert rates[:2] == [(1.0, 0.0, 1.0)] * 2
    assert rates[2] == pytest.approx((1.0, 0.4, 1.0), abs=1e-6)


def test_rounds_of_the_warm_up_are_plain_averaging_however_long_that_is() -> None:
    outer, work = outer_config(warmup_rounds=300), vector(1)
    products = Products.of_piece(work, np.zeros_like(work))
    assert outer.first_inner_step_of(300) > PLAIN_SHARE * 800
    rates = [tuned_rates(outer, 800, number, products, [norm_of(work)]) for number in (300, 301)]
    assert rates[0] == (1.0, 0.0, 1.0)
    assert rates[1] == pytest.approx((1.0, 0.4, 1.0), abs=1e-6)


@pytest.mark.parametrize("learning_rate", [0.5, 0.8, 1.25])
def test_the_model_moves_as_far_whatever_the_learning_rate(learning_rate: float) -> None:
    """That multiplies the step. It may have to be longer than `LENGTH_MAX` for that."""
    outer, work = outer_config(learning_rate), vector(1)
    products = Products.of_piece(np.float32(2.0) * work, np.zeros_like(work))
    rates = tuned_rates(outer, 800, 11, products, [norm_of(work)])
    assert rates.learning_rate == learning_rate
    wanted = outer.displacement / learning_rate
    assert rates.scale * 2.0 == pytest.approx(min(2.0, max(LENGTH_MAX, wanted)), rel=1e-5)
    assert rates.momentum == pytest.approx(max(0.0, wanted / 2.0 - 1.0), rel=1e-4)


@pytest.mark.parametrize("round_number", [1, 11])
@pytest.mark.parametrize("false", [-100.0, 1e6, float(np.float32(2.0**99))])
def test_an_average_that_is_longer_than_its_members_work_is_cut(
    false: float, round_number: int
) -> None:
    """One of four members has added something else to the sum than it trained."""
    outer = outer_config()
    works = [vector(1) + vector(n) for n in (2, 3, 4)]
    average = (sum(works) + np.float32(false) * vector(5)) / np.float32(4)
    norms = [*map(norm_of, works), 1.0]
    momentum = np.zeros_like(average)
    rates = tuned_rates(outer, 800, round_number, Products.of_piece(average, momentum), norms)
    assert 0.0 < rates.scale < 1.0
    length = norm_of(step_of(rates.of_average(average), momentum, rates.momentum))
    assert length <= 1.001 * LENGTH_MAX * np.median(norms)


def test_the_average_of_honest_members_is_not_cut() -> None:
    """Members of unequal speed, whose work has one direction: the longest average there is."""
    outer, work = outer_config(), vector(1)
    lengths, tokens = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 2, 3, 4])
    average = work * np.float32((lengths * tokens).sum() / tokens.sum())
    norms = [norm_of(work * np.float32(length)) for length in lengths]
    rates = tuned_rates(outer, 800, 1, Products.of_piece(average, np.zeros_like(work)), norms)
    assert rates.scale == 1.0
    assert rates.of_average(average) is average


def test_without_norms_nothing_is_cut() -> None:
    assert scale_to(0.0, 1e30) == 1.0
    assert scale_to(2.0, 4.0) == 1.0
    assert scale_to(2.0, 16.0) == 0.5
    assert OuterRates(1.0, 0.0).scale == 1.0
