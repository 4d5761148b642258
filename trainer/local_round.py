"""The round that a trainer is at: its limits, and what its steps have come to."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from gossamer.trainer.ipc import messages
from gossamer.trainer.text.data import add_span

SPANS_MAX = messages.SPANS_PER_ROUND_MAX // 2
"""A round ends early when its data was in this many pieces: its spans go into one message, and one
step may add as many as it has sequences, and more. The daemon makes one span of a partition's."""


@dataclass
class LocalRound:
    """The inner steps of one peer in one round."""

    task: messages.Begin
    """What the daemon wants of it."""
    started: float = field(default_factory=time.monotonic)
    steps: int = 0
    tokens: int = 0
    _text_bytes: int = 0
    _loss_sum: float = 0.0
    _spans: list[messages.Span] = field(default_factory=list)

    @property
    def seconds_left(self) -> float:
        """Time until the round has to end; not positive when it is over."""
        return self.started + self.task.seconds_max - time.monotonic()

    @property
    def is_over(self) -> bool:
        """True if the round has had its steps, its time or its pieces of data."""
        has_steps = self.steps >= self.task.steps_max
        return has_steps or self.seconds_left <= 0 or len(self._spans) >= SPANS_MAX

    def add_step(
        self, spans: Iterable[messages.Span], tokens: int, text_bytes: int, loss: float
    ) -> None:
        """Counts a step that was taken.

        Args:
            spans: its data.
            tokens: target tokens trained; 0 if the step was skipped.
            text_bytes: bytes of the text that these tokens stand for.
            loss: mean over these tokens; of no account if there are none.
        """
        for span in spans:
            add_span(self._spans, span)
        self.steps += 1
        if tokens:
            self.tokens += tokens
            self._text_bytes += text_bytes
            self._loss_sum += loss * tokens

    def finished(self) -> messages.Finished:
        """The message that ends the round."""
        return messages.Finished(
            round=self.task.round,
            steps=self.steps,
            tokens=self.tokens,
            spans=tuple(self._spans),
            loss=self._loss_sum / self.tokens if self.tokens else math.nan,
            text_bytes=self._text_bytes,
        )
