"""The beginning of a trainer's round, as the daemon tells it."""

from __future__ import annotations

from gossamer.protocol.state.run_end import SchedulePlace
from gossamer.trainer.ipc import messages
from gossamer.trainer.local_trainer import LocalTrainer


def begin(
    trainer: LocalTrainer,
    number: int,
    first_step: int,
    steps_max: int,
    seconds_max: float,
    start: messages.Start = "base",
    new: messages.Ranges = (),
    place: SchedulePlace | None = None,
) -> None:
    trainer.begin(
        messages.Begin(
            round=number,
            first_step=first_step,
            steps_max=steps_max,
            seconds_max=seconds_max,
            start=start,
            new=new,
            place=place,
        )
    )


def steps_of(trainer: LocalTrainer) -> int:
    """The updates that the optimiser has seen; 0 without one."""
    return 0 if trainer._optimizer is None else trainer._optimizer.num_steps
