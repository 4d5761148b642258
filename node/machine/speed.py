"""Measured speeds: tokens a second of the trainer, bytes a second of the line."""

from __future__ import annotations

import msgspec

from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.wire.statements import Capacity
from gossamer.trainer.ipc import messages

SMOOTHING = 0.1
"""Weight of the newest step: a speed follows a change within some ten steps."""

BANDWIDTH_BYTES_MIN = 256 * 1024
"""A transfer that is smaller says more about round trips than about the line."""


class SpeedMeter:
    """Moving averages of what was measured on the run's own work."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tokens_per_second = 0.0
        self._bytes_per_second = 0.0

    def step(self, step: messages.Step) -> None:
        """An inner step was done."""
        metrics = self._metrics
        metrics.inner_steps.inc()
        metrics.tokens.inc(step.tokens)
        metrics.step_duration_seconds.observe(step.seconds)
        metrics.trainer_waiting_seconds.inc(step.waited_seconds)
        metrics.last_step_timestamp_seconds.set_to_current_time()
        if step.skipped:
            metrics.nonfinite_steps.inc()
        if not step.tokens:  # a skipped step, or one of prompts alone
            return
        metrics.loss.set(step.loss)
        metrics.gradient_norm.set(step.gradient_norm)
        if step.seconds > 0:
            self._tokens_per_second = _smoothed(self._tokens_per_second, step.tokens / step.seconds)

    def transfer(self, num_bytes: int, seconds: float) -> None:
        """Bytes left for a peer as fast as the line took them."""
        if num_bytes >= BANDWIDTH_BYTES_MIN and seconds > 0:
            self._bytes_per_second = _smoothed(self._bytes_per_second, num_bytes / seconds)

    def put_into(self, capacity: Capacity) -> Capacity:
        """The capacity with the speeds measured so far."""
        return msgspec.structs.replace(
            capacity,
            tokens_per_second=self._tokens_per_second,
            bandwidth_bytes_per_second=self._bytes_per_second,
        )


def _smoothed(average: float, newest: float) -> float:
    return newest if average == 0.0 else average + SMOOTHING * (newest - average)
