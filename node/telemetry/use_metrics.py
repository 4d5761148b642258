"""The use of the machine by a node beside its owner's limits, as metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gossamer.node.telemetry.metric_families import Registrar

LINE_DIRECTIONS = ("sent", "received")

_LIMITS = (
    ("threads", "threads", "The owner's limit of the trainer's threads"),
    ("memory_bytes", "memory", "The owner's limit of the memory of daemon and trainer"),
    ("disk_bytes", "disk", "The owner's limit of the state directory"),
    ("gpu_memory_bytes", "gpu_memory", "The owner's limit of the card's memory"),
    ("gpu_power_watts", "gpu_power", "The owner's limit of the card's power"),
    ("gpu_temperature_celsius", "gpu_temperature", "Temperature above which the node pauses"),
)
"""Each gauge `limit_...`, the name of the limit in `base.settings.owner_limits`, and the text."""


class UseMetrics:
    """The owner's limits and the use: of the line, of memory, of the processor."""

    def __init__(self, add: Registrar) -> None:
        self._line_bytes = add.counter(
            "line_bytes_total",
            "Bytes on the wire with all peers, packet headers included: what the limits count.",
            ["direction"],
        )
        self._line_seen = dict.fromkeys(LINE_DIRECTIONS, 0)
        for direction in LINE_DIRECTIONS:
            self._line_bytes.labels(direction)
        self._line_limit = add.gauges(
            "line_limit_bytes_per_second",
            "The owner's limit of the line; +Inf for none.",
            "direction",
            LINE_DIRECTIONS,
        )
        self._limits = {
            limit: add.gauge(f"limit_{name}", f"{text}; +Inf for none.")
            for name, limit, text in _LIMITS
        }
        self._memory_used = add.gauge(
            "memory_used_bytes", "Resident memory of the daemon and its trainer."
        )
        self._trainer_memory = add.gauge(
            "trainer_resident_memory_bytes", "Resident memory of the trainer; 0 where none runs."
        )
        self._trainer_cpu = add.counter(
            "trainer_cpu_seconds_total", "Processor time of all trainers of this life of the node."
        )

    def set_limits(self, limits: Mapping[str, float | None]) -> None:
        """Sets the owner's limits, by the names of `base.settings.owner_limits`.

        Args:
            limits: None for no limit. Those of the line are in Mbit/s.
        """
        for direction, name in (("sent", "upload"), ("received", "download")):
            mbit = limits.get(name)
            self._line_limit.set(direction, math.inf if mbit is None else mbit * 1e6 / 8)
        for name, gauge in self._limits.items():
            value = limits.get(name)
            gauge.set(math.inf if value is None else value)

    def set_moved(self, sent_bytes: int, received_bytes: int) -> None:
        """Takes over all bytes of the line so far."""
        for direction, moved in zip(LINE_DIRECTIONS, (sent_bytes, received_bytes), strict=True):
            self._line_bytes.labels(direction).inc(moved - self._line_seen[direction])
            self._line_seen[direction] = moved

    def set_used(
        self, memory_bytes: float, trainer_bytes: float, trainer_cpu_seconds: float
    ) -> None:
        """Sets the use.

        Args:
            memory_bytes: of daemon and trainer.
            trainer_cpu_seconds: processor time since the call before.
        """
        self._memory_used.set(memory_bytes)
        self._trainer_memory.set(trainer_bytes)
        self._trainer_cpu.inc(trainer_cpu_seconds)
