"""A node whose disk lost the record of an old round: where it stands, and what its owner reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import pytest
import trio

from gossamer.node.heads import side_records
from gossamer.node.heads.allowed_heads import AllowedHeads
from gossamer.node.heads.missing_record import missing_record_text
from gossamer.node.heads.side_records import SideRecords
from gossamer.node.network.identity import Identity
from gossamer.node.rounds.following import RETRY_SECONDS, Joiner
from gossamer.node.storage.chain.chain_start import CHECKPOINTS_NAME
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.chain_checkpoint import KEPT_ROUNDS, signing_depth
from gossamer.protocol.policy.heads.chain_summary import CHECKPOINT_PERIOD
from gossamer.protocol.wire.statements import Rollback
from tests.support.committed_rounds import IDENTITY
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.pruned_runs import Member, Peer

NUM_ROUNDS = KEPT_ROUNDS + 2 * CHECKPOINT_PERIOD
LOST = NUM_ROUNDS - 20
"""A round after the newest signed checkpoint."""


class Story:
    """The founder alone, whose chain begins at a signed checkpoint; its disk lost a record."""

    def __init__(self, folder: Path, transport: Any, lost: int = LOST) -> None:
        member = Member(folder, transport, 1)
        member.advance(NUM_ROUNDS)
        assert member.chain.start is not None
        (record,) = member.directory.glob(f"{lost:010d}-*")
        record.write_bytes(b"")
        if lost < LOST:  # else the chain would begin at its signed checkpoint
            (member.directory / CHECKPOINTS_NAME).unlink()
        self.peer = Peer(folder, transport)
        self.peer.committed.head = member.committed.head
        self.committed = cast(Any, self.peer.committed)
        self.committed.is_loaded = True
        self.committed.end = SimpleNamespace(is_over_after=lambda *_: False)

    @property
    def chain(self) -> Any:
        return self.peer.chain

    def allowed(self, pin: Digest | None = None) -> AllowedHeads:
        return AllowedHeads(self.committed, self.peer.choice, cast(Any, []), pin)

    def text(self, me: PeerId = IDENTITY.peer_id, *rollbacks: Rollback) -> str | None:
        return missing_record_text(
            self.committed, self.peer.manifest, me, cast(Any, list(rollbacks))
        )


def play(folder: Path, story: Callable[[Story], None], lost: int = LOST) -> None:
    async def main() -> None:
        async with MemoryNetwork(seed=1).transport(IDENTITY) as transport:
            story(Story(folder, transport, lost))

    run_simulated(main)


def test_the_node_goes_on_from_its_newest_state(tmp_path: Path) -> None:
    """It waited for a peer, for good where there is none."""

    def story(made: Story) -> None:
        head, start = made.committed.head, made.chain.start
        assert start is not None
        assert made.chain.gap_before(head) == LOST
        assert made.allowed().own() == [head]

        before = made.chain.heads_by_weight()[0]
        assert made.chain.entry(before).round == LOST - 1
        assert not made.allowed().may_win(before), "the rounds since would be lost"

    play(tmp_path, story)


def test_the_head_of_the_link_may_lie_before_the_record(tmp_path: Path) -> None:
    def story(made: Story) -> None:
        way = made.chain.pieces_to(made.committed.head)
        assert made.allowed(way[0][40]).own() == [made.committed.head]
        assert made.allowed(way[1][5]).own() == [made.committed.head]
        lost = made.chain.entry(way[1][0]).parent
        assert made.allowed(lost).own() == [made.committed.head], "it may be the record itself"
        assert made.allowed(Digest(b"x" * 32)).own() == []

    play(tmp_path, story)


def test_the_owner_reads_what_is_lost_and_when_newcomers_can_join_again(tmp_path: Path) -> None:
    def story(made: Story) -> None:
        text = made.text()
        assert text is not None
        assert f"the record of round {LOST} is damaged or missing" in text
        signed = NUM_ROUNDS + CHECKPOINT_PERIOD
        depth = signing_depth(made.peer.manifest.rounds.checkpoint_rounds)
        assert f"comes to round {signed + depth}" in text
        other = made.text(Identity.from_seed(b"o" * 32).peer_id)
        assert other is not None
        assert other.endswith("until a member that has the record connects")
        rolled_back = made.text(IDENTITY.peer_id, Rollback(bytes(32), bytes(32), LOST - 100))
        assert rolled_back is not None
        assert "gossamer export" in rolled_back
        made.committed.head = made.chain.heads_by_weight()[0]
        assert made.text() is None

    def later_story(made: Story) -> None:
        text = made.text()
        assert text is not None
        assert text.endswith(
            "or this node signs a checkpoint of the chain, within a minute if it is alone"
        )

    play(tmp_path / "late", story)
    play(tmp_path / "early", later_story, lost=KEPT_ROUNDS)


def test_rounds_before_the_record_are_not_forgotten_as_those_of_another_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_records, "SIDE_BYTES_MAX", 1000)

    def story(made: Story) -> None:
        swarm = SimpleNamespace(living=dict)
        rounds = SideRecords(made.committed, lambda _head: (), made.peer.records, cast(Any, swarm))
        num_files = len(list(made.peer.directory.glob("0*")))
        for needs_room in (False, True):
            if needs_room:
                rounds.make_room()
            rounds.forget(lambda _: False)
            assert len(list(made.peer.directory.glob("0*"))) == num_files

    play(tmp_path, story)


def test_a_newcomer_waits_while_the_founder_cannot_prove_its_rounds() -> None:
    """A branch of its own beside the founder's rounds would lose to them."""
    context, follower, prover, fetcher = (MagicMock() for _ in range(4))
    committed, trainings = context.committed, follower.trainings
    committed.is_loaded = False
    follower.heads.better.return_value = None
    progress = follower.phases.progress = SimpleNamespace(problem=None)
    trainings.orders.pause = None
    trainings.orders.wait = trio.sleep
    trainings.run_in_thread = AsyncMock(return_value=False)
    follower.settlement.settle = follower.settlement.drop_if_stale = AsyncMock()
    prover.has_open_questions, fetcher.is_at_work = False, False
    founder = context.manifest.founder = IDENTITY.peer_id
    lacking = {founder}
    prover.lacks_way = lacking.__contains__
    joiner = Joiner(context, follower, prover, fetcher, has_bootstrap=False)
    problems: list[str | None] = []

    async def begin() -> None:
        committed.is_loaded = True
        problems.append(progress.problem)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(joiner.join)
            await trio.sleep(20 * RETRY_SECONDS)
            problems.append(progress.problem)
            lacking.clear()
        assert problems[0] is not None
        assert "lacks the record" in problems[0]
        assert problems[1:] == [None]
        assert progress.problem is None

    joiner._begin_at_genesis = begin  # type: ignore[method-assign]
    run_simulated(main)
