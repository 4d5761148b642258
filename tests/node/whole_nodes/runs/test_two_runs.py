"""Nodes of two runs that are connected to each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.protocol.manifest import Trust
from tests.support.memory_peer import MemoryPeer
from tests.support.node_world import World, simulate, start
from tests.support.noted_offences import noted_offences

NAMES = "abc"
SECONDS = 20.0


@pytest.mark.parametrize("trust", ["open", "members"])
def test_nodes_of_two_runs_leave_each_other_alone(
    trust: Trust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They compared what their peers say, took it for forged, and banned each other, for twice as
    long each time. With another `trust` each `ready` is malformed as well."""
    noted = noted_offences(monkeypatch)
    one = World(tmp_path / "one", seed=43, codec="int8", trust="open")
    other = World(tmp_path / "other", seed=44, codec="int8", trust=trust)
    other.network = one.network
    theirs = {other.identity(name).peer_id for name in NAMES}
    dials: list[float] = []
    connect = MemoryPeer.connect

    async def counted(self: MemoryPeer, address: str) -> object:
        ours = self.peer_id not in theirs
        if ours is any(address.endswith(peer) for peer in theirs):
            dials.append(trio.current_time())
        return await connect(self, address)

    monkeypatch.setattr(MemoryPeer, "connect", counted)

    async def story(nursery: trio.Nursery) -> None:
        for world in (one, other):
            await start(world, nursery, NAMES)
        await one.until(
            lambda: all(w.participant_or_none(name) for w in (one, other) for name in NAMES)
        )
        node = one.network.get(one.identity("a").peer_id)
        assert node is not None
        before = one.round("a"), other.round("a")
        for address in sorted(one.network.addresses_of(peer)[0] for peer in theirs):
            await node.connect(address)
        await trio.sleep(SECONDS)
        assert noted == []
        assert theirs.isdisjoint(node.peers())
        assert not any(map(node.is_banned, theirs))
        assert one.round("a") > before[0] + 5
        assert other.round("a") > before[1] + 5

    simulate(one, story)
    assert len(dials) <= 3 * len(theirs)
