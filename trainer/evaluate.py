"""Loss of a model over held-out shards."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.device import Device, is_out_of_memory
from gossamer.trainer.text.data import Tokens, num_targets

log = logging.getLogger(__name__)

T = TypeVar("T")


def batches_of(
    shards: Iterable[Tokens], context: int, num_sequences: int, tokens_max: int
) -> Iterator[NDArray[np.int64]]:
    """All targets of the shards once, as (at most num_sequences, at most context + 1).

    The last sequence of a shard may be shorter and comes by itself. A batch without a target, as in
    the middle of a long prompt, is left out.

    Args:
        tokens_max: at most so many tokens are looked at.
    """
    return filter(num_targets, _all_batches_of(shards, context, num_sequences, tokens_max))


def _all_batches_of(
    shards: Iterable[Tokens], context: int, num_sequences: int, tokens_max: int
) -> Iterator[NDArray[np.int64]]:
    """As `batches_of`, and batches without a target as well."""
    left = tokens_max
    for tokens in shards:
        num_used = min(len(tokens) - 1, left)
        if num_used <= 0:
            continue
        left -= num_used
        whole = num_used // context
        for first in range(0, whole, num_sequences):
            starts = range(first * context, min(first + num_sequences, whole) * context, context)
            yield np.stack([tokens[start : start + context + 1] for start in starts]).astype(
                np.int64
            )
        if num_used % context:
            yield tokens[None, whole * context : num_used + 1].astype(np.int64)
        if left <= 0:
            return


def in_time(
    batches: Iterable[T],
    seconds_max: float,
    clock: Callable[[], float] = time.monotonic,
    on_batch: Callable[[], None] = lambda: None,
) -> Iterator[T]:
    """The first batch, and more until the seconds are over. `on_batch` is called before each."""
    started = clock()
    for batch in batches:
        on_batch()
        yield batch
        if clock() - started >= seconds_max:
            return


def evaluate(
    model: Decoder, device: Device, batches: Iterable[NDArray[np.int64]]
) -> tuple[float, int]:
    """(nats per token, tokens), or (NaN, 0) without a token to predict. A batch that is too large
    for the memory goes in parts.

    Raises:
        TrainerError: memory does not suffice for a single sequence.
    """
    loss_sum, num_tokens = 0.0, 0
    most: int | None = None
    """Sequences that fit, once memory has run out."""
    for batch in batches:
        first = len(batch) if most is None else min(most, len(batch))
        loss, at_once = _loss_of(model, device, batch, first)
        if at_once < first:
            most = at_once
        loss_sum += loss
        num_tokens += num_targets(batch)
    return loss_sum / num_tokens if num_tokens else math.nan, num_tokens


def _loss_of(
    model: Decoder, device: Device, batch: NDArray[np.int64], at_once: int
) -> tuple[float, int]:
    """(sum of the losses, sequences that went through the model at once)."""
    while True:
        try:
            return _loss_of_parts(model, device, batch, at_once), at_once
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Here the error is gone, and with it the frames that hold the failed pass.
        gc.collect()
        device.release_memory()
        if at_once == 1:
            raise TrainerError(
                f"{device.name} has too little memory to evaluate one sequence of "
                f"{batch.shape[1] - 1} tokens with {model.flat.numel()} parameters: "
                f"{device.memory_advice}"
            )
        log.warning("out of memory evaluating %d sequences at once, trying half", at_once)
        at_once //= 2


@torch.no_grad()
def _loss_of_parts(model: Decoder, device: Device, batch: NDArray[np.int64], at_once: int) -> float:
    loss = 0.0
    for part in torch.split(torch.from_numpy(batch), at_once):
        with device.autocast():
            loss += model.loss_sum(part.to(device.torch_device)).item()
    return loss
