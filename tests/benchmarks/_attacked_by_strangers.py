"""Rows of `attacked_daemons` in which strangers do harm: they have a connection, and no work."""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import trio

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import ProtocolRefused, Stream, TransportError
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.limits import CHUNK_ELEMENTS_MAX
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_request
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, ChainRequest
from gossamer.protocol.wire.run_messages import RUN_PROTOCOL
from tests.benchmarks._attacked_swarm import (
    LOOPBACK,
    Swarm,
    attack_for,
    manifest_of,
    manifest_text,
)
from tests.rogue import attacks_connections
from tests.rogue.rogue import Rogue, encode, frame
from tests.support.daemons import PATIENCE_SECONDS

LISTEN_SECONDS = 10.0
"""Time for which a stranger listens."""

HUGE_LAYERS = 180
"""Of a model of some ten billion parameters."""


def stranger(folder: Path, local: LocalSwarm) -> str:
    """H2: a peer that an allow list does not name asks for all that there is."""
    friend = Identity.generate().peer_id
    lines = f'admission = "allow"\nallowed = ["{friend}"]'
    swarm = Swarm(folder, local, manifest_text(lines))
    manifest = manifest_of(swarm.founder)
    questions = {
        RUN_PROTOCOL: frame(),
        CHAIN_PROTOCOL: frame(encode(ChainRequest(manifest.run_id, 0))),
        BLOCKS_PROTOCOL: frame(encode_request(Digest(manifest.data.index_digest))),
    }
    victim = PeerId(manifest.founder)

    async def main() -> tuple[int, int]:
        identity = Identity.generate()
        async with open_libp2p_transport(identity, [LOOPBACK]) as transport:
            await transport.connect(swarm.address)
            rogue = Rogue(transport, identity, random.Random(0), manifest)
            for topic in rogue.topics():
                transport.subscribe(topic, lambda _author, _data: True)
            refused = 0
            for protocol, question in questions.items():
                try:
                    await transport.open_stream(victim, protocol)
                except (ProtocolRefused, TransportError):
                    refused += 1
                await rogue.say(question, victim=victim, protocol=protocol)
            await trio.sleep(LISTEN_SECONDS)
            return refused, sum(received for _, received in transport.traffic().values())

    refused, num_bytes = trio.run(main)
    asked = f"{refused} of {len(questions)} protocols refused"
    return f"{asked}, {num_bytes} bytes in {LISTEN_SECONDS:.0f} s"


def too_large(folder: Path, local: LocalSwarm) -> str:
    """H5: the manifest of a model that no home machine can hold."""
    swarm = Swarm(folder, local)
    small = manifest_of(swarm.founder)
    identity = Identity.generate()
    model = msgspec.structs.replace(
        small.model, num_layers=HUGE_LAYERS, width=2048, hidden_width=8192, num_heads=16
    )
    outer = msgspec.structs.replace(small.outer, chunk_elements=CHUNK_ELEMENTS_MAX)
    huge = msgspec.structs.replace(small, founder=identity.peer_id, model=model, outer=outer)
    signature = identity.sign(signing_bytes(huge.run_id))
    signed = SignedManifest(manifest=encode_manifest(huge), signature=signature)

    async def serve(stream: Stream) -> None:
        await receive_frame(stream)
        await send_frame(stream, b"", to_msgpack(signed))
        await stream.close()

    async def main() -> tuple[int | None, float, int]:
        async with open_libp2p_transport(identity, [LOOPBACK]) as transport:
            transport.handle(RUN_PROTOCOL, serve)
            began = time.monotonic()
            node = local.join(transport.addresses()[0], "--yes")
            assert node.process is not None
            process, largest = psutil.Process(node.process.pid), 0
            while node.is_running and time.monotonic() - began < PATIENCE_SECONDS:
                with suppress(psutil.Error):
                    largest = max(largest, process.memory_info().rss)
                await trio.sleep(0.02)
            print(node.tail(1), file=sys.stderr)
            return node.process.poll(), time.monotonic() - began, largest

    status, seconds, largest = trio.run(main)
    return (
        f"{huge.model.num_parameters / 1e9:.1f} B parameters: ends with {status} after "
        f"{seconds:.1f} s and {largest / 1e6:.0f} MB"
    )


def newcomer(folder: Path, local: LocalSwarm) -> str:
    """H6: three hundred connections of strangers that say nothing, and a newcomer beside them."""
    swarm = Swarm(folder, local)
    swarm.join(1)
    found: list[float] = []

    async def join(rogue: Rogue, victims: list[PeerId]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attacks_connections.silent_connections, rogue, victims)
            await trio.sleep(1.0)
            began = time.monotonic()
            node = local.join(swarm.address, "--yes")
            await trio.to_thread.run_sync(
                lambda: node.wait_for(lambda s: s.round > 0, PATIENCE_SECONDS, "round")
            )
            found.append(time.monotonic() - began)
            nursery.cancel_scope.cancel()

    trio.run(attack_for, swarm, join, PATIENCE_SECONDS)
    if not found:
        return "nobody came in"
    return f"a newcomer is at the run's head {min(found):.1f} s after its start"
