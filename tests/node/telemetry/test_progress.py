"""The loss that is told of a finished run is that of its final state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from gossamer.node.app.reporting.reached import finish_line
from gossamer.node.rounds.finish import FinishedRun
from gossamer.node.telemetry.progress import Progress
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
    progress = Progress(heldout_loss=1.3534)
    progress.add_point(LossPoint(round=72, heldout_loss=1.3534))
    assert "1.3534" not in told(progress)
    progress.add_point(LossPoint(round=LAST_ROUND))  # followed, and not evaluated
    assert "1.3534" not in told(progress)
    progress.heldout_loss = 1.2861
    progress.add_point(LossPoint(round=LAST_ROUND, heldout_loss=1.2861))
    assert "1.2861" in told(progress)
