"""The average of a chunk's contributions that a minority of the members cannot carry away.

It is one step of CenteredClip (Karimireddy et al. 2020, arXiv 2012.10333; among peers: BTARD, arXiv
2106.11257) from a centre that no minority can move far, the coordinate-wise median m. Members that
disagree with the others (`agreement.dissenters`) have no weight. Each other member pulls the average
with its difference from the centre, and none pulls harder than `RADIUS` times the median member:

    d_i     = |x_i - m|, and r is their upper median
    fade_i  = min(1, (FADE r / d_i)^2)
    average = m + sum_i w_i fade_i min(1, RADIUS r / d_i) (x_i - m) / sum_i w_i fade_i

Honest peers of very different speed and text are within three of these radii, and their average is
the weighted mean. `fade` takes the weight from a member that is farther away than four, gradually: a
contribution a hundred times as far as the others has 1/625 of its weight.

Distances find what is far from the others, and disagreement what points elsewhere: the opposite of
the work, at the length of the work. What neither finds pulls by three radii at most. Centre and
radius are those of all members, also of those that are out. So this bound holds whatever the
contributions are. Where the contributions have too little in common to say who is out, `RADIUS` is
1 and `FADE` 2.

Further steps let a minority pull again, and its pulls add up: with 3 of 8 hostile every attack that
hides near the others' norm did more harm in three steps than in one (decision 62).

The weights are tokens capped at one and a half times the lower median. Three of eight equal members
that claim everything then have less than half of the weight. Where honest members are uneven they
can have more, if they agree with the others.

Each chunk is averaged by itself: its median and its distances follow from its own contributions,
so a member reduces a chunk when it has it, and nothing has to be agreed beforehand. A liar that
spends all its influence on one chunk gains nothing, since the bound holds for each chunk.

In a run with a probation (`protocol.standing`) only established members say where the centre is and
how long the radius: m and r are those of their contributions. A member on probation pulls with the
part of its weight that its rounds so far give it, with 1 for `RADIUS` and 2 for `FADE` too, so new
identities move an average by less than r, however many they are. A chunk without a contribution of an
established member, as in the first rounds of a run, is averaged as if there were no probation.
Only established members judge who is out, too.

All peers get the same bits. Everything is a fixed sequence of IEEE 754 operations in float64, in
ascending position, far from that format's subnormal numbers. The result is rounded to fp32 once,
with 0 for what would be subnormal in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gossamer.protocol.codecs.agreement import Products, dissenters
from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.inner_products import LANES
from gossamer.protocol.standing import Standing
from gossamer.protocol.token_caps import lower_median

WEIGHT_CAP = 3, 2
"""Cap of a member's weight as a fraction of the lower median of the tokens of its ring. Three of
eight equal members that claim everything have 9 of 19 parts. With 2 they would have 6 of 11."""

RADIUS = 3.0
"""The farthest that a member pulls, as a multiple of the median distance. Of honest members only one
that did four times the work of the others was farther away in a measured run."""

FADE = 4.0
"""Distance, as a multiple of the median one, from which on a member loses weight."""

NARROW_RADIUS, NARROW_FADE = 1.0, 2.0
"""The same of members on probation, who may be any number, and of all where none can be out."""

_TILE = 8 * LANES
"""Elements that are looked at together: with those of a ring they stay in a processor's cache."""

_NORMAL_MIN = 2.0**-126
"""The smallest normal fp32."""

Float64Array = npt.NDArray[np.float64]


def robust_weights(tokens: Sequence[int], standing: Standing | None = None) -> list[int]:
    """The weights of a ring's members in its robust averages, by ring position.

    They are 1 at least. With a standing, which some member of the ring has in full, they are 0 for
    a member that no round has credited yet, and grow with its rounds.
    """
    if standing is None:
        return _capped(tokens, tokens)
    full = [standing.is_established(position) for position in range(len(tokens))]
    established = [each for each, is_full in zip(tokens, full, strict=True) if is_full]
    capped = _capped(tokens, established)
    return [each * rounds for each, rounds in zip(capped, standing.rounds, strict=True)]


def _capped(tokens: Sequence[int], of_judges: Sequence[int]) -> list[int]:
    times, of = WEIGHT_CAP
    cap = max(1, lower_median(of_judges) * times // of)
    return [min(max(1, each), cap) for each in tokens]


def robust_average(
    parts: Sequence[Float32Array], weights: Sequence[int], judges: Sequence[int] | None = None
) -> Float32Array:
    """The average of a chunk's contributions, (num_elements,).

    Args:
        parts: (num_elements,) each, of magnitudes up to 2^100, in ascending position; at least one.
        weights: of each part, at least 1 (`robust_weights`).
        judges: indices of the parts whose median and distances count, at least one; None: all.
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
    out = dissenters(products.cosines(), judging, len(centre))
    shares = _shares([math.fsum(each) for each in lanes.tolist()], weights, judging, out)

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


def _shares(
    squared_distances: Sequence[float],
    weights: Sequence[int],
    judging: Sequence[int],
    out: set[int] | None,
) -> list[float]:
    """The factor of each member's difference from the centre."""
    squared_median = sorted(squared_distances[each] for each in judging)[len(judging) // 2]
    wide: set[int] = set() if out is None else set(judging)
    shares, total = [], 0.0
    for index, (squared, weight) in enumerate(zip(squared_distances, weights, strict=True)):
        radius, fade = (RADIUS, FADE) if index in wide else (NARROW_RADIUS, NARROW_FADE)
        counted = 0 if out and index in out else weight
        faded = counted * _at_most_one(fade * fade * squared_median, squared)
        total += faded
        shares.append(faded * math.sqrt(_at_most_one(radius * radius * squared_median, squared)))
    return [share / total for share in shares]


def _at_most_one(limit: float, squared: float) -> float:
    return limit / squared if squared > limit else 1.0
