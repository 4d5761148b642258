"""The two readers under the streams that are ours: yamux frames, and gossip RPCs."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import StreamClosed
from gossamer.protocol.errors import RemoteProtocolError
from tests.fuzz.scripted import ROGUE, ScriptedStream
from tests.support.mutations import anything
from tests.support.quiet_yamux import NoSocket, quiet_connection

HEADER = struct.Struct("!BBHII")


def frame(kind: int, flags: int, stream: int, length: int, body: bytes = b"") -> bytes:
    return HEADER.pack(0, kind, flags, stream, length) + body


FRAMES = [
    frame(1, 1, 1, 0) + frame(0, 0, 1, 5, b"hello") + frame(0, 4, 1, 0),
    frame(0, 1, 3, 3, b"abc") + frame(1, 8, 3, 0) + frame(2, 1, 0, 77) + frame(2, 2, 0, 1),
    frame(1, 0, 9, 2**32 - 1) + frame(0, 0, 9, 2**32 - 1, b"x" * 50),
    frame(3, 0, 0, 1),
]


@given(st.lists(anything(FRAMES, is_msgpack=False), min_size=1, max_size=5))
def test_yamux_frames(pieces: list[bytes]) -> None:
    """Frames may come in any pieces: the connection ends, or its streams keep their bounds."""

    async def feed() -> None:
        session: Any = SimpleNamespace(is_initiator=False, socket=NoSocket())
        connection = quiet_connection(session, ID.from_base58(ROGUE.peer_id))
        try:
            for piece in pieces:
                connection._cutter.feed(memoryview(piece))
        except ConnectionClosedError:
            pass
        assert sum(stream._buffered for stream in connection.streams.values()) <= 5 * 3000

    trio.run(feed)


def _examples() -> list[bytes]:
    message = rpc_pb2.Message(
        data=b"news",
        topicIDs=["topic"],
        from_id=ID.from_base58(ROGUE.peer_id).to_bytes(),
        seqno=bytes(8),
        signature=bytes(64),
    )
    rpc = rpc_pb2.RPC(publish=[message])
    rpc.subscriptions.add(subscribe=True, topicid="topic")
    rpc.control.ihave.add(topicID="topic", messageIDs=[b"x" * 46])
    rpc.control.iwant.add(messageIDs=[b"x" * 46, b"\xff"])
    rpc.control.graft.add(topicID="topic")
    prune = rpc.control.prune.add(topicID="topic", backoff=2**63)
    prune.peers.add(peerID=b"?", signedPeerRecord=b"?")
    rpc.control.idontwant.add(messageIDs=[b"y" * 300])
    empty = rpc_pb2.RPC(publish=[rpc_pb2.Message()] * 3)
    return [rpc.SerializeToString(), message.SerializeToString(), empty.SerializeToString()]


def _prefixed(body: bytes) -> bytes:
    length, prefix = len(body), bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + body


@settings(max_examples=max(5, settings().max_examples // 20))  # each opens a transport
@given(st.lists(anything(_examples(), is_msgpack=False), min_size=20, max_size=20), st.randoms())
def test_gossip_rpcs(bodies: list[bytes], draw: Any) -> None:
    async def hear() -> None:
        async with open_libp2p_transport(Identity.generate(), []) as transport:
            transport.subscribe("topic", lambda _author, _data: True)
            await trio.testing.wait_all_tasks_blocked()
            pubsub: Any = transport._pubsub
            peer = ID.from_base58(ROGUE.peer_id)
            for body in bodies:
                data = _prefixed(body) if draw.random() < 0.9 else body
                stream: Any = ScriptedStream(data)
                try:
                    while True:
                        num_bytes, rpc = await pubsub._read_rpc(stream)
                        await pubsub._take_rpc(peer, rpc, num_bytes)
                except (StreamClosed, RemoteProtocolError):
                    pass
            await trio.testing.wait_all_tasks_blocked()  # what it started has not failed either
            assert len(pubsub.peer_topics) <= 16

    trio.run(hear)
