"""A newcomer to a run with many quick rounds behind it, and what others keep for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from node_world import World, simulate

from gossamer.node.peers.chain_sync import ChainRequest, ChainSync
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.retention import (
    CHECKPOINT_SECONDS,
    CHECKPOINTS_KEPT,
    CHECKPOINTS_MAX,
)
from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[ChainRequest]:
    """What is asked for of chains; replies have few records."""
    asked: list[ChainRequest] = []
    request = ChainSync._request

    async def noted(self: ChainSync, peer: PeerId, wanted: ChainRequest) -> list[bytes]:
        asked.append(wanted)
        return await request(self, peer, wanted)

    monkeypatch.setattr(ChainSync, "_request", noted)
    monkeypatch.setattr(limits, "HEADERS_PER_REPLY_MAX", 4)
    return asked


def test_it_learns_each_page_once_and_takes_over_no_old_head(
    tmp_path: Path, requests: list[ChainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=80)
    wanted: list[int] = []
    follow = ChainSync.follow

    async def noted(self: ChainSync, head, sources):  # type: ignore[no-untyped-def]
        wanted.append(self._committed.chain.entry(head).round)
        await follow(self, head, sources)

    monkeypatch.setattr(ChainSync, "follow", noted)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(42, "a")
        requests.clear()
        wanted.clear()
        begun = world.round("a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(begun + 3, "a", "b")
        world.assert_one_chain("a", "b")
        assert min(wanted) >= begun, "a round in the middle of the chain was taken for a goal"
        pages = [request.after_round for request in requests]
        assert len(pages) <= begun / limits.HEADERS_PER_REPLY_MAX + 5
        assert sorted(set(pages)) == sorted(pages), "a page came twice"

    simulate(world, story)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("between", [1.0, 50.0, 2 * CHECKPOINT_SECONDS])
def test_quick_checkpoints_are_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(
        CommittedState.__init__, "__kwdefaults__", {"read_only": False, "clock": clock}
    )
    world = World(tmp_path, seed=81)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        committed = world.participant("a").parts.committed
        # Every third round is one.
        while world.round("a") < 45:
            newest = committed.checkpoint_round
            await world.until(lambda newest=newest: committed.checkpoint_round > newest)  # type: ignore[misc]
            clock.seconds += between
            kept = committed.checkpoints
            assert all(committed.has_checkpoint(entry.head) for entry in kept)
            rounds = [entry.round for entry in kept]
            assert rounds == sorted(rounds)
        if between == 1.0:
            assert len(kept) == CHECKPOINTS_MAX
        elif between > CHECKPOINT_SECONDS:
            assert len(kept) == CHECKPOINTS_KEPT
        else:
            assert len(kept) == CHECKPOINTS_KEPT + CHECKPOINT_SECONDS // between

    simulate(world, story)
