"""The step that all peers of a `distro` run take alike.

DeMo, arXiv 2411.19870, algorithm 1, with signs in place of values as in DisTrO:

    c = mean of the signs, coefficient by coefficient, over the peers that sent it
    parameters = (1 - rate * weight_decay) * parameters - rate * sign(IDCT(c))

The step defines the run's state, and gives the same bits on any machine:

- The mean of signs is rounded to a multiple of 1 / `MEAN_SCALE`: a division of two small integers
  and a rounding to an integer, both fixed by IEEE 754.
- The inverse transform of those integers is exact (`exact_transform`), so its sign is that of an
  integer: a value near zero has the same sign everywhere. A value of exactly zero has the sign 0,
  and only weight decay changes its parameter.
- The rest is two fp32 operations for each element, each rounded by itself.
- The rate is computed without the machine's cosine (`shared_rate_at`), whose last bit may vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.codecs.sign_codec import Shape, SignUpdate
from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.state.exact_transform import Grid, inverse_exact

MEAN_SCALE = 2**10
"""Steps of a mean of signs between 0 and 1: more than a ring has members."""

_COSINE_TERMS = 14
"""Terms of the cosine's series that are added up. For angles up to pi / 2 the first term that is
left out is below 1e-20."""


def shapes_of(grids: Sequence[Grid]) -> list[Shape]:
    """The shapes of the tensors' tiles, for `SignCodec`."""
    return [(grid.num_tiles, grid.tile_elements) for grid in grids]


def shared_step(
    grids: Sequence[Grid],
    parameters: NDArray[np.float32],
    updates: Sequence[SignUpdate],
    rate: float,
    weight_decay: float,
    out: NDArray[np.float32],
) -> None:
    """The step that all peers take alike.

    `parameters` and `out` are (num_parameters,), and may be the same vector. Weight decay applies
    to matrices, as in `optimizer`. Without updates it is the only change.

    Raises:
        ValueError: more updates than a mean of signs has steps, or a place that is no coefficient.
    """
    if len(updates) > MEAN_SCALE:
        raise ValueError(f"{len(updates)} updates in one step; at most {MEAN_SCALE}")
    sums = np.zeros(len(parameters), np.int16)
    counts = np.zeros(len(parameters), np.int16)
    for update in updates:
        if len(update.places) and not (
            update.places[0] >= 0
            and update.places[-1] < len(parameters)
            and (np.diff(update.places) > 0).all()
        ):
            raise ValueError("places of an update that are not ascending or out of range")
        # A place is in an update once, so an addition at an index array drops none.
        sums[update.places] += np.where(update.is_positive, np.int16(1), np.int16(-1))
        counts[update.places] += np.int16(1)
    step, keep = np.float32(rate), np.float32(1.0 - rate * weight_decay)
    for grid in grids:
        part = grid.tensor.range
        means = MEAN_SCALE * sums[part].astype(np.int64) / np.maximum(counts[part], 1)
        move = np.sign(inverse_exact(grid, np.rint(means).astype(np.int64))).astype(np.float32)
        np.multiply(move, step, out=move)
        decayed = parameters[part] * keep if grid.tensor.is_matrix else parameters[part]
        np.subtract(decayed, move, out=out[part])


def shared_rate_at(step: int, inner: InnerConfig) -> float:
    """The rate of `schedule.learning_rate_at`, with the same bits on every machine."""
    if step < inner.warmup_steps:
        return inner.learning_rate * (step + 1) / inner.warmup_steps
    length = max(inner.total_steps - inner.warmup_steps, 1)
    progress = min((step - inner.warmup_steps) / length, 1.0)
    # cos(pi x) = -cos(pi (1 - x)) keeps the series short.
    near = min(progress, 1.0 - progress)
    cosine = _cosine(math.pi * near) if progress <= 0.5 else -_cosine(math.pi * near)
    shape = 0.5 * (1.0 + cosine)
    return inner.learning_rate * (inner.final_fraction + (1.0 - inner.final_fraction) * shape)


def _cosine(angle: float) -> float:
    """The cosine of an angle up to pi / 2, by its series."""
    term = total = 1.0
    for n in range(1, _COSINE_TERMS):
        term = -term * angle * angle / ((2 * n - 1) * (2 * n))
        total += term
    return total
