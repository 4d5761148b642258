"""What a node says where the chain does not tell what became of its work."""

from __future__ import annotations

from unittest.mock import AsyncMock, MagicMock

import structlog
import trio

from gossamer.node.rounds.settlement import Settlement
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.protocol.ids import digest_of

NUM_ROUNDS = 1000


async def at_once(work: object) -> object:
    assert callable(work)
    return work()


def test_records_that_cannot_be_read_are_one_line_of_the_log() -> None:
    """An account that was damaged goes through the whole chain; then the disk fails as well."""
    committed, trainings = MagicMock(), MagicMock()
    way = [digest_of(number.to_bytes(4)) for number in range(NUM_ROUNDS)]
    trainings.run_in_thread = at_once
    trainings.work.head, trainings.work.is_damaged = None, True
    committed.head, committed.chain.genesis = way[0], way[-1]
    committed.chain.follows_start.return_value = True
    committed.chain.__contains__.return_value = True
    committed.chain.gap_before.return_value = None
    committed.chain.only_in.side_effect = lambda head, _other: way if head == way[0] else []
    committed.blocks.header.side_effect = CannotRebuildError("the record is damaged")
    settlement = Settlement(committed, MagicMock(), MagicMock(), trainings, lambda _head: False)
    settlement._fetch_contributors = AsyncMock()  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as lines:
        trio.run(settlement.settle)
    told = [line for line in lines if line["log_level"] == "warning"]
    assert [line["num_rounds"] for line in told] == [NUM_ROUNDS]
    assert "check the disk" in told[0]["event"]
