"""A run with a list of members, or by invitation: a stranger gets nothing, whatever it asks for."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import trio

from gossamer.node.network.transport import ProtocolRefused
from gossamer.node.peers.members.run_exchange import NotAdmittedError, request_manifest
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import DIGEST_BYTES, digest_of
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_request
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, ChainRequest
from gossamer.protocol.wire.expulsion_messages import EXPULSION_PROTOCOL
from gossamer.protocol.wire.invitation_messages import ROLL_PROTOCOL
from gossamer.protocol.wire.relay_messages import RELAY_PROTOCOL
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL
from gossamer.protocol.wire.run_messages import RUN_PROTOCOL, Admitted, decode_admitted
from tests.rogue.rogue import Rogue, encode, frame
from tests.support.measured import measured
from tests.support.node_world import World, simulate

LISTEN_SECONDS = 10.0
"""In this time each member announces itself five times, and several rounds end."""


@pytest.mark.parametrize("is_by_invitation", [False, True], ids=["allow", "invite"])
def test_a_stranger_to_a_closed_run_gets_nothing(tmp_path: Path, is_by_invitation: bool) -> None:
    """It knows the run from elsewhere: its id, its topics, and the digests of its blocks."""
    world = World(tmp_path, seed=61, allowed=("a", "b"), is_by_invitation=is_by_invitation)
    manifest = decode_manifest(world.signed.manifest)
    questions = {
        RUN_PROTOCOL: frame(),
        STATEMENTS_PROTOCOL: frame(),
        CHAIN_PROTOCOL: frame(encode(ChainRequest(manifest.run_id, 0))),
        BLOCKS_PROTOCOL: frame(encode_request(digest_of(manifest.data.index_digest))),
        RING_PROTOCOL: frame(),
        RELAY_PROTOCOL: frame(),
        ROLL_PROTOCOL: frame(bytes(DIGEST_BYTES)),
        EXPULSION_PROTOCOL: frame(bytes(DIGEST_BYTES)),
    }

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(3, "a", "b")
        identity = world.identity("stranger")
        async with world.network.transport(identity) as transport:
            stranger = Rogue(transport, identity, random.Random(1), manifest)
            for topic in (*stranger.topics(), f"gossamer/{manifest.run_id.hex()}/roll"):
                transport.subscribe(topic, lambda _author, _data: True)
            for name in ("a", "b"):
                victim = world.identity(name).peer_id
                await transport.connect(world.network.addresses_of(victim)[0])
                for protocol, question in questions.items():
                    with pytest.raises(ProtocolRefused):
                        await transport.open_stream(victim, protocol)
                    assert await stranger.say(question, victim=victim, protocol=protocol) == b""
            await trio.sleep(LISTEN_SECONDS)
            received = {protocol: each[1] for protocol, each in transport.traffic().items()}
            kind = "invite" if is_by_invitation else "allow"
            measured(f"{kind}: {sum(received.values())} bytes in {LISTEN_SECONDS:.0f} s")
            assert sum(received.values()) == 0, received
            address = world.network.addresses_of(world.identity("a").peer_id)[0]
            with pytest.raises(NotAdmittedError, match=identity.peer_id):
                await request_manifest(transport, (address,), None)
        round_number = world.round("a")
        await world.reach(round_number + 3, "a", "b")
        world.assert_one_chain("a", "b")

    simulate(world, story)


def test_a_node_that_its_run_does_not_admit_says_so_before_it_trains(tmp_path: Path) -> None:
    """It has the manifest of an earlier life, or from a friend."""
    world = World(tmp_path, seed=62, allowed=("a",))

    async def story(_nursery: trio.Nursery) -> None:
        refused = pytest.RaisesExc(NotAdmittedError, match=world.identity("b").peer_id)
        with pytest.RaisesGroup(refused, flatten_subgroups=True):
            await world.run("b")

    simulate(world, story)


def test_an_answer_about_admission_is_small_and_says_nothing_else() -> None:
    assert to_msgpack(Admitted(False)) == msgspec.msgpack.encode(["admitted", False])
    assert decode_admitted(to_msgpack(Admitted(True))) == Admitted(True)
