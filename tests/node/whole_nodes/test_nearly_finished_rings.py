"""A member to which the last averages of a ring are still on their way when the others commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

from gossamer.node.peers.chain.chain_sync import ChainSync
from gossamer.protocol.ids import Digest, PeerId
from tests.support.node_world import World, headers_of, simulate, start

LATE_SECONDS = 0.4
"""On one line: a commit comes over the other lines so much earlier than the averages."""

NUM_ROUNDS = 12


def test_a_round_that_is_nearly_finished_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every third round or so the late line is the ring's."""
    world = World(tmp_path, seed=84, wait_for_peers=3)
    fetched: list[Digest] = []
    fetch = ChainSync.fetch

    async def noted(sync: ChainSync, head: Digest, sources: Callable[[], Sequence[PeerId]]) -> None:
        fetched.append(head)
        await fetch(sync, head, sources)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(2, *"abcd")
        peers = {name: world.identity(name).peer_id for name in "abcd"}
        world.network.link(peers["a"], peers["d"]).latency_seconds = LATE_SECONDS
        monkeypatch.setattr(ChainSync, "fetch", noted)
        first = world.round("d")
        await world.reach(first + NUM_ROUNDS, *"abcd")
        world.assert_one_chain(*"abcd")
        assert {len(each.members) for each in headers_of(world, "a")[first:]} == {4}

    simulate(world, story)
    assert not fetched
