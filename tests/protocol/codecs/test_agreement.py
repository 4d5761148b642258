"""Agreement: which liars are out, that no honest member is, and the bits of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from gossamer.protocol.codecs.agreement import (
    Agreement,
    Products,
    agreement_of,
    numbers_alike,
)
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


def numbers_of(
    parts: Sequence[Float32Array],
    weights: Sequence[float] | None = None,
    judging: Sequence[int] | None = None,
) -> list[float]:
    cosines = products_of(parts).cosines()
    found = agreement_of(cosines, range(len(parts)) if judging is None else judging, SIZE)
    return numbers_alike(cosines, weights or [1.0] * len(parts), found, len(parts[0]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("common", [0.0, 0.03, 0.1, 0.3, 0.6, 2.0, 20.0])
def test_no_honest_member_is_like_another(seed: int, common: float) -> None:
    parts = honest_parts(seed, common, (4.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 2.0))
    assert numbers_of(parts) == [1.0] * 8


@pytest.mark.parametrize("common", [0.0, 0.6, 2.0])
def test_members_that_add_the_same_count_as_one(common: float) -> None:
    """However long they are; and the others are like nobody."""
    parts = honest_parts(common=common)
    copies = [np.float32(of) * parts[0] for of in (1.0, 0.1, 7.0)]
    numbers = numbers_of([*parts[1:], *copies])
    assert numbers[:4] == [1.0] * 4
    assert numbers[4:] == pytest.approx([3.0] * 3, rel=1e-3)


def test_likeness_counts_gradually() -> None:
    """Noise of their own of these lengths, beside the same addition."""
    parts = honest_parts(speeds=(1.0,) * 6)
    draw = np.random.default_rng(2)

    def alike(noise: float) -> float:
        added = [
            parts[0] + np.float32(noise) * draw.standard_normal(SIZE, np.float32) for _ in range(3)
        ]
        return numbers_of([*parts[1:], *added])[5]

    found = [alike(noise) for noise in (0.0, 0.3, 0.6, 1.5)]
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(3.0, rel=1e-3)
    assert found[-1] == 1.0


def test_all_alike_is_nobody_alike() -> None:
    """Where nothing is beside the mean, rounding does not decide."""
    part = honest_parts()[0]
    assert numbers_of([part, part, part]) == [1.0] * 3
    assert numbers_of([part, -part]) == [1.0] * 2
    assert numbers_of([part, np.zeros_like(part)]) == [1.0] * 2
    assert numbers_of([part]) == [1.0]


def test_light_members_take_little_from_a_heavy_one() -> None:
    parts = honest_parts()
    numbers = numbers_of([*parts, parts[0], parts[0]], [100.0, 1, 1, 1, 1, 1, 1])
    assert numbers[0] == pytest.approx(1.02, abs=0.001)
    assert numbers[5:] == pytest.approx([3.0, 3.0], rel=1e-3)


def test_who_is_no_judge_takes_nothing_from_a_judge() -> None:
    parts = honest_parts()
    numbers = numbers_of([*parts, parts[0], parts[0]], judging=range(5))
    assert numbers[:5] == [1.0] * 5
    assert numbers[5:] == pytest.approx([3.0, 3.0], rel=1e-3)


def test_who_is_out_is_like_nobody() -> None:
    parts = honest_parts()
    lie = -parts[0]
    assert out_of([*parts, lie, lie]) == {5, 6}
    assert numbers_of([*parts, lie, lie], [1.0] * 5 + [0.0] * 2) == [1.0] * 7


def test_in_four_elements_nobody_is_alike() -> None:
    """There chance can make any two members alike."""
    parts = [part[:4] for part in honest_parts()]
    assert numbers_of([*parts, parts[0]]) == [1.0] * 6


def test_numbers_alike_are_those_of_plain_arithmetic() -> None:
    """Number by number in Python's floats, in the order that the specification gives."""
    draw = np.random.default_rng(4)
    parts = honest_parts(speeds=(1.0,) * 5)
    parts += [parts[0] + np.float32(0.5) * draw.standard_normal(SIZE, np.float32), -parts[1]]
    weights = [3.0, 1.0, 2.0, 5.0, 4.0, 2.0, 0.0]
    cosines, left = products_of(parts).cosines(), [0, 1, 2, 3, 4, 5]
    assert agreement(parts).judges == tuple(left)
    sums = []
    for row in cosines:
        total = 0.0
        for j in left:
            total += row[j]
        sums.append(total)
    root = math.sqrt(math.fsum(sums[i] for i in left))
    along = [each / root for each in sums]
    beside = [[c - along[i] * along[j] for j, c in enumerate(row)] for i, row in enumerate(cosines)]
    lengths = [math.sqrt(max(beside[i][i], 1e-4)) for i in range(7)]
    expected = []
    for i in range(7):
        shares = []
        for j in left:
            if j != i and weights[i]:
                y = min(max(beside[i][j] / (lengths[i] * lengths[j]), 0.5), 1.0)
                z = (y * y - 0.25) / 0.75
                shares.append(z * (min(weights[i], weights[j]) / weights[i]))
        expected.append(1.0 + math.fsum(shares))
    assert numbers_of(parts, weights) == expected
    assert expected[5] > expected[0] > 1.0


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
