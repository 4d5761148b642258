"""A member opens its stream of a ring to a node that has committed the round."""

from __future__ import annotations

from pathlib import Path

import msgspec
import trio

from gossamer.node.network.identity import verify
from gossamer.node.rounds.ring_chunks import CommittedRing
from gossamer.protocol.wire.envelopes import open_signed, seal
from gossamer.protocol.wire.statements import Roster
from tests.support.node_world import World, simulate, start

ROUND = 3


def test_a_node_refuses_a_ring_when_it_has_committed_another_one(tmp_path: Path) -> None:
    """Its members would wait for averages that never come: the simulator's world 1438 stood still
    for half a minute so, while the node went on alone until the two could not come together."""
    world = World(tmp_path, seed=85)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(ROUND + 2, "a", "b")
        node = world.participant("b")
        chain, run_id = node.context.committed.chain, node.context.manifest.run_id
        head = next(each for each in world.path("b") if chain.entry(each).round == ROUND)
        envelope = chain.commit(head).roster
        roster = open_signed(envelope, run_id, verify)
        assert isinstance(roster, Roster)
        organiser = next(
            identity
            for identity in map(world.identity, "ab")
            if identity.peer_id == envelope.author
        )
        peer = world.identity("a").peer_id
        assert isinstance(await node.rounds.greeted(peer, envelope), CommittedRing)
        other = msgspec.structs.replace(roster, attempt=roster.attempt + 1)
        sealed = seal(other, organiser.peer_id, run_id, organiser.sign)
        assert await node.rounds.greeted(peer, sealed) is None

    simulate(world, story)
