"""The outer momentum of a round, chosen by the round itself.

The best constant momentum differs with H, and from a cold start most runs end worse with a constant
than with plain averaging (measured: tests/benchmarks/losses.py, the arms of `tuning`). Averaging
removes the parts on which the peers do not agree, so the average is shorter than the work of each
peer; with the best constant for short rounds the outer step was as long as that work. So momentum
is set in each round to the value with which the outer step

    parameters - parameters' = (1 + mu) * g + mu**2 * m        (`outer_step`, learning rate 1)

is `displacement` times as long as the members' own work of the round. Here g is the average of that
work, and m is the momentum vector before the step. Each member says the norm of its work, and the
median counts, so that one false norm changes little. In the first `PLAIN_SHARE` of the run's inner
steps the outer step is plain averaging.

The average of vectors is not longer than the longest of them. One that is far longer than its
members' work is that of no honest ring, and is cut to `LENGTH_MAX` times the median norm. So no
round moves the parameters farther than its members' own work would, whatever one of them adds to a
sum.

All peers get the same numbers: everything is a fixed sequence of IEEE 754 operations in float64.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gossamer.protocol.codecs.inner_products import inner_product
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.state.digest import FloatVector

PLAIN_SHARE = 0.25
"""Part of the run's inner steps without momentum. It equals the warm-up rounds of the preset
`tiny`, with which it was tested. Larger presets have shorter warm-ups."""

LENGTH_MAX = 1.5
"""Length of an average, in median norms of the members' work, from which on it is cut. Averages of
honest members have 0.6 to 0.75 of it. A member of a fast machine does longer work than the others,
and counts for twice their median at most; a codec adds the error of its rounding."""

_HALVINGS = 30
"""Halvings of the interval in which the momentum is sought: to 1e-9, finer than fp32 near 0.9."""


class OuterRates(NamedTuple):
    """The outer step of one round."""

    learning_rate: float
    momentum: float
    scale: float = 1.0
    """Factor of the average, above 0; below 1 if it is cut, see `LENGTH_MAX`."""

    def of_average(self, average: FloatVector) -> FloatVector:
        """The average of which the step is taken, (num_elements,)."""
        return average if self.scale == 1.0 else average * np.float32(self.scale)


class Products(NamedTuple):
    """Inner products of the average of a round (g) and the momentum vector before it (m)."""

    gg: float = 0.0
    gm: float = 0.0
    mm: float = 0.0

    @classmethod
    def of_piece(cls, average: FloatVector, momentum: FloatVector) -> Products:
        """The products of some elements of both vectors, each (num_elements,)."""
        return cls(
            inner_product(average, average),
            inner_product(average, momentum),
            inner_product(momentum, momentum),
        )

    @classmethod
    def of_pieces(cls, pieces: Iterable[Products]) -> Products:
        """The products of all elements, from those of pieces in the order of the chunks."""
        gg = gm = mm = 0.0
        for piece in pieces:
            gg, gm, mm = gg + piece.gg, gm + piece.gm, mm + piece.mm
        return cls(gg, gm, mm)

    def scaled(self, scale: float) -> Products:
        """The products of the average times `scale`."""
        return Products(scale * scale * self.gg, scale * self.gm, self.mm)

    def square_of_step(self, mu: float) -> float:
        """The squared length of an outer step with this momentum and learning rate 1."""
        return (
            (1.0 + mu) * (1.0 + mu) * self.gg
            + 2.0 * (1.0 + mu) * mu * mu * self.gm
            + mu * mu * mu * mu * self.mm
        )


def tuned_rates(
    outer: OuterConfig,
    total_steps: int,
    round_number: int,
    products: Products,
    norms: Sequence[float],
) -> OuterRates:
    """The rates of a round of several peers, from `outer.displacement`.

    Args:
        total_steps: inner steps of the whole run.
        norms: see `momentum_for`.
    """
    displacement = outer.displacement / outer.learning_rate
    longest = max(LENGTH_MAX, displacement) * statistics.median(norms)
    scale = scale_to(longest, products.gg)
    is_early = outer.first_inner_step_of(round_number) < PLAIN_SHARE * total_steps
    if is_early or outer.is_warmup(round_number):
        return OuterRates(1.0, 0.0, scale)
    mu = momentum_for(products.scaled(scale), norms, displacement, outer.momentum)
    return OuterRates(outer.learning_rate, mu, scale)


def scale_to(longest: float, squared_length: float) -> float:
    """The factor, 1 at most, that makes a vector no longer than `longest`.

    It is 1 if `longest` is 0: then the members said nothing of their work.
    """
    if longest <= 0.0 or squared_length <= longest * longest:
        return 1.0
    return longest / math.sqrt(squared_length)


def rates_of_round(
    outer: OuterConfig,
    total_steps: int,
    round_number: int,
    pieces: Iterable[tuple[FloatVector, FloatVector]],
    norms: Sequence[float],
) -> OuterRates:
    """The rates of a round whose average contains all its peers.

    Args:
        total_steps: inner steps of the whole run.
        pieces: pieces of the average and of the momentum vector, in the order of the chunks.
        norms: see `momentum_for`; one element for each peer.
    """
    if outer.displacement and len(norms) > 1:
        products = Products.of_pieces(Products.of_piece(*piece) for piece in pieces)
        return tuned_rates(outer, total_steps, round_number, products, norms)
    return OuterRates(*outer.rates_of(round_number, len(norms)))


def momentum_for(
    products: Products, norms: Sequence[float], displacement: float, momentum_max: float
) -> float:
    """The momentum with which the outer step is `displacement` times as long as the median norm.

    It is 0 if plain averaging is as long already, and `momentum_max` if no momentum is enough.

    Args:
        norms: Euclidean norms of the members' work; at least one.
    """
    wanted = displacement * statistics.median(norms)
    low, high = 0.0, momentum_max
    if not math.isfinite(wanted) or products.square_of_step(high) <= wanted * wanted:
        return high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if products.square_of_step(middle) <= wanted * wanted:
            low = middle
        else:
            high = middle
    return low
