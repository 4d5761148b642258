"""Measured speeds: tokens a second of the trainer, where its time goes, bytes a second of the
line."""

from __future__ import annotations

import math

import msgspec

from gossamer.node.machine.card_rates import peak_operations
from gossamer.node.telemetry.metric_labels import STEP_PARTS
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.wire.statements import Capacity
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.measures import StepTimes

SMOOTHING = 0.1
"""Weight of the newest step: a speed follows a change within some ten steps."""

BANDWIDTH_BYTES_MIN = 256 * 1024
"""A transfer that is smaller says more about round trips than about the line."""


class SpeedMeter:
    """Moving averages of what was measured on the run's own work."""

    def __init__(self, metrics: Metrics, operations_per_token: float = 0.0) -> None:
        """`operations_per_token`: of training; 0 if that is not known."""
        self._metrics = metrics
        self._operations = operations_per_token
        self._device: tuple[str, str] | None = None
        """Name and precision of the device that the speeds are of."""
        self._peak: float | None = None
        """Operations a second that the trainer's card can do."""
        self.times: StepTimes | None = None
        """The seconds of a step, by what they go into; None before the first, and on a device whose
        clock is not read."""
        self._tokens_per_second = 0.0
        self._bytes_per_second = 0.0

    def configured(self, configured: messages.Configured) -> None:
        """The trainer has a device."""
        self._peak = peak_operations(configured.device_name, configured.precision)
        self.times = None
        device = (configured.device_name, configured.precision)
        if device != self._device:
            # The mean of some tens of steps of a lost card says nothing of the processor.
            self._device, self._tokens_per_second = device, 0.0
            self._metrics.mfu_ratio.set(math.nan)

    @property
    def tokens_per_second(self) -> float | None:
        """Of the newest steps, while they train; None before the first."""
        return self._tokens_per_second or None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation of the newest steps, while they train (arXiv 2204.02311, appendix
        B); None if the card's rate is not known."""
        return self._mfu_at(self._tokens_per_second)

    def mfu_of(self, step: messages.Step) -> float | None:
        """The utilisation of one step."""
        return self._mfu_at(step.tokens / step.seconds) if step.seconds > 0 else None

    def _mfu_at(self, tokens_per_second: float) -> float | None:
        if not (self._peak and self._operations and tokens_per_second):
            return None
        return tokens_per_second * self._operations / self._peak

    def step(self, step: messages.Step) -> None:
        """An inner step was done."""
        metrics = self._metrics
        metrics.inner_steps.inc()
        metrics.tokens.inc(step.tokens)
        metrics.step_duration_seconds.observe(step.seconds)
        metrics.trainer_waiting_seconds.inc(step.waited_seconds)
        metrics.last_step_timestamp_seconds.set_to_current_time()
        metrics.trainer_device_memory_bytes.set(step.device_memory_bytes)
        if step.times is not None:
            self._note_times(step.times)
        if step.skipped:
            metrics.nonfinite_steps.inc()
        if not step.tokens:  # a skipped step, or one of prompts alone
            return
        metrics.loss.set(step.loss)
        metrics.gradient_norm.set(step.gradient_norm)
        if step.seconds > 0:
            self._tokens_per_second = _smoothed(self._tokens_per_second, step.tokens / step.seconds)
        metrics.text_loss.set(_or_nan(step.bits_per_byte))
        metrics.mfu_ratio.set(_or_nan(self.mfu))

    def _note_times(self, newest: StepTimes) -> None:
        before = self.times
        for part in STEP_PARTS:
            self._metrics.step_part_seconds.add(part, getattr(newest, part))
        if before is None:
            self.times = newest
            return
        self.times = StepTimes(
            **{part: _smoothed(getattr(before, part), getattr(newest, part)) for part in STEP_PARTS}
        )

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


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _smoothed(average: float, newest: float) -> float:
    return newest if average == 0.0 else average + SMOOTHING * (newest - average)
