"""Muon for the matrices of a model's layers, AdamW for all else (MuLoCo, arXiv 2505.23725).

A matrix with gradient g and momentum m takes a step of Muon (Jordan and others 2024), in the form
of Moonlight (arXiv 2502.16982, section 2.2):

    m = 0.95 m + 0.05 g
    o = orthogonal(0.05 g + 0.95 m)                     Nesterov; five Newton-Schulz iterations
    W = W - rate * (decay * W + 0.2 sqrt(longer side) * o)

The singular values of o are near 1, so its elements have a root mean square of about
1 / sqrt(longer side), and an update has one of 0.2 times the rate. An update of AdamW has about the
same: so both parts share one rate and one decay. Embedding, head, gains and biases stay AdamW's, as
published.

A test holds this module to `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, which is not used:
its iterations are in bf16 also where that is emulated, it takes one matrix after the other, and its
class loads the compiler (see `AdamW`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossamer.protocol.manifest import InnerConfig
from gossamer.trainer.inner_step.moments import MomentVector, Span, copy_moments, spans_of, zeros
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.ipc.choices import MomentFormat
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.accelerator import has_own_memory

MOMENTUM = 0.95
"""Decay of the gradient's mean, as published."""

_UPDATE_RMS = 0.2
"""Root mean square of AdamW's updates at a rate of 1 (arXiv 2502.16982, section 2.2)."""

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of a step a X + b (X X') X + c (X X')^2 X: five of them bring singular values to 0.7 to 1.2,
small ones faster than the coefficients that converge (Jordan and others 2024)."""
_ITERATIONS = 5

_NORM_MIN = 1e-7
"""Least norm that a matrix is divided by. A gradient of zeros stays zeros."""

_BATCH_ELEMENTS_MAX = 2**22
"""Elements of matrices that go through the iterations together: the work takes some 14 bytes for
each, 60 MB, less than the pass before it took. A larger matrix goes alone."""

_CARD_BATCH_ELEMENTS_MAX = 2**24
"""The same for a device with memory of its own: 235 MB. An H200's update of `150m` took less than
half the time of that with 2^22 elements, and no less with more (docs/benchmarks/cards.md)."""


@dataclass(frozen=True)
class _Batch:
    """Matrices whose shorter and longer sides are equal."""

    parameters: list[Tensor]
    spans: list[list[Span]]
    """Pieces of each parameter's momentum."""


class Muon:
    """Muon and AdamW over the parameters of a model, with the methods of `AdamW`."""

    name = "muon"

    def __init__(
        self,
        decoder: Decoder,
        inner: InnerConfig,
        dtype: torch.dtype,
        moment_format: MomentFormat = "fp32",
    ) -> None:
        """`dtype`: type of the products of the iterations. bf16 is as good as fp32 (Jordan and
        others 2024)."""
        self._inner, self._dtype = inner, dtype
        hidden = [p for p in decoder.layers.parameters() if p.ndim > 1]
        of_muon = set(map(id, hidden))
        others = (p for p in decoder.parameters() if id(p) not in of_muon)
        self._others = AdamW(others, inner, moment_format)
        self.moment_format: MomentFormat = moment_format
        pieces = spans_of([parameter.numel() for parameter in hidden], moment_format)
        self._spans = [span for of_one in pieces for span in of_one]
        self.momentum = zeros(self._spans, moment_format, hidden[0].device)
        """Momenta of the matrices, in flat order."""
        elements_max = _BATCH_ELEMENTS_MAX
        if has_own_memory(decoder.flat.device):
            elements_max = _CARD_BATCH_ELEMENTS_MAX
        self._batches = _batches_of(hidden, pieces, elements_max)
        self._turn = 0

    @property
    def num_steps(self) -> int:
        """Updates that the momenta have seen."""
        return self._others.num_steps

    @property
    def vectors(self) -> dict[str, tuple[MomentVector, Sequence[Span]]]:
        """The momenta of the matrices, and the moments of the other parameters."""
        return {"momentum": (self.momentum, self._spans), **self._others.vectors}

    def restore(self, vectors: Mapping[str, MomentVector], num_steps: int) -> None:
        """Takes over vectors of the same names and lengths from a checkpoint."""
        copy_moments(vectors["momentum"], self.momentum, self._spans)
        self._turn = num_steps
        self._others.restore(vectors, num_steps)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update with the gradients in `.grad`, which every parameter must have."""
        self._others.step(learning_rate)
        kept = 1.0 - learning_rate * self._inner.weight_decay
        for batch in self._batches:
            gradients = [p.grad for p in batch.parameters if p.grad is not None]
            assert len(gradients) == len(batch.parameters)
            ahead = self._look_ahead(batch, gradients)
            wide = torch.stack([_wide(each) for each in ahead])
            del ahead
            rate = learning_rate * _UPDATE_RMS * math.sqrt(wide.shape[2])
            torch._foreach_mul_(batch.parameters, kept)
            updates = orthogonal(wide, self._dtype)
            for parameter, update in zip(batch.parameters, updates.unbind(), strict=True):
                _wide(parameter).add_(update, alpha=-rate)
        self._turn += 1

    def _look_ahead(self, batch: _Batch, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Adds the gradients to the momenta; returns what the iterations begin with, one matrix for
        each."""
        found = []
        for spans, gradient in zip(batch.spans, gradients, strict=True):
            ahead = torch.empty_like(gradient)
            for span in spans:
                part = slice(span.start - spans[0].start, span.stop - spans[0].start)
                new, out = gradient.view(-1)[part], ahead.view(-1)[part]
                momentum = self.momentum.read(span).lerp_(new, 1.0 - MOMENTUM)
                torch.lerp(new, momentum, MOMENTUM, out=out)
                self.momentum.write(span, momentum, self._turn)
            found.append(ahead)
        return found


def optimizer_for(
    decoder: Decoder,
    inner: InnerConfig,
    dtype: torch.dtype,
    moment_format: MomentFormat = "fp32",
) -> AdamW | Muon:
    """The optimiser that a run's manifest names.

    Args:
        dtype: type of products whose rounding errors do no harm, `Device.coarse_dtype`.
    """
    if inner.uses_muon:
        return Muon(decoder, inner, dtype, moment_format)
    return AdamW(decoder.parameters(), inner, moment_format)


def orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """(n, R, C) with R <= C -> the same shape in `dtype`: matrices with the same singular vectors,
    whose singular values are near 1. `matrices` is overwritten."""
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True).clamp_(min=_NORM_MIN)
    x = matrices.div_(norms).to(dtype)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.mT  # (n, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _wide(matrix: Tensor) -> Tensor:
    """A view of a matrix with at least as many columns as rows."""
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


def _batches_of(
    matrices: Sequence[nn.Parameter], pieces: Sequence[list[Span]], elements_max: int
) -> list[_Batch]:
    """`pieces`: of each matrix."""
    batches: list[_Batch] = []
    open_batches: dict[tuple[int, int], _Batch] = {}
    for matrix, spans in zip(matrices, pieces, strict=True):
        rows, columns = sorted(matrix.shape)
        batch = open_batches.get((rows, columns))
        if batch is None or (len(batch.spans) + 1) * matrix.numel() > elements_max:
            batch = open_batches[rows, columns] = _Batch([], [])
            batches.append(batch)
        batch.parameters.append(matrix)
        batch.spans.append(spans)
    return batches
