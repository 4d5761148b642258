"""Peers that ask for much and read next to nothing: what a node holds in memory for them."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from gossamer.node.network.frames import receive_message, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import digest_of
from gossamer.protocol.limits import MIB
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, ChainRequest
from tests.support.builders import RUN_ID, announce, peers, sealed
from tests.support.gossip_listener import OpenListener
from tests.support.measured import measured
from tests.support.memory_peer import MemoryPeer
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.pruned_runs import Member

NUM_READERS = 40
STREAMS = 4
"""Of each reader: as many as one may open."""

SLOW_BYTES_PER_SECOND = 2000.0
READING_SECONDS = 5.0
PAGE_BYTES_MIN = 100_000
"""Pieces of memory that are longer are pages: the network in memory cuts what it carries into
shorter ones."""

HELD_BYTES_MAX = 20 * MIB
NEWCOMER_SECONDS = 10.0
"""Within so long a reader on a usual line has its page, as it asks for it (`REQUEST_SECONDS`)."""

Offers = Callable[[MemoryPeer, Path], bytes]
"""Lets a node serve pages, and returns the question for one."""


def records(server: MemoryPeer, folder: Path) -> bytes:
    member = Member(folder, server, num_members=64)
    member.advance(20)
    return to_msgpack(ChainRequest(member.committed.head, 0))


def statements(server: MemoryPeer, _folder: Path) -> bytes:
    identity = identity_of(0)
    gossip = Gossip(server, identity, RUN_ID, OpenListener(), random.Random(1))
    said = announce(addresses=tuple(f"/ip4/192.0.2.1/tcp/{number:0100}" for number in range(8)))
    for author in peers(300):
        gossip.statement_store.post(sealed(author, said), said)
    gossip.start()
    return b""


def identity_of(number: int) -> Identity:
    return Identity.from_seed(digest_of(b"reader %d" % number))


def held_bytes() -> int:
    """Bytes of all pages that are in memory."""
    sizes = (trace.size for trace in tracemalloc.take_snapshot().traces)
    return sum(size for size in sizes if size > PAGE_BYTES_MIN)


async def ask(client: MemoryPeer, server: MemoryPeer, protocol: str, question: bytes) -> int:
    """Asks once, and returns the bytes of the answer."""
    stream = await client.open_stream(server.peer_id, protocol)
    await send_frame(stream, question)
    answer = await receive_message(stream)
    await stream.reset()
    return len(answer)


async def again_and_again(question: Callable[[], Awaitable[int]]) -> None:
    while True:
        try:
            await question()
        except TransportError:
            await trio.sleep(0.5)


@pytest.mark.parametrize(
    ("protocol", "offers"), [(CHAIN_PROTOCOL, records), (STATEMENTS_PROTOCOL, statements)]
)
def test_slow_readers_fill_no_memory_and_keep_no_newcomer_waiting(
    tmp_path: Path, protocol: str, offers: Offers
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with network.transport(identity_of(0)) as server, trio.open_nursery() as nursery:
            question = offers(server, tmp_path)
            address = network.addresses_of(server.peer_id)[0]

            async def read(number: int) -> None:
                identity = identity_of(number)
                async with network.transport(identity) as client, trio.open_nursery() as streams:
                    line = network.link(server.peer_id, identity.peer_id)
                    line.bytes_per_second = SLOW_BYTES_PER_SECOND
                    await client.connect(address)
                    for _ in range(STREAMS):
                        streams.start_soon(
                            again_and_again, lambda: ask(client, server, protocol, question)
                        )

            for number in range(1, NUM_READERS + 1):
                nursery.start_soon(read, number)
            await trio.sleep(READING_SECONDS)
            held = held_bytes()
            newcomer = identity_of(NUM_READERS + 1)
            async with network.transport(newcomer) as client:
                await client.connect(address)
                with trio.fail_after(NEWCOMER_SECONDS):
                    num_bytes = await ask(client, server, protocol, question)
            measured(
                f"{NUM_READERS * STREAMS} slow readers of {protocol}: {held / 1e6:.0f} MB in "
                f"pages of {num_bytes} bytes"
            )
            assert num_bytes > PAGE_BYTES_MIN
            assert held <= HELD_BYTES_MAX
            nursery.cancel_scope.cancel()

    tracemalloc.start()
    try:
        run_simulated(main)
    finally:
        tracemalloc.stop()
