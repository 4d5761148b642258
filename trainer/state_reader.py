"""Losses and texts of a state between rounds, as a trainer tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.trainer import evaluate
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.device import Device
from gossamer.trainer.text.data import DataError, load_shard
from gossamer.trainer.text_bytes import TextBytes

if TYPE_CHECKING:
    from gossamer.trainer.generation.samples import Sampler


class StateReader:
    """Computes with given parameters in a trainer's model. Afterwards it has its own ones again."""

    def __init__(
        self,
        decoder: Decoder,
        device: Device,
        config: TrainerConfig,
        text_bytes: TextBytes,
        on_progress: Callable[[], None],
    ) -> None:
        """`on_progress` is called after every piece of longer work."""
        self._decoder = decoder
        self._text_bytes = text_bytes
        self._device = device
        self._model = config.model
        self._token_bytes = config.token_bytes
        self._on_progress = on_progress
        self._sampler: Sampler | None = None

    def loss(
        self,
        parameters: NDArray[np.float32],
        paths: Sequence[str],
        micro_batch: int,
        tokens_max: int,
        seconds_max: float,
    ) -> messages.Evaluated:
        """Loss over shards; NaN without a token to predict in them.

        Raises:
            DataError: a shard that cannot be used.
            TrainerError: memory does not suffice for a single sequence.
        """
        shards = (load_shard(path, self._token_bytes, self._model.vocabulary) for path in paths)
        batches = evaluate.batches_of(shards, self._model.context, micro_batch, tokens_max)
        num_bytes = 0

        def counted() -> Iterator[NDArray[np.int64]]:
            nonlocal num_bytes
            for batch in evaluate.in_time(batches, seconds_max, on_batch=self._on_progress):
                num_bytes += self._text_bytes.of_targets(batch)
                yield batch

        with self._with(parameters):
            loss, tokens = evaluate.evaluate(self._decoder, self._device, counted())
        return messages.Evaluated(loss=loss, tokens=tokens, text_bytes=num_bytes)

    def losses(
        self, parameters: NDArray[np.float32], sequences: Sequence[tuple[str, int]]
    ) -> tuple[float, ...]:
        """Losses on single sequences, each as (file of a shard, first token); NaN of one without a
        token to predict.

        Raises:
            DataError: a shard that cannot be used, or that has no such sequence.
            TrainerError: memory does not suffice for a single sequence.
        """
        batches = [self._sequence(*each) for each in sequences]
        losses: list[float] = []
        with self._with(parameters):
            for batch in batches:
                self._on_progress()
                losses.append(evaluate.evaluate(self._decoder, self._device, [batch])[0])
        return tuple(losses)

    def texts(self, parameters: NDArray[np.float32], task: messages.Sample) -> messages.Sampled:
        """Continuations of prompts."""
        if self._sampler is None:
            # Here: most trainers are never asked for a text, and need no tokenizer.
            from gossamer.trainer.generation.samples import Sampler

            self._sampler = Sampler(self._model, self._decoder, self._device, self._on_progress)
        with self._with(parameters):
            return self._sampler.sample(task)

    def _sequence(self, path: str, start: int) -> NDArray[np.int64]:
        """The sequence of a shard from token `start` on: (1, context + 1)."""
        context = self._model.context
        tokens = load_shard(path, self._token_bytes, self._model.vocabulary)
        sequence = tokens[start : start + context + 1]
        if len(sequence) <= context:
            raise DataError(f"shard {path} has no sequence at token {start}")
        return sequence[None].astype(np.int64)

    @contextmanager
    def _with(self, parameters: NDArray[np.float32]) -> Iterator[None]:
        own = self._device.copy_of(self._decoder.flat)
        try:
            with torch.no_grad():
                self._decoder.flat.copy_(torch.from_numpy(parameters))
            yield
        finally:
            with torch.no_grad():
                self._decoder.flat.copy_(own)
