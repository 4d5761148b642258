"""Loss of a model over held-out shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.trainer.device import Device
from gossamer.trainer.model import Decoder
from gossamer.trainer.text.data import DataError, Tokens

T = TypeVar("T")


def batches_of(
    shards: Iterable[Tokens], context: int, num_sequences: int, tokens_max: int
) -> Iterator[NDArray[np.int64]]:
    """All targets of the shards once, up to `tokens_max`, as (at most num_sequences, at most
    context + 1).

    The last sequence of a shard may be shorter and comes by itself.
    """
    left = tokens_max
    for tokens in shards:
        num_targets = min(len(tokens) - 1, left)
        if num_targets <= 0:
            continue
        left -= num_targets
        whole = num_targets // context
        for first in range(0, whole, num_sequences):
            starts = range(first * context, min(first + num_sequences, whole) * context, context)
            yield np.stack([tokens[start : start + context + 1] for start in starts]).astype(
                np.int64
            )
        if num_targets % context:
            yield tokens[None, whole * context : num_targets + 1].astype(np.int64)
        if left <= 0:
            return


def in_time(
    batches: Iterable[T], seconds_max: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[T]:
    """The first batch, and more until the seconds are over."""
    started = clock()
    for batch in batches:
        yield batch
        if clock() - started >= seconds_max:
            return


@torch.no_grad()
def evaluate(
    model: Decoder, device: Device, batches: Iterable[NDArray[np.int64]]
) -> tuple[float, int]:
    """(nats per token, tokens).

    Raises:
        DataError: not a single token to predict.
    """
    loss_sum, num_tokens = 0.0, 0
    for batch in batches:
        with device.autocast():
            loss = model.loss_sum(torch.from_numpy(batch).to(device.torch_device))
        loss_sum += loss.item()
        num_tokens += batch.shape[0] * (batch.shape[1] - 1)
    if num_tokens == 0:
        raise DataError("the held-out shards have no token to predict")
    return loss_sum / num_tokens, num_tokens
