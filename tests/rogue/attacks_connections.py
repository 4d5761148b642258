"""Attacks of a rogue below the streams, on the real network: connections, muxing, gossip."""

from __future__ import annotations

import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX

from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.transport import TransportError
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.envelopes import seal
from tests.rogue.rogue import Rogue

HOLD_SECONDS = 4.0
SILENT_CONNECTIONS = 300
MULTISTREAM = b"\x13/multistream/1.0.0\n"

Attack = Callable[[Rogue, list[PeerId]], Awaitable[None]]


async def silent_connections(rogue: Rogue, victims: list[PeerId]) -> None:
    """Three hundred TCP connections that say nothing, or begin a handshake and stop."""
    beginnings = [b"", MULTISTREAM[:5], MULTISTREAM, MULTISTREAM + b"\x07/noise\n", b"\x00" * 50]
    async with AsyncExitStack() as stack:
        for number in range(SILENT_CONNECTIONS):
            with suppress(OSError, trio.BrokenResourceError):  # turned away
                port = _port(rogue, victims[number % len(victims)])
                stream = await _tcp_stream(port)
                stack.push_async_callback(stream.aclose)
                await stream.send_all(beginnings[number % len(beginnings)])
        await trio.sleep(HOLD_SECONDS)


async def _tcp_stream(port: int) -> trio.SocketStream:
    """A connection from a network of its own: newcomers of one network share their places."""
    source = "127.9.9.9" if sys.platform == "linux" else None
    return await trio.open_tcp_stream("127.0.0.1", port, local_address=source)


async def endless_negotiation(rogue: Rogue, victims: list[PeerId]) -> None:
    """A name of a terabyte, before it has said who it is, and on a stream."""
    endless = b"\x80\x80\x80\x80\x80\x20"

    async def push(victim: PeerId) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            stream = await _tcp_stream(_port(rogue, victim))
            async with stream:
                await stream.send_all(MULTISTREAM + endless)
                for _ in range(64):
                    await stream.send_all(bytes(2**20))

    async def push_on_stream(victim: PeerId) -> None:
        with suppress(Exception):
            stream = await _connection(rogue, victim).open_stream()
            await stream.send(MULTISTREAM + endless)
            for _ in range(64):
                await stream.send(bytes(2**20))

    async with trio.open_nursery() as nursery:
        for victim in victims:
            for _ in range(4):
                nursery.start_soon(push, victim)
                nursery.start_soon(push_on_stream, victim)


async def broken_muxing(rogue: Rogue, victims: list[PeerId]) -> None:
    """Frames of no version, streams that are not its to open, and far more data than allowed."""
    header = struct.Struct("!BBHII")
    for victim in victims:
        for garbage in (
            header.pack(9, 0, 0, 1, 0),
            header.pack(0, 77, 0, 1, 0),
            header.pack(0, 1, 1, 2**31, 0),
            bytes([255]) * 12,
            b"",
        ):
            with suppress(TransportError, IndexError):
                await rogue.transport.connect(_address(rogue, victim))
                connection = _connection(rogue, victim)
                if garbage:
                    connection.writer.add_control(garbage)
                else:
                    stream = await connection.open_stream()
                    stream.send_window = 2**30
                    with trio.move_on_after(2.0), suppress(Exception):
                        await stream.send(MULTISTREAM, bytes(64 * 2**20))
                with trio.move_on_after(2.0):
                    await connection.event_closed.wait()


async def streams_opened_and_reset(rogue: Rogue, victims: list[PeerId]) -> None:
    """Thousands, as fast as it can."""
    for victim in victims:
        connection = _connection(rogue, victim)
        for _ in range(3000):
            if not connection.is_established:
                break
            stream = await connection.open_stream()
            stream.abort()


async def broken_rpcs(rogue: Rogue, victims: list[PeerId]) -> None:
    """Bytes on the gossip stream itself: no RPCs, ten thousand messages at once, forged ones, and
    others that make the victim keep data that it should not keep, or dial peers that it should not
    dial."""
    many = rpc_pb2.RPC(publish=[rpc_pb2.Message(topicIDs=[rogue.topics()[0]])] * 10_000)
    topics = rpc_pb2.RPC()
    for number in range(5000):
        topics.subscriptions.add(subscribe=True, topicid=f"{number}" * 20)
    prune = rpc_pb2.RPC()
    for number in range(1000):
        entry = prune.control.prune.add(topicID=f"{number}" * 20, backoff=2**40)
        entry.peers.add(peerID=ID.from_base58(rogue.me).to_bytes(), signedPeerRecord=b"\xff" * 90)
    ids = rpc_pb2.RPC()
    ids.control.ihave.add(
        topicID=rogue.topics()[0], messageIDs=[bytes([n]) * 5000 for n in range(99)]
    )
    ids.control.iwant.add(messageIDs=[rogue.noise(46) for _ in range(5000)])
    forged = rpc_pb2.RPC(publish=[_message(rogue, b"\x00", forged=True)] * 3)
    large = _message(rogue, b"\x00")
    large.seqno = bytes(500_000)
    bodies = [
        _varint(2**40),
        _prefixed(b"\xff" * 100),
        _prefixed(many.SerializeToString()),
        _prefixed(topics.SerializeToString()),
        _prefixed(prune.SerializeToString()),
        _prefixed(ids.SerializeToString()),
        _prefixed(forged.SerializeToString()),
        _prefixed(rpc_pb2.RPC(publish=[large]).SerializeToString()),
    ]
    for victim in victims:
        for body in bodies:
            await _say_rpc(rogue, victim, body)


async def flood_of_strangers(rogue: Rogue, victims: list[PeerId]) -> None:
    """It seems to pass on what thousands of unknown peers said."""
    head = await rogue.head(victims[0])
    bodies: list[bytes] = []
    for number in range(4000):
        stranger = rogue.strangers[number % len(rogue.strangers)]
        announce = rogue.announce(head, sequence=number)
        signed = seal(announce, stranger.peer_id, rogue.run_id, stranger.sign)
        message = _message(rogue, b"\x00" + to_msgpack(signed), author=stranger, count=number)
        bodies.append(_prefixed(rpc_pb2.RPC(publish=[message]).SerializeToString()))
    async with trio.open_nursery() as nursery:
        for victim in victims:
            nursery.start_soon(_say_rpc, rogue, victim, b"".join(bodies))


ATTACKS: dict[Attack, str | None] = {
    silent_connections: None,
    endless_negotiation: None,
    broken_muxing: "protocol",
    streams_opened_and_reset: None,
    broken_rpcs: "malformed",
    flood_of_strangers: None,
}


async def enter(rogue: Rogue, victims: list[PeerId]) -> None:
    """Connects to the victims, whose addresses the rogue has, and takes part in their gossip.

    Raises:
        TransportError: a victim does not let it in.
    """
    for victim in victims:
        await rogue.transport.connect(_address(rogue, victim))
    await rogue.learn_run(victims[0])
    await join_gossip(rogue, victims)


async def join_gossip(rogue: Rogue, victims: list[PeerId]) -> None:
    """Returns when what the rogue publishes reaches the victims."""
    mesh = _host(rogue)._pubsub.router.mesh
    for topic in rogue.topics():
        for victim in victims:
            while ID.from_base58(victim) not in mesh.get(topic, ()):  # noqa: ASYNC110
                await trio.sleep(0.05)


def _host(rogue: Rogue) -> Any:
    assert isinstance(rogue.transport, Libp2pTransport)
    return rogue.transport


def _connection(rogue: Rogue, victim: PeerId) -> YamuxConnection:
    """The rogue's own end, to be ill-treated. IndexError without one."""
    connections = _host(rogue)._swarm.get_connections(ID.from_base58(victim))
    muxed = [connection.muxed_conn for connection in connections]
    return [one for one in muxed if isinstance(one, YamuxConnection) and one.is_established][-1]


def _address(rogue: Rogue, victim: PeerId) -> str:
    return rogue.addresses[victim]


def _port(rogue: Rogue, victim: PeerId) -> int:
    return int(_address(rogue, victim).split("/")[4])


async def _say_rpc(rogue: Rogue, victim: PeerId, body: bytes) -> None:
    with suppress(Exception), trio.move_on_after(HOLD_SECONDS):
        await rogue.transport.connect(_address(rogue, victim))
        host = _host(rogue)._host
        stream = await host.new_stream(ID.from_base58(victim), _host(rogue)._pubsub.protocols)
        await stream.write(body)
        await trio.sleep(0.2)
        await stream.reset()


def _message(
    rogue: Rogue, data: bytes, *, author: Any = None, forged: bool = False, count: int = 0
) -> rpc_pb2.Message:
    identity = author or rogue.identity
    message = rpc_pb2.Message(
        data=data,
        topicIDs=[rogue.topics()[0]],
        from_id=ID.from_base58(identity.peer_id).to_bytes(),
        seqno=count.to_bytes(8, "big"),
    )
    signed = PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString()
    message.signature = bytes(64) if forged else identity.sign(signed)
    return message


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _prefixed(body: bytes) -> bytes:
    return _varint(len(body)) + body
