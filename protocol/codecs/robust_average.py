"""The average of a chunk's contributions that a minority of the members cannot carry away.

It is one step of CenteredClip (Karimireddy et al. 2020, arXiv 2012.10333; among peers: BTARD, arXiv
2106.11257) from a centre that no minority can move far, the coordinate-wise median m. Members that
disagree with the others are out (`agreement`). Each other member pulls the average with its
difference from the centre, but no harder than a multiple of the median member:

    d_i     = |x_i - m|, and r is their upper median
    fade_i  = min(1, (2 r / d_i)^2), and 0 for a member that is out
    v_i     = w_i fade_i / n_i
    average = m + sum_i v_i min(1, r / d_i) (x_i - m) / sum_i v_i

where n_i is the number of members that add the same to what all have in common (`agreement`). For
members that are close to the others the bounds are 3 r and 4 r in place of r and 2 r: honest
members of very different speed and text are within that, so their average is the weighted mean.
Centre and r are those of all members, also of those that are out. So the average is within three r
of the centre whatever they send. (In further steps the pulls of a minority would add up, decision
62.)

The weights are tokens capped at the lower median itself. With a cap of twice that, three of eight
that claim everything have more than half of the weight. A close member's cap is up to twice the
lower median if its contribution is long, as twice the work is: 1.25 times the lower median for each
median length.

Each chunk is averaged by itself, with its own median and distances. So a member reduces a chunk
when it has it, and a liar that spends all its influence on one chunk gains nothing.

In a run with a probation (`protocol.standing`) only established members say where the centre is,
how long the radius, and who agrees. A member on probation is never close. It pulls with the part of
its weight that its rounds so far give it, and no harder than the radius, so new identities move an
average by less than r, however many they are. A chunk without a contribution of an established
member, as in the first rounds of a run, is averaged as if there were no probation.

All peers get the same bits. Everything is a fixed sequence of IEEE 754 operations in float64, in
ascending position, far from that format's subnormal numbers. The result is rounded to fp32 once,
with 0 for what would be subnormal in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.protocol.codecs.agreement import Agreement, Products, agreement_of, numbers_alike
from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.inner_products import LANES
from gossamer.protocol.standing import Standing
from gossamer.protocol.token_caps import lower_median

CLOSE_CAP = 2
"""Cap of a close member's weight as a multiple of the lower median of its ring's tokens."""

CLOSE_CAP_BY_LENGTH = 1.25
"""The same for each median length of its contribution. One that did four times the work of others
was 3 times as long, and 1.8 times when the model had learnt, in a measured run."""

RADIUS, FADE = 1.0, 2.0
"""The farthest that a member pulls, and the distance from which on it loses weight, as multiples of
the median distance."""

CLOSE_RADIUS, CLOSE_FADE = 3.0, 4.0
"""The same of close members. Of honest members only one that did four times the work of the others
was farther away in a measured run."""

_TILE = 8 * LANES
"""Elements that are looked at together: with those of a ring they stay in a processor's cache."""

_NORMAL_MIN = 2.0**-126
"""The smallest normal fp32."""

Float64Array = npt.NDArray[np.float64]


class _Pull(NamedTuple):
    """What distance leaves of a member: of its weight, and of its difference from the centre."""

    fade: float
    reach: float


def robust_weights(tokens: Sequence[int], standing: Standing | None = None) -> list[int]:
    """The weights of a ring's members in its robust averages, by ring position: the most that each
    can have.

    They are 1 at least. With a standing, which some member of the ring has in full, they are 0 for
    a member that no round has credited yet, and grow with its rounds.
    """
    positions = range(len(tokens))
    full = [standing is None or standing.is_established(position) for position in positions]
    rounds = [1] * len(tokens) if standing is None else standing.rounds
    usual = _usual_tokens(tokens, standing)
    caps = [usual * CLOSE_CAP if is_full else usual for is_full in full]
    return [min(max(1, each), cap) * of for each, cap, of in zip(tokens, caps, rounds, strict=True)]


def usual_weight(tokens: Sequence[int], standing: Standing | None = None) -> int:
    """The most that a member which is not close weighs in the robust averages of a ring."""
    return _usual_tokens(tokens, standing) * (1 if standing is None else standing.needed)


def _usual_tokens(tokens: Sequence[int], standing: Standing | None) -> int:
    positions = range(len(tokens))
    full = [p for p in positions if standing is None or standing.is_established(p)]
    return max(1, lower_median([tokens[position] for position in full]))


def robust_average(
    parts: Sequence[Float32Array],
    weights: Sequence[int],
    judges: Sequence[int] | None = None,
    usual: int | None = None,
) -> Float32Array:
    """The average of a chunk's contributions, (num_elements,).

    Args:
        parts: (num_elements,) each, of magnitudes up to 2^100, in ascending position; at least one.
        weights: of each part, at least 1 (`robust_weights`).
        judges: indices of the parts whose median and distances count, at least one; None: all.
        usual: the most that a member weighs which is not close (`usual_weight`); None: the lower
            median of the judges' weights.
    """
    centre = np.empty(len(parts[0]))
    lanes = np.zeros((len(parts), LANES))
    judging = list(range(len(parts))) if judges is None else list(judges)
    products = Products([float(np.abs(part).max()) for part in parts])

    def measure(tile: slice, values: Float64Array) -> None:
        products.add(values)
        # A sort may put -0 and 0 in either order; the sum with 0 makes both 0.
        ordered = np.sort(values[judging], axis=0)
        middle = ordered[(len(judging) - 1) // 2] + ordered[len(judging) // 2]
        centre[tile] = middle * 0.5 + 0.0
        values -= centre[tile]
        values *= values
        for start in range(0, values.shape[1], LANES):
            rows = values[:, start : start + LANES]
            lanes[:, : rows.shape[1]] += rows

    _by_tiles(parts, measure)
    cosines = products.cosines()
    agreement = agreement_of(cosines, judging, len(centre))
    if usual is None:
        usual = sorted(weights[each] for each in judging)[(len(judging) - 1) // 2]
    counted = _counted(weights, usual, products.norms(), judging, agreement)
    pulls = _pulls([math.fsum(each) for each in lanes.tolist()], judging, agreement)
    faded = [weight * pull.fade for weight, pull in zip(counted, pulls, strict=True)]
    numbers = numbers_alike(cosines, faded, agreement, len(centre))
    faded = [weight / number for weight, number in zip(faded, numbers, strict=True)]
    total = math.fsum(faded)
    shares = [weight * pull.reach / total for weight, pull in zip(faded, pulls, strict=True)]

    def move(tile: slice, values: Float64Array) -> None:
        values -= centre[tile]
        step = np.zeros(values.shape[1])
        for share, difference in zip(shares, values, strict=True):
            difference *= share
            step += difference
        centre[tile] += step

    _by_tiles(parts, move)
    centre[np.abs(centre) < _NORMAL_MIN] = 0.0
    return centre.astype(np.float32)


def _by_tiles(parts: Sequence[Float32Array], work: Callable[[slice, Float64Array], None]) -> None:
    """Calls `work` for each tile with its place and its values, (members, elements of the tile)."""
    num_elements = len(parts[0])
    buffer = np.empty((len(parts), min(_TILE, num_elements)))
    for start in range(0, num_elements, _TILE):
        tile = slice(start, min(start + _TILE, num_elements))
        values = buffer[:, : tile.stop - tile.start]
        for row, part in zip(values, parts, strict=True):
            row[:] = part[tile]
        work(tile, values)


def _counted(
    weights: Sequence[int],
    usual: int,
    norms: Sequence[float],
    judging: Sequence[int],
    agreement: Agreement,
) -> list[float]:
    """The weight that counts of each member."""
    length = sorted(norms[each] for each in judging)[(len(judging) - 1) // 2]
    counted = []
    for index, (weight, norm) in enumerate(zip(weights, norms, strict=True)):
        cap = float(usual)
        if index in agreement.close:
            cap *= max(1.0, CLOSE_CAP_BY_LENGTH * norm / length)
        counted.append(0.0 if index in agreement.out else min(float(weight), cap))
    return counted


def _pulls(
    squared_distances: Sequence[float], judging: Sequence[int], agreement: Agreement
) -> list[_Pull]:
    """What each member's distance from the centre leaves of it."""
    squared_median = sorted(squared_distances[each] for each in judging)[len(judging) // 2]
    pulls = []
    for index, squared in enumerate(squared_distances):
        is_close = index in agreement.close
        radius, fade = (CLOSE_RADIUS, CLOSE_FADE) if is_close else (RADIUS, FADE)
        reach = math.sqrt(_at_most_one(radius * radius * squared_median, squared))
        pulls.append(_Pull(_at_most_one(fade * fade * squared_median, squared), reach))
    return pulls


def _at_most_one(limit: float, squared: float) -> float:
    return limit / squared if squared > limit else 1.0
