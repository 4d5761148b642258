"""What a node does before its first round."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import numpy as np
import pytest
import structlog
import trio

from gossamer.node.peers.chain.chain_records import BehindError
from gossamer.node.rounds.following import (
    CLAIMS_SECONDS,
    FIRST_CONTACT_SECONDS,
    PROOF_SECONDS,
    Joiner,
    LeaveRequested,
)
from gossamer.node.rounds.turn import POLL_SECONDS
from tests.support.builders import announce
from tests.support.committed_rounds import IDENTITY
from tests.support.memory_transport import run_simulated


class Trainer:
    """A trainer that has drawn weights."""

    def __init__(self) -> None:
        self.readers: set[int] = set()

    async def genesis(self) -> bool:
        return True

    @property
    def base(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        self.readers.add(threading.get_ident())
        return np.arange(3, dtype=np.float32)


def made_parts() -> list[MagicMock]:
    """The parts of a `Joiner`. The run has a founder whose rounds can be proven."""
    context, follower, prover, fetcher = (MagicMock() for _ in range(4))
    context.manifest.founder = IDENTITY.peer_id
    prover.lacks_way.return_value = False
    return [context, follower, prover, fetcher]


def test_heads_that_nobody_proves_do_not_keep_a_node_from_its_first_round() -> None:
    """A peer announces a head, and never ends its answer to the question how it came about."""
    context, follower, prover, fetcher = made_parts()
    committed, trainings = context.committed, follower.trainings
    committed.is_loaded = False
    follower.heads.better.return_value = None
    trainings.orders.pause = None
    trainings.orders.wait = trio.sleep
    trainings.run_in_thread = AsyncMock(return_value=False)
    follower.settlement.settle = follower.settlement.drop_if_stale = AsyncMock()
    prover.has_open_questions, fetcher.is_at_work = True, False
    joiner = Joiner(context, follower, prover, fetcher, has_bootstrap=False)

    async def begin() -> None:
        committed.is_loaded = True

    async def main() -> None:
        began = trio.current_time()
        with trio.fail_after(10 * PROOF_SECONDS):
            await joiner.join()
        assert trio.current_time() - began == pytest.approx(PROOF_SECONDS, abs=10.0)

    joiner._begin_at_genesis = begin  # type: ignore[method-assign]
    run_simulated(main)


def test_a_crowd_of_silent_peers_does_not_keep_a_node_from_its_first_round() -> None:
    """Each of them takes the question for the claims of the others, and never answers."""
    context, follower, prover, fetcher = made_parts()
    committed, swarm, trainings = context.committed, context.swarm, follower.trainings

    async def silence(_peer: object) -> None:
        await trio.sleep_forever()

    trainings.orders.wait = trio.sleep
    trainings.run_in_thread = AsyncMock(return_value=False)
    follower.settlement.settle = follower.settlement.drop_if_stale = AsyncMock()
    committed.is_loaded, prover.has_open_questions, fetcher.is_at_work = True, False, False
    swarm.sources.return_value = [f"silent {number}" for number in range(300)]
    swarm.gossip.reconcile.side_effect = silence
    joiner = Joiner(context, follower, prover, fetcher, has_bootstrap=False)

    async def main() -> None:
        began = trio.current_time()
        await joiner.join()
        assert swarm.gossip.reconcile.call_count > 1, "the next one may answer"
        assert trio.current_time() - began == pytest.approx(CLAIMS_SECONDS)

    run_simulated(main)


LEAVES_SECONDS = 1.0


@pytest.mark.parametrize("step", ["first contact", "heads", "claims"])
def test_a_node_that_is_to_leave_waits_for_no_peer(step: str) -> None:
    """Peers that stand still, or a crowd of silent ones, took it more than the 20 s of a leave."""
    context, follower, prover, fetcher = made_parts()
    swarm, trainings = context.swarm, follower.trainings

    async def silence(_peer: object) -> None:
        await trio.sleep_forever()

    def check_leave() -> None:
        if trio.current_time() >= LEAVES_SECONDS:
            raise LeaveRequested

    async def wait(_seconds: float | None = None) -> None:
        """The order wakes it, as all news does."""
        await trio.sleep(max(POLL_SECONDS, LEAVES_SECONDS - trio.current_time()))

    follower.check_leave, trainings.orders.wait = check_leave, wait
    trainings.run_in_thread = AsyncMock(return_value=False)
    follower.settlement.settle = follower.settlement.drop_if_stale = AsyncMock()
    context.committed.is_loaded = True
    swarm.living.return_value, swarm.unheard.return_value = {}, []
    prover.has_open_questions, fetcher.is_at_work = step == "heads", False
    swarm.sources.return_value = [f"silent {number}" for number in range(300)]
    swarm.gossip.reconcile.side_effect = silence
    has_bootstrap = step == "first contact"
    joiner = Joiner(context, follower, prover, fetcher, has_bootstrap=has_bootstrap)

    async def main() -> None:
        with pytest.raises(LeaveRequested):
            await joiner.join()
        question_seconds = FIRST_CONTACT_SECONDS if step == "claims" else 0.0
        assert trio.current_time() <= LEAVES_SECONDS + question_seconds + POLL_SECONDS

    run_simulated(main)


def test_claims_are_heard_from_a_peer_that_has_heard_them() -> None:
    """Of two peers the first one by its id came in just before, and knows no claims either."""
    context, follower, prover, fetcher = made_parts()
    committed, swarm, trainings = context.committed, context.swarm, follower.trainings
    trainings.orders.wait = trio.sleep
    trainings.run_in_thread = AsyncMock(return_value=False)
    follower.settlement.settle = follower.settlement.drop_if_stale = AsyncMock()
    committed.is_loaded, prover.has_open_questions, fetcher.is_at_work = True, False, False
    swarm.sources.return_value = ["1 newcomer", "2 member", "3 paused member"]
    phases = dict(zip(swarm.sources(), ("syncing", "averaging", "paused"), strict=True))
    swarm.living.return_value = {peer: announce(phase=phases[peer]) for peer in phases}
    swarm.gossip.reconcile = AsyncMock()
    joiner = Joiner(context, follower, prover, fetcher, has_bootstrap=False)
    trio.run(joiner.join)
    swarm.gossip.reconcile.assert_called_once_with("2 member")


def test_initial_weights_are_copied_in_a_thread() -> None:
    """Those of a model of 215 million parameters are 860 MB."""
    context, follower, prover, fetcher = made_parts()
    trainer, trainings = Trainer(), follower.trainings
    trainings.trainer, trainings.run_in_thread = trainer, trio.to_thread.run_sync
    joiner = Joiner(context, follower, prover, fetcher, has_bootstrap=False)
    assert trio.run(joiner._draw_genesis)
    (initial,) = context.committed.set_genesis.call_args.args
    assert initial.tolist() == [0.0, 1.0, 2.0]
    assert trainer.readers
    assert threading.get_ident() not in trainer.readers


def test_a_state_that_nobody_serves_is_missed_once_in_the_log() -> None:
    """A newcomer may wait for days for a member with a folder's weights, and asks every 2 s."""
    context, follower, prover, fetcher = made_parts()
    committed, trainings = context.committed, follower.trainings
    committed.begins_with_drawn_weights = False
    trainings.orders.wait = trio.sleep
    problems = iter(
        ["no peer is connected", "no peer is connected", "2 of 3 blocks", "2 of 3 blocks"]
    )
    context.chain_sync.follow.side_effect = lambda *_: _raise(BehindError(next(problems)))
    joiner = Joiner(context, follower, prover, fetcher, has_bootstrap=True)

    async def main() -> None:
        for _ in range(4):
            await joiner._begin_at_genesis()

    with structlog.testing.capture_logs() as lines:
        run_simulated(main)
    told = [line["problem"] for line in lines if line["log_level"] == "warning"]
    assert told == ["no peer is connected", "2 of 3 blocks"]


async def _raise(error: Exception) -> None:
    raise error
