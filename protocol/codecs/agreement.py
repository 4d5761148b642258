"""Which members' contributions agree with those of the others, the same on every machine.

The works of honest members point the same way to some degree, however different their texts and
speeds are: all lower a loss. Lies that hide in the spread of lengths, such as the opposite of the
work, do not. So contributions are compared by their cosines c_ij, which know no lengths. Only
judges count: the established members in a run with a probation, and all members otherwise.

    s_i  = the upper median of c_ij over the other judges j
    c    = the upper median of the s_i, the usual agreement
    a_i  = the mean of c_ij over the other judges j, each between -c and c

As long as the lowest a_i is negative and more than a bare majority of judges is left, that judge is
*out*, and the others' a_i are made without it. A member that is no judge is out if its a_i with the
judges that are left is negative. A judge that is left is *close* if its a_i is at least half of c.

A minority raises c only by agreeing with honest members. Liars that send the same thing gain no
more by it than an honest pair does, and a liar that opposes an honest member takes no more from it
than its agreement with another one gives it. Liars that agree with some honest members, and oppose
the others, are not out: together with those they are as many as the honest members are, and nobody
can tell these two groups apart. But they are not close.

Where c is what vectors without anything in common have by chance, nothing can be said: nobody is
out, and nobody is close. One judge, and one of two, can put nobody out either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CHANCE = 2.0
"""Usual agreement up to which nothing is said, in multiples of 1 / sqrt(elements), the spread of
the cosine of two vectors without anything in common."""

CLOSE = 0.5
"""Agreement from which on a member is close, as a multiple of the usual one. The least of honest
members with texts of their own was 0.55 in a measured run, and a liar that most honest members
disagree with has 0.3."""

_INTEGER_BITS = 15
"""Values become whole numbers of so many bits, so sums of products of 2^20 elements, the most of a
chunk, stay below 2^53: float64 holds them exactly, in whatever order a library adds them up."""

Float64Array = npt.NDArray[np.float64]


class Agreement(NamedTuple):
    """Indices of members."""

    close: frozenset[int] = frozenset()
    out: frozenset[int] = frozenset()


class Products:
    """The inner products of a chunk's contributions, tile by tile."""

    def __init__(self, magnitudes: Sequence[float]) -> None:
        """`magnitudes`: the largest one of each contribution."""
        self._exponents = [_INTEGER_BITS - math.frexp(each)[1] for each in magnitudes]
        self._scales = np.array([[math.ldexp(1.0, each)] for each in self._exponents])
        self._sums = np.zeros((len(magnitudes), len(magnitudes)))

    def add(self, values: Float64Array) -> None:
        """Adds a tile of all contributions, (members, elements of the tile)."""
        whole = values * self._scales
        np.rint(whole, out=whole)
        self._sums += whole @ whole.T

    def norms(self) -> list[float]:
        """The Euclidean length of each contribution."""
        squares = np.diagonal(self._sums).tolist()
        return [
            math.ldexp(math.sqrt(square), -exponent)
            for square, exponent in zip(squares, self._exponents, strict=True)
        ]

    def cosines(self) -> list[list[float]]:
        """The cosine of each pair; 0 for contributions that are 0."""
        sums = self._sums.tolist()
        norms = [math.sqrt(row[index]) or 1.0 for index, row in enumerate(sums)]
        return [
            [product / (norm * other) for product, other in zip(row, norms, strict=True)]
            for row, norm in zip(sums, norms, strict=True)
        ]


def agreement_of(
    cosines: Sequence[Sequence[float]], judging: Sequence[int], num_elements: int
) -> Agreement:
    """Who is close to the others, and who is out.

    Args:
        cosines: of each pair of contributions.
        judging: indices of the members that count, ascending.
        num_elements: of a contribution.
    """
    if len(judging) < 2:
        return Agreement()
    medians = [_upper_median([cosines[i][j] for j in judging if j != i]) for i in judging]
    usual = _upper_median(medians)
    if usual <= CHANCE / math.sqrt(num_elements):
        return Agreement()
    clipped = np.clip(np.array(cosines), -usual, usual)
    np.fill_diagonal(clipped, 0.0)
    left = list(judging)
    means = _means(clipped, left)
    while len(left) > len(judging) // 2 + 1:
        lowest = min(left, key=lambda i: means[i])
        if means[lowest] >= 0.0:
            break
        left.remove(lowest)
        means = _means(clipped, left)
    others = set(range(len(cosines))) - set(judging)
    out = set(judging) - set(left) | {i for i in others if means[i] < 0.0}
    return Agreement(frozenset(i for i in left if means[i] >= CLOSE * usual), frozenset(out))


def _means(clipped: Float64Array, left: list[int]) -> list[float]:
    """Each member's mean agreement with the judges that are left, without itself."""
    sums = np.zeros(len(clipped))
    for judge in left:
        sums += clipped[:, judge]
    counts = np.full(len(clipped), float(len(left)))
    counts[left] -= 1.0
    means: list[float] = (sums / counts).tolist()
    return means


def _upper_median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
