"""Agreement: which liars are out, that no honest member is, and the bits of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from gossamer.protocol.codecs.agreement import Agreement, Products, agreement_of
from gossamer.protocol.codecs.chunk_values import Float32Array

SIZE = 20_000
SPEEDS = (4.0, 2.0, 1.0, 2.0, 3.0)


def products_of(parts: Sequence[Float32Array], tile: int = SIZE) -> Products:
    products = Products([float(np.abs(part).max()) for part in parts])
    values = np.stack(parts).astype(np.float64)
    for start in range(0, values.shape[1], tile):
        products.add(values[:, start : start + tile])
    return products


def agreement(parts: Sequence[Float32Array], judging: Sequence[int] | None = None) -> Agreement:
    judges = range(len(parts)) if judging is None else judging
    return agreement_of(products_of(parts).cosines(), judges, len(parts[0]))


def out_of(parts: Sequence[Float32Array], judging: Sequence[int] | None = None) -> frozenset[int]:
    return agreement(parts, judging).out


def honest_parts(
    seed: int = 1, common: float = 0.6, speeds: Sequence[float] = SPEEDS
) -> list[Float32Array]:
    """Work of peers of different speed: what all have in common, and what each has alone."""
    draw = np.random.default_rng(seed)
    shared = common * draw.standard_normal(SIZE)
    return [
        np.asarray(speed * (shared + draw.standard_normal(SIZE)), np.float32) for speed in speeds
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("common", [0.0, 0.03, 0.1, 0.3, 0.6, 2.0])
def test_no_honest_member_is_out(seed: int, common: float) -> None:
    found = agreement(honest_parts(seed, common, (4.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 2.0)))
    assert not found.out
    assert len(found.close) == (8 if common >= 0.3 else 0 if common == 0.0 else len(found.close))


@pytest.mark.parametrize("seed", range(5))
def test_three_of_eight_that_send_the_opposite_are_out(seed: int) -> None:
    """Also where the opposite is that of the mean, and shorter than the work of most."""
    parts = honest_parts(seed, speeds=(*SPEEDS, 4.0, 1.0, 2.0))
    opposite = [*parts[:5], *(-part for part in parts[5:])]
    assert out_of(opposite) == {5, 6, 7}
    bias = [np.float32(-0.5) * np.mean(parts[:5], axis=0) for _ in range(3)]
    assert out_of([*parts[:5], *bias]) == {5, 6, 7}


def test_where_nothing_is_in_common_nobody_is_out() -> None:
    """The opposite of one of the vectors says nothing there either."""
    parts = honest_parts(common=0.0)
    assert not out_of([*parts, -parts[0]])


def test_of_two_members_neither_puts_the_other_out() -> None:
    part = honest_parts()[0]
    assert not out_of([part])
    assert not out_of([part, -part])
    assert not out_of(honest_parts()[:2])


def test_of_three_members_two_that_agree_put_the_third_out() -> None:
    first, second, third = honest_parts()[:3]
    assert out_of([first, -third, second]) == {1}
    assert not out_of([first, second, third])


def test_no_more_than_a_minority_is_out() -> None:
    """Two halves that say the opposite: nobody can tell which of them is right."""
    first, second, third, fourth, *_ = honest_parts()
    assert len(out_of([first, second, -third, -fourth])) <= 1


def test_sending_the_same_lie_three_times_is_no_majority() -> None:
    """Liars agree with each other completely, and a little with two honest members."""
    parts = [part.astype(np.float64) for part in honest_parts(speeds=(1.0,) * 5)]
    mean = np.mean(parts, axis=0)
    lie = np.asarray(1.3 * (parts[0] + parts[1] - 2 * mean) - mean, np.float32)
    honest = [np.asarray(part, np.float32) for part in parts]
    cosines = products_of([*honest, lie]).cosines()[5]
    assert min(cosines[0], cosines[1]) > 0.1
    assert max(cosines[2:5]) < -0.5
    assert out_of([*honest, lie, lie, lie]) == {5, 6, 7}


def test_three_of_eight_put_no_honest_member_out() -> None:
    """They send the opposite of what one member has alone, and agree with all others."""
    parts = [part.astype(np.float64) for part in honest_parts(speeds=(1.0,) * 5)]
    mean = np.mean(parts, axis=0)
    lie = np.asarray(mean - 1.5 * (parts[0] - mean), np.float32)
    honest = [np.asarray(part, np.float32) for part in parts]
    cosines = products_of([*honest, lie]).cosines()[5]
    assert cosines[0] < -0.2
    assert min(cosines[1:5]) > 0.2
    assert not out_of([*honest, lie, lie, lie])


def test_only_judges_count() -> None:
    """Six fresh members that say the opposite of three established ones."""
    judges = honest_parts()[:3]
    fresh = [-part for part in honest_parts(speeds=(1.0,) * 6)]
    parts = [*judges, *fresh, honest_parts()[4]]
    assert out_of(parts, range(3)) == set(range(3, 9))
    assert not out_of(parts, [0])


def test_lengths_and_tiles_are_in_no_bit() -> None:
    parts = honest_parts()
    cosines = products_of(parts).cosines()
    for tile in (1, 7, 4096):
        assert products_of([part[:5000] for part in parts], tile).cosines() == (
            products_of([part[:5000] for part in parts]).cosines()
        )
    scaled = [part * np.float32(2.0 ** (20 * index)) for index, part in enumerate(parts)]
    assert products_of(scaled).cosines() == cosines


def test_the_products_are_those_of_whole_numbers() -> None:
    """Number by number in Python's integers, in the order that the specification gives."""
    parts = [part[:300] for part in honest_parts()[:3]]
    whole = []
    for part in parts:
        exponent = 15 - math.frexp(max(abs(float(value)) for value in part))[1]
        whole.append([round(math.ldexp(float(value), exponent)) for value in part])
    sums = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in whole] for a in whole]
    expected = [
        [sums[i][j] / (math.sqrt(sums[i][i]) * math.sqrt(sums[j][j])) for j in range(3)]
        for i in range(3)
    ]
    assert products_of(parts).cosines() == expected


def test_the_largest_and_the_smallest_values_have_cosines() -> None:
    signs = np.resize(np.array([1, -1, 1], np.float32), SIZE)
    parts = [signs * np.float32(2.0**100), signs * np.float32(2.0**-149), np.zeros_like(signs)]
    cosines = products_of(parts).cosines()
    np.testing.assert_allclose(cosines, [[1, 1, 0], [1, 1, 0], [0, 0, 0]], rtol=1e-12)
    assert not out_of(parts)
