"""What a node says and does at the end of its run."""

from __future__ import annotations

import math
from unittest.mock import AsyncMock, MagicMock

import pytest
import trio
from structlog.testing import capture_logs

from gossamer.node.rounds.finish import FinishedRun


@pytest.mark.parametrize("serve_seconds", [3600.0, math.inf])
def test_a_node_that_was_told_to_leave_does_not_say_that_it_stays(serve_seconds: float) -> None:
    """The order came while it fetched the final state."""
    context, trainings, follower, saver, heldout, rounds = (MagicMock() for _ in range(6))
    context.committed.entry.head = bytes(32)
    trainings.orders.leave, trainings.trainer.is_up = True, False
    trainings.trainer.suspend = saver.save = trainings.run_in_thread = AsyncMock()
    follower.phases.progress.heldout_loss_of.return_value = None
    finished = FinishedRun(context, trainings, follower, saver, heldout, rounds, serve_seconds)
    with capture_logs() as lines:
        trio.run(finished.serve)
    assert [line["event"] for line in lines] == [
        "the run is finished: this node has the final state"
    ]
