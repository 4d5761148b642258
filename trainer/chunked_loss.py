"""Cross-entropy without all logits at once.

The logits of a pass are its largest tensor: with 64 sequences of 1,024 tokens and 32,000 words 8
GB in fp32, and as much again for their gradient. Here they exist for some rows at a time, and so
do their gradients, which are taken at once: those of the rows and of the matrix are all that the
backward pass needs. Nothing is computed twice.

N rows (tokens), W width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NO_TARGET = -100
"""Stands for a target that does not count, as in torch."""

# The gradient of the head is a sum over the tokens of a chunk, which a frequent word could bring
# out of fp16's range of 65,504. Divided by this it has room, and a power of two costs no bits.
_FP16_ROOM = 16.0


def chunked_loss_sum(rows: Tensor, weight: Tensor, targets: Tensor, chunk_rows: int) -> Tensor:
    """Cross-entropy in nats, summed over the targets: ()

    Args:
        rows: (N, W), the input of the head.
        weight: (V, W), the head; under autocast the products are in its type, the rest is fp32.
        targets: (N,); `NO_TARGET` where a row has none.
        chunk_rows: rows whose logits exist at once.
    """
    loss: Tensor = _ChunkedLoss.apply(rows, weight, targets, chunk_rows)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, targets: Tensor, chunk_rows: int) -> Tensor:
        wants_gradient = any(ctx.needs_input_grad[:2])
        loss = torch.zeros((), device=rows.device)
        row_gradient = torch.empty_like(rows) if wants_gradient else None
        # A frozen head has none.
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, len(rows), chunk_rows):
            chunk = slice(start, start + chunk_rows)
            # A row without a target has loss 0 and gradient 0.
            counts = targets[chunk, None] != NO_TARGET
            wanted = targets[chunk, None].clamp(min=0)
            products = F.linear(rows[chunk], weight)
            weight = weight.to(products.dtype)  # once, if autocast would do it for each chunk
            logits = products.float()
            log_sum = logits.logsumexp(1, keepdim=True)
            loss += ((log_sum - logits.gather(1, wanted)) * counts).sum()
            if row_gradient is None:
                continue
            # d loss / d logits = softmax(logits) - one-hot(targets)
            log_sum.masked_fill_(~counts, math.inf)
            probabilities = torch.sub(logits, log_sum, out=logits).exp_()
            probabilities.scatter_add_(1, wanted, counts.to(log_sum.dtype).neg_())
            is_fp16 = products.dtype == torch.float16
            if is_fp16:
                probabilities /= _FP16_ROOM
            gradient = probabilities.to(products.dtype)
            del products, logits, probabilities
            row_gradient[chunk] = gradient @ weight
            if weight_gradient is not None:
                weight_gradient += gradient.T @ rows[chunk].to(gradient.dtype)
        for total in (row_gradient, weight_gradient):
            if total is not None and is_fp16:
                total *= _FP16_ROOM
        ctx.gradients = row_gradient, weight_gradient
        return loss

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        row_gradient, weight_gradient = ctx.gradients
        ctx.gradients = None
        if weight_gradient is not None:
            weight_gradient.mul_(scale)
        return row_gradient.mul_(scale), weight_gradient, None, None
