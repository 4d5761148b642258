"""The node's progress, as status, metrics and announcements show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gossamer.node.telemetry.loss_history import LossHistory
from gossamer.node.telemetry.status import LastRound, LossPoint
from gossamer.protocol.wire.statements import Phase


@dataclass
class Progress:
    """The node's progress. The tasks of a round write it, the status page reads it.

    It has more than 12 attributes: nearly each is a value of the status.
    """

    phase: Phase = "joining"
    problem: str | None = None
    paused_reason: str | None = None
    """One of `PauseReason`. `disk`: it takes nothing, so this node cannot follow the swarm."""
    waits_for: str | None = None
    """The reason why the run's first round does not begin yet."""
    inner_step: int = 0
    """Inner steps that are done in the present round."""
    inner_steps: int = 0
    """Inner steps that the present round has."""
    loss: float | None = None
    """Training loss: of the newest step, or the mean over the newest finished round."""
    heldout_loss: float | None = None
    """Loss of the newest evaluation on held-out text."""
    bits_per_byte: float | None = None
    """`loss` in bits for each byte of text; None if that is not known."""
    heldout_bits_per_byte: float | None = None
    """`heldout_loss` likewise."""
    confinement: str | None = None
    """The rights that the newest trainer's process gave up, or could not, for people."""
    last_round: LastRound | None = None
    history: LossHistory = field(default_factory=LossHistory)
    on_point: Callable[[LossPoint], None] = lambda point: None
    """Is told of each new point of the curve."""

    def heldout_loss_of(self, round_number: int) -> float | None:
        """Returns the loss of the state after a round on held-out text, if that is the curve's
        newest round and was evaluated. The newest evaluation may be of an earlier state."""
        newest = self.history.points()[-1:]
        return newest[0].heldout_loss if newest and newest[0].round == round_number else None

    def add_point(self, point: LossPoint) -> None:
        """Adds a round to the curve."""
        self.history.add(point)
        self.on_point(point)
