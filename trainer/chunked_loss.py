"""Cross-entropy without all logits at once.

The logits of a pass are its largest tensor: with 64 sequences of 1,024 tokens and 32,000 words 8
GB in fp32, and as much again for their gradient. Here they exist for some rows at a time, and so
do their gradients, which are taken at once: those of the rows and of the matrix are all that the
backward pass needs. Nothing is computed twice.

N rows (tokens), W width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NO_TARGET = -100
"""Stands for a target that does not count, as in torch."""

_FP16_ROWS = 11
"""Logarithm of 2,048: as many rows of values up to 32 may all pull one way in fp16, whose range is
65,504."""

_FP16_ROOM_MIN = -4
"""Logarithm of the least room: a gradient is then at most 16."""


def fp16_room(num_rows: int) -> float:
    """Returns by how much gradients of a chunk are divided in fp16, a power of two.

    The gradient of the head is a sum over the rows of a chunk, which a frequent word could bring
    out of the range. A word that is no target has its probability as its gradient, which in a large
    vocabulary is near the smallest number (6e-8). The larger the vocabulary, the fewer rows has a
    chunk: so there is room for both.
    """
    return 2.0 ** max((num_rows - 1).bit_length() - _FP16_ROWS, _FP16_ROOM_MIN)


LossOfProducts = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(products (n, V), targets (n,)) -> (loss in nats, summed: (); its gradient by the products, in
their type: (n, V); in fp16 divided by `fp16_room(n)`)."""


def chunked_loss_sum(
    rows: Tensor,
    weight: Tensor,
    targets: Tensor,
    chunk_rows: int,
    loss_of: LossOfProducts | None = None,
) -> Tensor:
    """Cross-entropy in nats, summed over the targets: ()

    Args:
        rows: (N, W), the input of the head.
        weight: (V, W), the head; under autocast the products are in its type, the rest is fp32.
        targets: (N,); `NO_TARGET` where a row has none.
        chunk_rows: rows whose logits exist at once.
        loss_of: `fused_loss`, compiled for chunks of `chunk_rows`. None takes no compiled function.
    """
    loss: Tensor = _ChunkedLoss.apply(rows, weight, targets, chunk_rows, loss_of)  # type: ignore[no-untyped-call]
    return loss


def _loss_and_logits(products: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss: (), logits in fp32: (n, V), logarithm of the sum of their exponentials: (n, 1)"""
    # A row without a target has loss 0 and gradient 0.
    counts = targets[:, None] != NO_TARGET
    wanted = targets[:, None].clamp(min=0)
    logits = products.float()
    log_sum = logits.logsumexp(1, keepdim=True)
    return ((log_sum - logits.gather(1, wanted)) * counts).sum(), logits, log_sum


def _loss_in_place(products: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """As `LossOfProducts`, with one vector of fp32 logits."""
    loss, logits, log_sum = _loss_and_logits(products, targets)
    counts = targets[:, None] != NO_TARGET
    # d loss / d logits = softmax(logits) - one-hot(targets)
    log_sum.masked_fill_(~counts, math.inf)
    probabilities = torch.sub(logits, log_sum, out=logits).exp_()
    ones = counts.to(log_sum.dtype)
    probabilities.scatter_add_(1, targets[:, None].clamp(min=0), ones.neg_())
    if products.dtype == torch.float16:
        probabilities /= fp16_room(len(products))
    return loss, probabilities.to(products.dtype)


def fused_loss(products: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """As `LossOfProducts`, for a compiler: each line of it is a tensor of its own otherwise."""
    counts = targets[:, None] != NO_TARGET
    words = torch.arange(products.shape[1], device=products.device)
    logits = products.float()
    log_sum = logits.logsumexp(1, keepdim=True)
    is_wanted = words[None, :] == targets[:, None]
    of_targets = products.gather(1, targets[:, None].clamp(min=0)).float()
    loss = ((log_sum - of_targets) * counts).sum()
    gradient = torch.where(counts, (logits - log_sum).exp(), 0.0) - is_wanted.float()
    if products.dtype == torch.float16:
        gradient = gradient / fp16_room(products.shape[0])
    return loss, gradient.to(products.dtype)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk_rows: int,
        compiled: LossOfProducts | None,
    ) -> Tensor:
        wants_gradient = any(ctx.needs_input_grad[:2])
        loss = torch.zeros((), device=rows.device)
        row_gradient = torch.empty_like(rows) if wants_gradient else None
        # A frozen head has none.
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, len(rows), chunk_rows):
            chunk = slice(start, start + chunk_rows)
            products = F.linear(rows[chunk], weight)
            weight = weight.to(products.dtype)  # once, if autocast would do it for each chunk
            room = fp16_room(len(products)) if products.dtype == torch.float16 else 1.0
            if row_gradient is None:
                loss += _loss_and_logits(products, targets[chunk])[0]
                continue
            is_whole = compiled is not None and len(products) == chunk_rows
            loss_of = compiled if compiled is not None and is_whole else _loss_in_place
            chunk_loss, gradient = loss_of(products, targets[chunk])
            del products
            loss += chunk_loss
            row_gradient[chunk] = gradient @ weight
            if room != 1.0:
                row_gradient[chunk] *= room
            if weight_gradient is not None:
                weight_gradient.add_(gradient.T @ rows[chunk].to(gradient.dtype), alpha=room)
        ctx.gradients = row_gradient, weight_gradient
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        row_gradient, weight_gradient = ctx.gradients
        ctx.gradients = None
        if weight_gradient is not None:
            weight_gradient.mul_(scale)
        return row_gradient.mul_(scale), weight_gradient, None, None, None
