"""The node's phase: one place that sets it and tells status, metrics and the swarm."""

from __future__ import annotations

from typing import Literal

from gossamer.node.base.orders import Orders
from gossamer.node.peers.swarm import Swarm
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress
from gossamer.protocol.wire.statements import Phase


class Phases:
    """Sets the node's phase."""

    def __init__(self, progress: Progress, metrics: Metrics, swarm: Swarm, orders: Orders) -> None:
        self.progress = progress
        self._metrics = metrics
        self._swarm = swarm
        self._orders = orders

    def set(self, phase: Phase) -> None:
        """Sets a phase, announces it if it is new, and wakes the tasks that wait for news."""
        progress = self.progress
        if phase != "paused":
            progress.paused_reason = None
        if phase != progress.phase:
            progress.phase = phase
            self._metrics.set_phase(phase)
            # A phase that stays needs no announcement besides the regular ones. A loop that sets it
            # at every wake would answer each announcement heard with one of its own.
            self._swarm.announce()
        self._orders.notify()

    def pause(self, reason: Literal["user", "disk"]) -> None:
        """Sets the phase `paused`, with the reason that status and metrics show."""
        self.progress.paused_reason = reason
        self.set("paused")
