"""What one peer's questions make gossip send, and what gossip keeps."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.mcache import default_msg_id_fn
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.rpc_queue import RpcQueue
from trio.testing import MockClock

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.gossip.checks import MESSAGES_PER_RPC_MAX, check_entries
from gossamer.node.network.over_libp2p.gossip.router import (
    ANSWER_BYTES_MAX,
    BACK_OFFS_MAX,
    CACHE_BYTES_MAX,
    QUEUE_BYTES_MAX,
    GuardedGossipSub,
)
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.protocol.errors import OversizedError
from gossamer.protocol.limits import GOSSIP_BYTES_MAX, KIB

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
PEER, OTHER = ID(b"peer"), ID(b"other")
TOPIC = "news"


class Pubsub:
    """The part of the pubsub service that answers use."""

    def __init__(self) -> None:
        self.peer_queues = {peer: RpcQueue(max_size=1000) for peer in (PEER, OTHER)}

    def sent(self, peer: ID) -> list[bytes]:
        """The ids of the messages that a peer was sent, which are then forgotten."""
        queue, ids = self.peer_queues[peer], []
        while len(queue):
            rpc = queue._queue.pop()
            assert rpc is not None
            ids += [default_msg_id_fn(message) for message in rpc.publish]
        return ids


def router_with(*sizes: int) -> tuple[Any, Pubsub, list[bytes]]:
    """A router that keeps messages of these sizes; and their ids."""
    router: Any = GuardedGossipSub([], 1, 1, 1)
    pubsub = router.pubsub = Pubsub()
    for number, size in enumerate(sizes):
        router.mcache.put(message_of(number, size))
    return router, pubsub, list(router.mcache.msgs)


def message_of(number: int, size: int) -> rpc_pb2.Message:
    return rpc_pb2.Message(
        from_id=b"author", seqno=number.to_bytes(4, "big"), data=bytes(size), topicIDs=[TOPIC]
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def _within(field: int, body: bytes) -> bytes:
    """A field of protobuf whose content is a message."""
    return bytes([field << 3 | 2]) + _varint(len(body)) + body


def ask(router: Any, peer: ID, ids: list[bytes]) -> None:
    async def main() -> None:
        await router.handle_iwant(rpc_pb2.ControlIWant(messageIDs=ids), peer)

    trio.run(main)


def test_a_message_that_is_asked_for_a_thousand_times_is_sent_once() -> None:
    copies: list[rpc_pb2.Message] = []

    async def main() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as client,
        ):
            router: Any = server._pubsub.router
            server.subscribe(TOPIC, lambda _author, _data: None)
            await server.publish(TOPIC, bytes(64 * KIB))
            [wanted] = list(router.mcache.msgs)
            peer = ID.from_base58(await client.connect(server.addresses()[0]))
            while not server._pubsub.peer_queues:  # noqa: ASYNC110 - no event tells of it
                await trio.sleep(0.01)
            handle_rpc, answered = router.handle_rpc, trio.Event()

            async def handle(rpc: rpc_pb2.RPC, sender: ID) -> None:
                router.send_rpc = lambda _peer, answer: copies.extend(answer.publish)
                await handle_rpc(rpc, sender)
                if rpc.control.iwant:
                    answered.set()

            router.handle_rpc = handle
            rpc = rpc_pb2.RPC()
            for _ in range(16):
                rpc.control.iwant.add(messageIDs=[wanted.hex().encode()] * 64)
            body = rpc.SerializeToString()
            stream = await client._host.new_stream(peer, client._pubsub.protocols)
            await stream.write(_varint(len(body)) + body)
            with trio.fail_after(30):
                await answered.wait()

    trio.run(main)
    assert len(copies) == 1


def test_what_waits_for_a_peer_that_does_not_read_is_bounded_in_bytes() -> None:
    """Thirty-two of the largest messages waited for each peer."""
    router, pubsub, _ = router_with()
    queue = pubsub.peer_queues[PEER]
    largest = rpc_pb2.RPC(publish=[message_of(1, GOSSIP_BYTES_MAX)])
    for _ in range(32):
        router.send_rpc(PEER, largest)
        router.send_rpc(OTHER, rpc_pb2.RPC(publish=[message_of(2, KIB)]))
    assert 1 <= len(queue) <= QUEUE_BYTES_MAX // GOSSIP_BYTES_MAX
    assert len(pubsub.peer_queues[OTHER]) == 32
    pubsub.sent(PEER)
    router.send_rpc(PEER, largest)
    assert len(queue) == 1


def test_one_id_in_several_spellings_is_one_message() -> None:
    router, pubsub, [wanted] = router_with(100)
    ask(router, PEER, [wanted, wanted.hex().encode(), wanted.hex().upper().encode()])
    assert pubsub.sent(PEER) == [wanted]


def test_questions_of_one_peer_are_answered_with_one_rpc_a_heartbeat() -> None:
    router, pubsub, ids = router_with(*[60 * KIB] * 40)
    answered = ANSWER_BYTES_MAX // (60 * KIB)
    ask(router, PEER, ids)
    assert pubsub.sent(PEER) == ids[:answered]
    ask(router, PEER, ids[answered:])
    assert pubsub.sent(PEER) == []
    ask(router, OTHER, ids[:1])  # another peer has an answer of its own
    assert pubsub.sent(OTHER) == ids[:1]
    router._prune_idontwant_entries()  # as each heartbeat does
    ask(router, PEER, ids[answered:])
    assert pubsub.sent(PEER) == ids[answered : 2 * answered]


def test_an_answer_names_no_addresses_and_waits_for_no_clock() -> None:
    router, pubsub, [wanted] = router_with(100)
    for _ in range(20):
        ask(router, PEER, [b"unknown"])
    ask(router, PEER, [wanted])
    rpc = pubsub.peer_queues[PEER]._queue.pop()
    assert rpc is not None
    assert not rpc.senderRecord


_MANY = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x00" * _MANY,  # subscriptions
        *(_within(3, bytes([field << 3 | 2, 0]) * _MANY) for field in (1, 2, 3, 4, 5)),  # control
        *(_within(3, _within(field, b"\x0a\x00" * _MANY)) for field in (2, 5)),  # ids
        _within(3, _within(4, b"\x12\x00" * _MANY)),  # peers of a PRUNE
        _within(2, b"\x22\x00" * _MANY),  # topics of a message
    ],
)
def test_an_rpc_of_many_empty_entries_is_refused_before_it_waits(body: bytes) -> None:
    """Its objects take thirty times its bytes, for as long as it waits for its turn."""
    rpc = rpc_pb2.RPC.FromString(body)
    with pytest.raises(OversizedError):
        check_entries(rpc, len(body))


def test_an_rpc_of_many_ids_and_topics_passes() -> None:
    """A heartbeat names all messages of some seconds, in as many bytes as an RPC may have."""
    rpc = rpc_pb2.RPC()
    ids = [number.to_bytes(46, "big") for number in range(20_000)]
    rpc.control.ihave.add(topicID=TOPIC, messageIDs=ids)
    rpc.publish.extend(message_of(number, 10) for number in range(MESSAGES_PER_RPC_MAX))
    check_entries(rpc, rpc.ByteSize())


def test_peers_that_come_prune_and_go_are_not_kept_for_ever() -> None:
    router, _, _ = router_with()
    router.mesh[TOPIC] = set()

    async def main() -> None:
        for number in range(3 * BACK_OFFS_MAX):
            prune = rpc_pb2.ControlPrune(topicID=TOPIC, backoff=60)
            await router.handle_prune(prune, ID(number.to_bytes(4, "big")))
        assert len(router.back_off[TOPIC]) == BACK_OFFS_MAX
        assert router._check_back_off(ID((3 * BACK_OFFS_MAX - 1).to_bytes(4, "big")), TOPIC)
        clock.jump(61.0)
        await router.handle_prune(rpc_pb2.ControlPrune(topicID=TOPIC, backoff=60), PEER)
        assert list(router.back_off[TOPIC]) == [PEER]

    clock = MockClock()
    trio.run(main, clock=clock)


def test_the_messages_that_are_kept_are_bounded_in_bytes_and_the_newest_stay() -> None:
    num_messages = 2 * CACHE_BYTES_MAX // (256 * KIB)
    router, _, ids = router_with(*[256 * KIB] * num_messages)
    assert sum(each.ByteSize() for each in router.mcache.msgs.values()) <= CACHE_BYTES_MAX
    assert num_messages // 3 < len(ids) < num_messages
    assert ids[-1] == default_msg_id_fn(message_of(num_messages - 1, 0))
    assert router.mcache.window(TOPIC) == ids


def test_small_messages_that_are_kept_count_with_what_they_cost() -> None:
    router, _, _ = router_with(*[1] * 100_000)
    assert len(router.mcache.msgs) < 100_000


def test_what_has_left_the_history_makes_room() -> None:
    router, _, _ = router_with(*[256 * KIB] * 20)
    for _ in range(router.mcache.history_size):
        router.mcache.shift()
    assert not router.mcache.msgs
    assert router.mcache.num_bytes == 0
    for number in range(100, 120):
        router.mcache.put(message_of(number, 256 * KIB))
    assert len(router.mcache.msgs) == 20
