"""The loss that is told of a finished run is that of its final state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from msgspec.structs import replace

from gossamer.node.app.reporting.reached import finish_line
from gossamer.node.rounds.finish import FinishedRun
from gossamer.node.telemetry.loss_history import Heldout
from gossamer.node.telemetry.progress import Progress, RoundLoss
from gossamer.node.telemetry.status import LossPoint
from gossamer.protocol.ids import Digest

LAST_ROUND = 80
ENTRY = SimpleNamespace(round=LAST_ROUND, head=Digest(bytes(32)), tokens_total=1000)


def told_at_the_terminal(progress: Progress) -> str:
    work = SimpleNamespace(committed_on_time=5, committed_late=0)
    context = SimpleNamespace(
        committed=SimpleNamespace(entry=ENTRY),
        work=SimpleNamespace(status=work),
        manifest=SimpleNamespace(name="run"),
    )
    return finish_line(cast(Any, SimpleNamespace(context=context, progress=progress)))


def told_in_the_log(progress: Progress) -> str:
    follower = SimpleNamespace(phases=SimpleNamespace(progress=progress))
    finished = object.__new__(FinishedRun)
    finished._follower = cast(Any, follower)
    finished._committed = cast(Any, SimpleNamespace(entry=ENTRY))
    finished._trainings = cast(Any, SimpleNamespace(orders=SimpleNamespace(leave=False)))
    finished._serve_seconds = 0.0
    with structlog.testing.capture_logs() as lines:
        finished._report()
    return str(lines)


@pytest.mark.parametrize("told", [told_at_the_terminal, told_in_the_log])
def test_a_loss_of_an_earlier_round_is_not_told_as_the_runs(told: Any) -> None:
    """The node was away at the end, and has fetched the final state."""
    progress = Progress()
    progress.evaluated(Heldout(72, 1.3534))
    assert "1.3534" not in told(progress)
    progress.end_round(LAST_ROUND)  # followed, and not evaluated
    assert "1.3534" not in told(progress)
    progress.evaluated(Heldout(LAST_ROUND, 1.2861))
    assert "1.2861" in told(progress)


def test_the_curve_has_each_loss_at_its_round() -> None:
    """With overlap a state is evaluated while the next round is at work, and then trained ahead."""
    told: list[LossPoint] = []
    progress = Progress(on_point=told.append)
    progress.round_loss, progress.loss = RoundLoss(1, 4.0, 1.5), 3.9
    progress.end_round(1)
    progress.evaluated(Heldout(1, 4.2, 1.6))  # of the state after round 1, in round 2
    progress.round_loss, progress.loss = RoundLoss(2, 3.0, 1.2), 2.9
    progress.end_round(2)
    progress.end_round(3)  # offered carried work alone
    progress.evaluated(Heldout(5, 2.2))  # rounds 4 and 5 were followed
    first = LossPoint(round=1, loss=4.0, bits_per_byte=1.5)
    assert progress.history.points() == (
        replace(first, heldout_loss=4.2, heldout_bits_per_byte=1.6),
        LossPoint(round=2, loss=3.0, bits_per_byte=1.2),
        LossPoint(round=3),
        LossPoint(round=5, heldout_loss=2.2),
    )
    assert told == [first, LossPoint(round=2, loss=3.0, bits_per_byte=1.2), LossPoint(round=3)]


def test_what_was_measured_of_a_state_that_left_the_chain_is_forgotten() -> None:
    progress = Progress()
    for number in range(1, 8):
        progress.end_round(number)
    progress.evaluated(Heldout(5, 2.5))
    progress.went_back(5)
    assert (progress.heldout, progress.history.points()[-1].round) == (Heldout(5, 2.5), 5)
    progress.went_back(4)
    assert (progress.heldout, progress.history.points()[-1].round) == (None, 4)
    progress.end_round(5)
    assert progress.history.points()[-1] == LossPoint(round=5)
    progress.went_back(0)
    assert progress.history.points() == ()
