"""A view of a run from outside, against whole nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import Stream
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.node.peers.watching import Watcher, mean_of
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.state.commit_records import encode_commit
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL
from tests.support.node_world import World, headers_of, simulate, start


def test_a_watcher_sees_rounds_and_members_and_takes_no_block(tmp_path: Path) -> None:
    world = World(tmp_path, seed=31)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(4, "a", "b")
        me = world.identity("watcher")
        async with world.network.transport(me) as transport:
            (address, *_) = world.network.addresses_of(world.identity("a").peer_id)
            peer = await transport.connect(address)
            watcher = Watcher(transport, open_signed_manifest(world.signed))
            view = await watcher.look(peer)
            assert set(view.peers) == {world.identity(name).peer_id for name in "ab"}
            headers = {header.round: header for header in headers_of(world, "a")}
            assert len(view.rounds) >= 4
            for each in view.rounds:
                header = headers[each.number]
                assert each.tokens == header.tokens
                assert each.tokens_total == header.tokens_total
                assert set(each.members) <= {member.peer_id for member in header.members}
                assert each.loss == pytest.approx(1.0)  # as the trainer of these tests says
            # The run goes on without it, and does not count it.
            await world.reach(world.round("a") + 3, "a", "b")
            again = await watcher.look(peer)
            assert again.rounds[-1].number >= view.rounds[-1].number + 3
            assert me.peer_id not in again.peers
            assert all(me.peer_id not in each.members for each in again.rounds)
            moved = {protocol for protocol, totals in transport.traffic().items() if any(totals)}
            assert moved == {STATEMENTS_PROTOCOL, CHAIN_PROTOCOL}

    simulate(world, story)


def test_a_peer_cannot_invent_rounds(tmp_path: Path) -> None:
    """The records of a liar lack a vote that the members signed."""
    world = World(tmp_path, seed=32)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(3, "a", "b")
        chain = world.participant("a").context.committed.chain
        newest = world.path("a")[-1]
        commit = chain.commit(newest)
        forged = encode_commit(type(commit)(commit.header, commit.roster, ()))

        async def lie(stream: Stream) -> None:
            await receive_frame(stream)
            await send_frame(stream, to_msgpack([forged]))

        world.nodes["a"].inputs.transport.handle(CHAIN_PROTOCOL, lie)
        async with world.network.transport(world.identity("watcher")) as transport:
            (address, *_) = world.network.addresses_of(world.identity("a").peer_id)
            peer = await transport.connect(address)
            with pytest.raises(ForgedError, match="without the votes"):
                await Watcher(transport, open_signed_manifest(world.signed)).look(peer)

    simulate(world, story)


def test_the_mean_of_losses_is_by_tokens() -> None:
    assert mean_of([(2.0, 30), (4.0, 10)]) == 2.5
    assert mean_of([]) is None
