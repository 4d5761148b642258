"""AdamW of the inner steps (decoupled weight decay, arXiv 1711.05101), its moments as two flat
vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from gossamer.protocol.manifest import InnerConfig


@dataclass
class _Group:
    """Parameters with one weight decay, and their places in the flat moments."""

    weight_decay: float
    parameters: list[Tensor] = field(default_factory=list)
    first_moments: list[Tensor] = field(default_factory=list)
    second_moments: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)


class AdamW:
    """torch's fused AdamW over the parameters of a model; weight decay on matrices only.

    torch's function and not its `Optimizer` class: the class loads the compiler on first use,
    more than a second of start-up and some 100 MB, and the flat moments make a checkpoint one copy.
    """

    name = "adamw"

    def __init__(self, parameters: Iterable[nn.Parameter], inner: InnerConfig) -> None:
        """`parameters` in flat order."""
        self._inner = inner
        parameters = list(parameters)
        device = parameters[0].device
        num_elements = sum(parameter.numel() for parameter in parameters)
        self.first_moment = torch.zeros(num_elements, device=device)
        """First moments, (num_elements,) in flat order; the second ones are like them."""
        self.second_moment = torch.zeros(num_elements, device=device)
        self._steps = torch.zeros(len(parameters), device=device)
        self._matrices = _Group(inner.weight_decay)
        self._gains = _Group(0.0)
        start = 0
        for index, parameter in enumerate(parameters):
            part = slice(start, start + parameter.numel())
            group = self._matrices if parameter.ndim > 1 else self._gains
            group.parameters.append(parameter)
            group.first_moments.append(self.first_moment[part].view(parameter.shape))
            group.second_moments.append(self.second_moment[part].view(parameter.shape))
            group.steps.append(self._steps[index])
            start += parameter.numel()

    @property
    def num_steps(self) -> int:
        """Updates that the moments have seen."""
        return int(self._steps[0].item())

    @property
    def vectors(self) -> dict[str, Tensor]:
        """The moments by name, each (num_elements,)."""
        return {"first_moment": self.first_moment, "second_moment": self.second_moment}

    def restore(self, vectors: Mapping[str, Tensor], num_steps: int) -> None:
        """Takes over vectors of the same names and lengths from a checkpoint."""
        self.first_moment.copy_(vectors["first_moment"])
        self.second_moment.copy_(vectors["second_moment"])
        self._steps.fill_(num_steps)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update with the gradients in `.grad`, which every parameter must have."""
        for group in (self._matrices, self._gains):
            gradients = [p.grad for p in group.parameters if p.grad is not None]
            assert len(gradients) == len(group.parameters)
            adamw(
                group.parameters,
                gradients,
                group.first_moments,
                group.second_moments,
                [],
                group.steps,
                fused=True,
                amsgrad=False,
                beta1=self._inner.beta1,
                beta2=self._inner.beta2,
                lr=learning_rate,
                weight_decay=group.weight_decay,
                eps=self._inner.epsilon,
                maximize=False,
            )


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
