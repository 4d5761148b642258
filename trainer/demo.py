"""DeMo and DisTrO: peers share every step, and of it only the strongest frequencies.

A peer's part (DeMo, arXiv 2411.19870, algorithm 1; DisTrO's preliminary report), per step:

    m = beta * m + gradient
    q = the k largest coefficients, by magnitude, of each chunk of DCT(m)
    m -= IDCT(q)                      once the swarm has taken them
    send the places of q and their signs

and with them what every peer does to the parameters that all share:

    c = mean of the signs, coefficient by coefficient, over the peers that sent it
    theta = (1 - rate * weight_decay) * theta - rate * sign(IDCT(c))

With *lookahead* (as DisTrO was deployed) the gradient is taken where the own momentum would lead,
at `theta - last_rate * sign(m)`, instead of at theta.

What is taken out of the momentum is what the peer found there, not the sign that it sent, as in
DeMo. A part that comes too late is not taken, and stays in its sender's momentum.

`Momentum` is one peer's own, in torch, and nobody else needs its bits. `shared_step` defines the
run's state, and gives the same bits on any machine:

- The mean of signs is rounded to a multiple of 1 / `MEAN_SCALE`: a division of two small integers
  and a rounding to an integer, both fixed by IEEE 754.
- The inverse transform of those integers is exact (`trainer.dct`), so its sign is that of an
  integer: nothing near zero could come out differently, and what is exactly zero has the sign 0,
  which leaves the parameter to weight decay alone.
- The rest is two fp32 operations for each element, each rounded by itself.
- The rate is made without the machine's cosine (`shared_rate_at`), whose last bit may vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.protocol.manifest import InnerConfig
from gossamer.trainer.dct import ModelDct

MOMENTUM_DECAY = 0.999
"""DeMo's beta."""

TOP_K = 32
"""Coefficients of a chunk that are sent; DeMo's k."""

MEAN_SCALE = 2**10
"""Steps of a mean of signs between 0 and 1: more than a ring has members."""

_COSINE_TERMS = 14
"""Of the cosine's series up to pi / 2: the first one left out is below 1e-20."""


@dataclass(frozen=True)
class SignUpdate:
    """One peer's part of a step: of each chunk its strongest coefficients."""

    places: NDArray[np.int64]
    """(num_sent,) numbers of coefficients, ascending."""
    is_positive: NDArray[np.bool_]
    """(num_sent,)"""


class Momentum:
    """One peer's decoupled momentum. Vectors are (num_parameters,) on one device."""

    def __init__(
        self,
        dct: ModelDct,
        device: torch.device | None = None,
        *,
        top_k: int = TOP_K,
        decay: float = MOMENTUM_DECAY,
    ) -> None:
        self._dct, self._top_k, self._decay = dct, top_k, decay
        self.values = torch.zeros(dct.num_parameters, device=device)
        self._offered: torch.Tensor | None = None

    @torch.no_grad()
    def add(self, gradient: torch.Tensor) -> None:
        """One more gradient, (num_parameters,)."""
        self.values.mul_(self._decay).add_(gradient)

    @torch.no_grad()
    def offer(self) -> SignUpdate:
        """The strongest coefficients as they are now; they stay in until `taken`."""
        coefficients = self._dct.forward(self.values)
        kept = torch.zeros_like(coefficients)
        is_kept = torch.zeros_like(coefficients, dtype=torch.bool)
        for grid in self._dct.grids:
            part = grid.tensor.range
            chunks = coefficients[part].view(-1, grid.chunk_elements)
            top = chunks.abs().topk(min(self._top_k, grid.chunk_elements), dim=1).indices
            kept[part].view(-1, grid.chunk_elements).scatter_(1, top, chunks.gather(1, top))
            is_kept[part].view(-1, grid.chunk_elements).scatter_(1, top, True)
        self._offered = kept
        places = np.flatnonzero(is_kept.cpu().numpy())
        return SignUpdate(places, kept.cpu().numpy()[places] >= 0)

    @torch.no_grad()
    def taken(self) -> None:
        """The swarm took what was offered last: it leaves the momentum."""
        if self._offered is not None:
            self.values.sub_(self._dct.inverse(self._offered))
            self._offered = None

    @torch.no_grad()
    def lookahead(self, theta: torch.Tensor, last_rate: float) -> torch.Tensor:
        """Where to take the next gradient."""
        return theta - last_rate * self.values.sign()


def shared_step(
    dct: ModelDct,
    theta: NDArray[np.float32],
    updates: Sequence[SignUpdate],
    rate: float,
    weight_decay: float,
    out: NDArray[np.float32],
) -> None:
    """The step that all peers take alike; `out` may be `theta`, both are (num_parameters,).

    Weight decay is for matrices, as in `trainer.optimizer`. Without updates nothing but it happens.

    Raises:
        ValueError: more updates than a mean of signs has steps, or a place that is no coefficient.
    """
    if len(updates) > MEAN_SCALE:
        raise ValueError(f"{len(updates)} updates in one step; at most {MEAN_SCALE}")
    sums = np.zeros(dct.num_parameters, np.int64)
    counts = np.zeros(dct.num_parameters, np.int64)
    for update in updates:
        if len(update.places) and not (
            update.places[0] >= 0
            and update.places[-1] < dct.num_parameters
            and (np.diff(update.places) > 0).all()
        ):
            raise ValueError("places of an update that are not ascending or out of range")
        sums[update.places] += np.where(update.is_positive, 1, -1)
        counts[update.places] += 1
    means = np.rint(MEAN_SCALE * sums / np.maximum(counts, 1)).astype(np.int64)
    signs = np.sign(dct.inverse_exact(means)).astype(np.float32)
    step, keep = np.float32(rate), np.float32(1.0 - rate * weight_decay)
    np.multiply(signs, step, out=signs)
    for grid in dct.grids:
        part = grid.tensor.range
        decayed = theta[part] * keep if grid.tensor.is_matrix else theta[part]
        np.subtract(decayed, signs[part], out=out[part])


def shared_rate_at(step: int, inner: InnerConfig) -> float:
    """`schedule.learning_rate_at` with the same bits on every machine: sums and products only."""
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
    """The series, for angles up to pi / 2."""
    term = total = 1.0
    for n in range(1, _COSINE_TERMS):
        term = -term * angle * angle / ((2 * n - 1) * (2 * n))
        total += term
    return total
