"""Evaluates the committed parameters on held-out text, between rounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from gossamer.node.machine.trainer_client import Trainer
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress

EVALUATION_SHARE = 0.02
"""Upper bound on the part of the wall time that evaluating may take."""

EVALUATION_ROUND_SHARE = 0.05
"""Upper bound on one evaluation, as a part of a round: the other peers wait for its end."""

EVALUATION_TOKENS_MAX = 16_384
"""Enough for a curve. The exact loss is the exported model's on all held-out text."""


class HeldoutLoss:
    """The loss on held-out text, as often as its share of the time allows."""

    def __init__(
        self,
        trainer: Trainer,
        heldout_paths: Callable[[], list[str]],
        progress: Progress,
        metrics: Metrics,
    ) -> None:
        """`heldout_paths`: files of the held-out shards; empty until all of them are here."""
        self._trainer = trainer
        self._heldout_paths = heldout_paths
        self._progress = progress
        self._metrics = metrics
        self._due_seconds = -math.inf
        self._fresh_loss: float | None = None

    async def evaluate(self, round_seconds: float) -> None:
        """Evaluates if it is due.

        Args:
            round_seconds: how long a round lasts; the evaluation takes a small part of it.
        """
        started = trio.current_time()
        paths = self._heldout_paths()
        if started < self._due_seconds or not paths:
            return
        evaluated = await self._trainer.evaluate(
            paths, EVALUATION_TOKENS_MAX, EVALUATION_ROUND_SHARE * round_seconds
        )
        now = trio.current_time()
        self._due_seconds = now + (now - started) / EVALUATION_SHARE
        if evaluated is not None and math.isfinite(evaluated.loss):
            self._progress.heldout_loss = self._fresh_loss = evaluated.loss
            self._metrics.heldout_loss.set(evaluated.loss)

    def take_fresh(self) -> float | None:
        """The loss of an evaluation since the last call, for the curve; None without one."""
        loss, self._fresh_loss = self._fresh_loss, None
        return loss
