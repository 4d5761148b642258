"""To how many peers a message of gossip goes, over both transports."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.gossip.pubsub import GuardedPubsub
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.spreading import PASSED_ON_MAX, PASSING_PEERS_MAX, num_passed_on
from gossamer.node.network.transport import Transport
from gossamer.protocol.ids import PeerId
from tests.support.memory_peer import MemoryPeer
from tests.support.memory_transport import MemoryNetwork, run_simulated

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
TOPIC = "news"


def test_a_few_copies_are_passed_on_in_a_small_swarm_and_none_in_a_large_one() -> None:
    assert [num_passed_on(n) for n in (0, 1, 3, PASSING_PEERS_MAX)] == [0, 1, 3, PASSED_ON_MAX]
    assert num_passed_on(PASSING_PEERS_MAX + 1) == 0


async def connect_all(transports: list[Transport]) -> None:
    for number, one in enumerate(transports):
        for other in transports[:number]:
            await one.connect(other.addresses()[0])


@pytest.mark.parametrize("num_peers", [4, PASSING_PEERS_MAX + 2])
def test_a_message_comes_once_in_a_large_swarm(
    num_peers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: Counter[PeerId] = Counter()
    hear = MemoryPeer.hear

    def heard(peer: MemoryPeer, topic: str, author: PeerId, data: bytes, number: int,
              sender: PeerId, times: int) -> None:  # fmt: skip
        copies[peer.peer_id] += 1
        hear(peer, topic, author, data, number, sender, times)

    monkeypatch.setattr(MemoryPeer, "hear", heard)

    async def main() -> None:
        network = MemoryNetwork()
        async with AsyncExitStack() as stack:
            transports: list[Transport] = [
                await stack.enter_async_context(network.transport(Identity.generate()))
                for _ in range(num_peers)
            ]
            for transport in transports:
                transport.subscribe(TOPIC, lambda _author, _data: True)
            await connect_all(transports)
            await transports[0].publish(TOPIC, b"hello")
            await trio.sleep(1)
            others = [transport.peer_id for transport in transports[1:]]
            assert sorted(copies) == sorted(others)
            assert max(copies.values()) == (1 if num_peers > PASSING_PEERS_MAX else 3)

    run_simulated(main)


def test_a_peer_that_names_a_topic_later_gets_its_messages_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It got each one twice: what had waited for it, and the messages of the last seconds."""
    taken: list[bytes] = []
    take = GuardedPubsub._take_rpc

    async def took(pubsub: GuardedPubsub, peer: ID, rpc: rpc_pb2.RPC, num_bytes: int) -> None:
        taken.extend(message.data for message in rpc.publish)
        await take(pubsub, peer, rpc, num_bytes)

    monkeypatch.setattr(GuardedPubsub, "_take_rpc", took)
    heard: list[bytes] = []

    async def main() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as author,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as late,
        ):
            author.subscribe(TOPIC, lambda _author, _data: True)
            await late.connect(author.addresses()[0])
            await trio.sleep(1)  # each end has the other's stream of gossip
            await author.publish(TOPIC, b"news")
            late.subscribe(TOPIC, lambda _author, data: heard.append(data))
            with trio.fail_after(20):
                while not heard:  # noqa: ASYNC110 (no event)
                    await trio.sleep(0.1)
            await trio.sleep(1)
        assert (heard, taken) == ([b"news"], [b"news"])

    trio.run(main)


@pytest.mark.long
def test_a_message_over_libp2p_comes_with_nothing_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """py-libp2p tells the whole mesh of each message by an IDONTWANT, and adds a signed record of
    addresses to each."""
    taken: list[rpc_pb2.RPC] = []
    take = GuardedPubsub._take_rpc

    async def took(pubsub: GuardedPubsub, peer: ID, rpc: rpc_pb2.RPC, num_bytes: int) -> None:
        taken.append(rpc)
        await take(pubsub, peer, rpc, num_bytes)

    monkeypatch.setattr(GuardedPubsub, "_take_rpc", took)
    num_peers = PASSING_PEERS_MAX + 2
    heard: Counter[bytes] = Counter()

    def hear(_author: PeerId, data: bytes) -> bool:
        heard[data] += 1
        return True

    async def main() -> None:
        with trio.fail_after(60):
            async with AsyncExitStack() as stack:
                transports: list[Transport] = [
                    await stack.enter_async_context(
                        open_libp2p_transport(Identity.generate(), LOOPBACK)
                    )
                    for _ in range(num_peers)
                ]
                for transport in transports:
                    transport.subscribe(TOPIC, hear)
                await connect_all(transports)
                number = 0
                while heard[b"%d" % number] < num_peers - 1:  # subscriptions take a moment
                    number += 1
                    await transports[0].publish(TOPIC, b"%d" % number)
                    await trio.sleep(1)
                taken.clear()
                await transports[0].publish(TOPIC, b"hello")
                while heard[b"hello"] < num_peers - 1:  # noqa: ASYNC110 (no event)
                    await trio.sleep(0.1)
                await trio.sleep(0.5)
        assert len([rpc for rpc in taken if rpc.publish]) == num_peers - 1
        assert not any(rpc.senderRecord for rpc in taken if rpc.publish)
        assert not any(rpc.control.idontwant for rpc in taken)

    trio.run(main)
