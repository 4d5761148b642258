"""AdamW of the inner steps (decoupled weight decay, arXiv 1711.05101), its moments as two flat
vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from gossamer.protocol.manifest import InnerConfig
from gossamer.trainer.inner_step.moments import (
    PIECE_ELEMENTS,
    MomentVector,
    Span,
    copy_moments,
    spans_of,
    zeros,
)
from gossamer.trainer.ipc.choices import MomentFormat


@dataclass
class _Batch:
    """Pieces of parameters with one weight decay that are updated together."""

    weight_decay: float
    parameters: list[Tensor] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    """(length,) of each span: the parameters' own memory."""
    starts: list[int] = field(default_factory=list)
    """First element of each span in its parameter."""
    num_elements: int = 0


class AdamW:
    """torch's fused AdamW over the parameters of a model; weight decay on matrices only.

    torch's function and not its `Optimizer` class: the class loads the compiler on first use,
    more than a second of start-up and some 100 MB, and the flat moments make a checkpoint one copy.
    """

    name = "adamw"

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        inner: InnerConfig,
        moment_format: MomentFormat = "fp32",
    ) -> None:
        """`parameters` in flat order."""
        self._inner = inner
        self.moment_format: MomentFormat = moment_format
        parameters = list(parameters)
        device = parameters[0].device
        pieces = spans_of([parameter.numel() for parameter in parameters], moment_format)
        self._spans = [span for of_one in pieces for span in of_one]
        self.first_moment = zeros(self._spans, moment_format, device)
        """First moments in flat order; the second ones are like them."""
        self.second_moment = zeros(self._spans, moment_format, device, is_signed=False)
        self._steps = torch.zeros((), device=device)
        self._turn = 0
        # fp32 moments need no room beside themselves: all parameters go at once.
        elements_max = None if moment_format == "fp32" else PIECE_ELEMENTS
        self._batches = _batches_of(parameters, pieces, inner.weight_decay, elements_max)

    @property
    def num_steps(self) -> int:
        """Updates that the moments have seen."""
        return int(self._steps.item())

    @property
    def vectors(self) -> dict[str, tuple[MomentVector, Sequence[Span]]]:
        """The moments by name, and the pieces of each."""
        return {
            "first_moment": (self.first_moment, self._spans),
            "second_moment": (self.second_moment, self._spans),
        }

    def restore(self, vectors: Mapping[str, MomentVector], num_steps: int) -> None:
        """Takes over vectors of the same names and lengths from a checkpoint."""
        for name, (own, spans) in self.vectors.items():
            copy_moments(vectors[name], own, spans)
        self._steps.fill_(num_steps)
        self._turn = num_steps

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update with the gradients in `.grad`, which every parameter must have."""
        for batch in self._batches:
            firsts = [self.first_moment.read(span) for span in batch.spans]
            seconds = [self.second_moment.read(span) for span in batch.spans]
            adamw(
                batch.parts,
                _gradients_of(batch),
                firsts,
                seconds,
                [],
                # The function counts a step for each of these.
                list(self._steps.expand(len(batch.spans)).clone().unbind()),
                fused=True,
                amsgrad=False,
                beta1=self._inner.beta1,
                beta2=self._inner.beta2,
                lr=learning_rate,
                weight_decay=batch.weight_decay,
                eps=self._inner.epsilon,
                maximize=False,
            )
            for span, first, second in zip(batch.spans, firsts, seconds, strict=True):
                self.first_moment.write(span, first, self._turn)
                self.second_moment.write(span, second, self._turn)
        self._steps += 1
        self._turn += 1


def _gradients_of(batch: _Batch) -> list[Tensor]:
    gradients = []
    for parameter, start, span in zip(batch.parameters, batch.starts, batch.spans, strict=True):
        assert parameter.grad is not None
        gradients.append(parameter.grad.view(-1)[start : start + span.length])
    return gradients


def _batches_of(
    parameters: Sequence[nn.Parameter],
    pieces: Sequence[Sequence[Span]],
    weight_decay: float,
    elements_max: int | None,
) -> list[_Batch]:
    """Matrices and other parameters apart, in flat order.

    Args:
        elements_max: elements of a batch, or None for all together.
    """
    batches: list[_Batch] = []
    for is_matrix in (True, False):
        batch = _Batch(weight_decay if is_matrix else 0.0)
        for parameter, spans in zip(parameters, pieces, strict=True):
            if (parameter.ndim > 1) is not is_matrix:
                continue
            for span in spans:
                if elements_max and batch.num_elements + span.length > elements_max and batch.spans:
                    batches.append(batch)
                    batch = _Batch(batch.weight_decay)
                start = span.start - spans[0].start
                batch.parameters.append(parameter)
                batch.spans.append(span)
                batch.starts.append(start)
                batch.parts.append(parameter.detach().view(-1)[start : start + span.length])
                batch.num_elements += span.length
        batches.append(batch)
    return [batch for batch in batches if batch.spans]


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Euclidean norm of all gradients in `.grad`: ()"""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def clip(parameters: Iterable[nn.Parameter], norm: float, clip_norm: float) -> None:
    """Scales gradients of norm `norm` down to `clip_norm`, if they are longer."""
    if norm > clip_norm:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(clip_norm / norm)
