"""The node's progress, as status, metrics and announcements show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossamer.node.telemetry.status import LastRound, LossHistory
from gossamer.protocol.wire.statements import Phase


@dataclass
class Progress:
    """The node's progress. The tasks of a round write it, the status page reads it."""

    phase: Phase = "joining"
    problem: str | None = None
    paused_reason: str | None = None
    """One of `PauseReason`. `disk`: it takes nothing, so this node cannot follow the swarm."""
    inner_step: int = 0
    """Inner steps that are done in the present round."""
    inner_steps: int = 0
    """Inner steps that the present round has."""
    loss: float | None = None
    """Training loss: of the newest step, or the mean over the newest finished round."""
    heldout_loss: float | None = None
    """Loss of the newest evaluation on held-out text."""
    confinement: str | None = None
    """What the newest trainer's process cannot do, for people."""
    last_round: LastRound | None = None
    history: LossHistory = field(default_factory=LossHistory)
