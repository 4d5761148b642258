"""The node's progress, as status, metrics and announcements show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from gossamer.node.telemetry.loss_history import Heldout, LossHistory
from gossamer.node.telemetry.status import LastRound, LossPoint
from gossamer.protocol.wire.statements import Phase


class RoundLoss(NamedTuple):
    """The training loss of one round's own steps."""

    round: int
    loss: float | None
    bits_per_byte: float | None


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
    bits_per_byte: float | None = None
    """`loss` in bits for each byte of text; None if that is not known."""
    round_loss: RoundLoss | None = None
    """Of the newest training that ended. With `overlap`, `loss` is of the next round by then."""
    heldout: Heldout | None = None
    """The newest evaluation of a state of this node's chain. The committed state may be newer."""
    confinement: str | None = None
    """The rights that the newest trainer's process gave up, or could not, for people."""
    last_round: LastRound | None = None
    history: LossHistory = field(default_factory=LossHistory)
    on_point: Callable[[LossPoint], None] = lambda point: None
    """Is told of each new point of the curve."""
    on_heldout: Callable[[Heldout], None] = lambda heldout: None
    """Is told of each evaluation."""

    def heldout_loss_of(self, round_number: int) -> float | None:
        """Returns the loss of the state after a round on held-out text, if the newest evaluation
        was of that state. It may be of an earlier one."""
        heldout = self.heldout
        return heldout.loss if heldout is not None and heldout.round == round_number else None

    def evaluated(self, heldout: Heldout) -> None:
        """A state was evaluated: the loss belongs to its round, also where the curve is ahead."""
        self.heldout = heldout
        self.history.measured(heldout)
        self.on_heldout(heldout)

    def end_round(self, number: int) -> LossPoint:
        """Adds a round that ended to the curve, and returns its point."""
        trained, heldout = self.round_loss, self.heldout
        if trained is None:  # the newest steps are this round's: it trains inside its ring
            trained = RoundLoss(number, self.loss, self.bits_per_byte)
        point = LossPoint(round=number)
        if trained.round == number:
            point = replace(point, loss=trained.loss, bits_per_byte=trained.bits_per_byte)
        if heldout is not None and heldout.round == number:
            point = heldout.put_into(point)
        self.history.add(point)
        self.on_point(point)
        return point

    def went_back(self, round_number: int) -> None:
        """Rounds after this one have left this node's chain: so did the states that they made."""
        self.history.forget_after(round_number)
        self.forget_heldout_after(round_number)

    def forget_heldout_after(self, round_number: int) -> None:
        """An evaluation of a state after a newer round is none of a state of this chain."""
        if self.heldout is not None and self.heldout.round > round_number:
            self.heldout = None
