"""Which members' contributions agree with the others', and which are alike beyond that.

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
Where c is what vectors without anything in common have by chance, nothing can be said: nobody is
out, and nobody is close. One judge, and one of two, can put nobody out either.

Liars that send the same thing gain no more by it than an honest pair does. Those that agree with
some honest members, and oppose the others, are not out: nobody can tell these two groups apart. But
they are not close.

What each honest member adds to the common direction comes of its own text, and is nearly at right
angles to what the others add. Liars that want to carry an average away add the same (ALIE: Baruch
et al. 2019, arXiv 1902.06156). So members that add the same count as fewer, as in FoolsGold (Fung
et al. 2018, arXiv 1808.04866), here within one round:

    u_i  = x_i / |x_i| without its part along the mean direction of the judges that are left
    z_ij = (cos(u_i, u_j)^2 - t^2) / (1 - t^2) where the cosine is above t = 1/2, and otherwise 0
    n_i  = 1 + sum_j z_ij min(1, w_j / w_i), over the other members j

and the weight w_i of a member is divided by n_i. Members that send the same weigh as one of them.
Liars that each add noise of their own, as long as what honest members add, are not found by it.

All members find the same: products are exact, and every other operation is rounded by itself.
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

ALIKE = 0.5
"""Cosine of what two members add up to which they are not alike. That of the two most alike honest
members of a measured run was 0.1 on average, and once 0.55."""

BESIDE_MIN = 1e-4
"""The least square of what a member adds, its contribution having the length 1. Rounding decides
the direction of what is shorter."""

_INTEGER_BITS = 15
"""Values become whole numbers of so many bits, so sums of products of 2^20 elements, the most of a
chunk, stay below 2^53: float64 holds them exactly, in whatever order a library adds them up."""

Float64Array = npt.NDArray[np.float64]


class Agreement(NamedTuple):
    """Indices of members. `judges` are those that are left."""

    judges: tuple[int, ...] = ()
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
    """Returns the contributions that are close to the others, and those that are out.

    Args:
        cosines: of each pair of contributions.
        judging: indices of the members that count, ascending.
        num_elements: of a contribution.
    """
    if len(judging) < 2:
        return Agreement(tuple(judging))
    medians = [_upper_median([cosines[i][j] for j in judging if j != i]) for i in judging]
    usual = _upper_median(medians)
    if usual <= CHANCE / math.sqrt(num_elements):
        return Agreement(tuple(judging))
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
    close = frozenset(i for i in left if means[i] >= CLOSE * usual)
    return Agreement(tuple(left), close, frozenset(out))


def numbers_alike(
    cosines: Sequence[Sequence[float]],
    weights: Sequence[float],
    agreement: Agreement,
    num_elements: int,
) -> list[float]:
    """How many members add the same as each one does to what all have in common; 1 at least.

    A judge is compared with the judges that are left, so members without standing take no weight
    from those that have it. A member that is no judge is compared with all that are not out.

    Args:
        cosines: of each pair of contributions.
        weights: of each member; above 0 for all that are not out.
        num_elements: of a contribution.
    """
    table, judges = np.array(cosines), agreement.judges
    along = _sums(table, judges)
    squared = math.fsum(along[list(judges)].tolist())
    least = max(ALIKE, CHANCE / math.sqrt(num_elements))
    if squared <= 0.0 or least >= 1.0:
        return [1.0] * len(table)
    along /= math.sqrt(squared)
    beside = table - along[:, None] * along
    lengths = np.sqrt(np.maximum(np.diagonal(beside), BESIDE_MIN))
    alike = np.clip(beside / (lengths[:, None] * lengths), least, 1.0)
    alike = (alike * alike - least * least) / (1.0 - least * least)
    numbers, others = [], [i for i in range(len(table)) if i not in agreement.out]
    for index, (own, row) in enumerate(zip(weights, alike.tolist(), strict=True)):
        compared = judges if index in judges else others
        shares = [row[j] * (min(weights[j], own) / own) for j in compared if own and j != index]
        numbers.append(1.0 + math.fsum(shares))
    return numbers


def _means(clipped: Float64Array, left: list[int]) -> list[float]:
    """Each member's mean agreement with the judges that are left, without itself."""
    counts = np.full(len(clipped), float(len(left)))
    counts[left] -= 1.0
    means: list[float] = (_sums(clipped, left) / counts).tolist()
    return means


def _sums(table: Float64Array, columns: Sequence[int]) -> Float64Array:
    """The sum of these columns, in this order."""
    sums = np.zeros(len(table))
    for column in columns:
        sums += table[:, column]
    return sums


def _upper_median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
