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
- No tile depends on another one. So pieces of the parameters (`pieces_of`) can be stepped in any
  order, and at the same time.
- The rest is two fp32 operations for each element, each rounded by itself.
- The rate is computed without the machine's cosine (`shared_rate_at`), whose last bit may vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.codecs.sign_codec import Shape, SignCodec, SignUpdate
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.apply import Apply
from gossamer.protocol.state.exact_transform import Grid, chunks_of_step, grids_of, inverse_exact
from gossamer.protocol.state.outer_step import PARAMETER_MAX

MEAN_SCALE = 2**10
"""Steps of a mean of signs between 0 and 1: more than a ring has members."""

_COSINE_TERMS = 14
"""Terms of the cosine's series that are added up. For angles up to pi / 2 the first term that is
left out is below 1e-20."""


def shapes_of(grids: Sequence[Grid]) -> list[Shape]:
    """The shapes of the tensors' tiles, for `SignCodec`."""
    return [(grid.num_tiles, grid.tile_elements) for grid in grids]


def step_codec(model: ModelConfig, top_k: int, num_chunks: int) -> StepCodec:
    """The codec of a model's shared steps in so many chunks. ValueError if one would be empty."""
    chunks = chunks_of_step(grids_of(model), num_chunks)
    return StepCodec([SignCodec(shapes_of(grids), top_k) for grids in chunks])


def shared_step(
    grids: Sequence[Grid],
    parameters: NDArray[np.float32],
    updates: Sequence[SignUpdate],
    rate: float,
    weight_decay: float,
    out: NDArray[np.float32],
    apply: Apply = map,
) -> None:
    """The step that all peers take alike.

    `parameters` and `out` are (num_parameters,), and may be the same vector. Weight decay applies
    to matrices, as in `optimizer`. Without updates it is the only change.

    Args:
        grids: of all parameters or of those of a chunk, or the pieces of these. Only their elements
            are stepped.
        apply: calls a function for each grid, perhaps in threads.

    Raises:
        ValueError: more updates than a mean of signs has steps, or a place that is no coefficient.
    """
    if len(updates) > MEAN_SCALE:
        raise ValueError(f"{len(updates)} updates in one step; at most {MEAN_SCALE}")
    for update in updates:
        if len(update.places) and not (
            update.places[0] >= 0
            and update.places[-1] < len(parameters)
            and (np.diff(update.places) > 0).all()
        ):
            raise ValueError("places of an update that are not ascending or out of range")
    step, keep = np.float32(rate), np.float32(1.0 - rate * weight_decay)
    limit = np.float32(PARAMETER_MAX)  # a weight decay above 2 / rate makes parameters grow

    def take(grid: Grid) -> None:
        part = grid.tensor.range
        move = np.sign(inverse_exact(grid, _means(updates, part))).astype(np.float32)
        np.multiply(move, step, out=move)
        decayed = parameters[part] * keep if grid.tensor.is_matrix else parameters[part]
        np.subtract(decayed, move, out=move)
        np.clip(move, -limit, limit, out=out[part])

    for _ in apply(take, grids):
        pass


def _means(updates: Sequence[SignUpdate], part: slice) -> NDArray[np.int64]:
    """The means of the coefficients in a range, times `MEAN_SCALE`, rounded."""
    sums = np.zeros(part.stop - part.start, np.int16)
    counts = np.zeros_like(sums)
    for update in updates:
        first, last = np.searchsorted(update.places, (part.start, part.stop))
        places = update.places[first:last] - part.start
        # A place is in an update once, so an addition at an index array drops none.
        sums[places] += np.where(update.is_positive[first:last], np.int16(1), np.int16(-1))
        counts[places] += np.int16(1)
    means = np.zeros(len(sums), np.int64)
    (sent,) = counts.nonzero()  # few of them
    means[sent] = np.rint(MEAN_SCALE * sums[sent].astype(np.int64) / counts[sent])
    return means


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
