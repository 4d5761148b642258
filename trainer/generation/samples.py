"""Samples of the model for its owner: fixed prompts, continued by the committed state.

The trainer does it between rounds with the model that it has, so that it takes no memory besides.
The time is bounded; a text is shorter where it is up. What goes wrong costs the samples and nothing
else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.generation.continuation import (
    GenerationError,
    TextModel,
    Vocabulary,
    load_vocabulary,
    refusal_of,
)
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.generation import GenerateText, Text
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.device import Device


class Sampler:
    """Continues prompts with the decoder of a trainer."""

    def __init__(
        self,
        model: ModelConfig,
        decoder: Decoder,
        device: Device,
        on_progress: Callable[[], None],
    ) -> None:
        """`on_progress` is called for each token."""
        self._model = model
        self._decoder = decoder
        self._device = device
        self._on_progress = on_progress
        self._vocabulary: Vocabulary | None = None

    def sample(self, task: messages.Sample) -> messages.Sampled:
        """Returns a continuation of each prompt. An empty one: its time was up at once."""
        ends = time.monotonic() + task.seconds_max
        try:
            text_model = TextModel(self._decoder, self._device, self._load(task))
            texts = []
            for place, prompt in enumerate(task.prompts):
                left = ends - time.monotonic()
                share = left / (len(task.prompts) - place)
                texts.append(self._continued(text_model, task, prompt, share))
        except Exception as error:
            return messages.Sampled(problem=refusal_of(error).problem)
        return messages.Sampled(texts=tuple(texts))

    def _continued(
        self, model: TextModel, task: messages.Sample, prompt: str, seconds: float
    ) -> str:
        ends = time.monotonic() + seconds

        def is_stopped() -> bool:
            self._on_progress()
            return time.monotonic() >= ends

        request = GenerateText(
            prompt=prompt, tokens=task.tokens, temperature=task.temperature, seed=task.seed
        )
        pieces = model.answer(request, is_stopped)
        return "".join(piece.text for piece in pieces if isinstance(piece, Text))

    def _load(self, task: messages.Sample) -> Vocabulary:
        if self._vocabulary is None:
            block = _read(task.tokenizer_path) if task.tokenizer_path else b""
            found = load_vocabulary(self._model, task.tokenizer, block)
            # The trainer's model has the tables of its own context, and no longer ones.
            context = min(found.context, self._model.context)
            self._vocabulary = replace(found, context=context)
        return self._vocabulary


def _read(path: str) -> bytes:
    """The file of a tokenizer.

    Raises:
        GenerationError: it cannot be read. The disk may work again at the next sample.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise GenerationError(f"the run's tokenizer cannot be read: {path}: {reason}") from error
