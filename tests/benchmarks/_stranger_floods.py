"""What strangers do to a daemon below each of its limits, for `below_limits`.

Each function is the life of one process of strangers: it gets the victim's address and the number
of identities, and never returns. An identity connects as a node does, from an address of its own.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from gossamer.node.network.frames import send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.stream import (
    HEADER,
    PING,
    SYN,
    WINDOW_UPDATE,
)
from gossamer.node.network.transport import Transport, TransportError
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL
from gossamer.protocol.wire.run_messages import RUN_PROTOCOL
from tests.rogue import attacks_connections
from tests.rogue.rogue import Rogue

Flood = Callable[[str, int], Awaitable[None]]

HOSTS_OF_A_NETWORK = 100
"""Strangers of one network: it may have 128 connections."""


def source(number: int) -> str:
    """The address from which a stranger dials."""
    return f"127.{50 + number // HOSTS_OF_A_NETWORK}.0.{1 + number % HOSTS_OF_A_NETWORK}"


@asynccontextmanager
async def stranger(address: str, number: int) -> AsyncIterator[tuple[Transport, PeerId]]:
    """One identity that is connected to the victim."""
    listen = [f"/ip4/{source(number)}/tcp/0"]
    async with open_libp2p_transport(Identity.generate(), listen) as transport:
        while True:
            try:
                peer = await transport.connect(address)
            except TransportError:
                await trio.sleep(0.5)
            else:
                break
        yield transport, peer


def connection_of(transport: Transport, victim: PeerId) -> YamuxConnection:
    """The stranger's own end."""
    rogue = Rogue(transport, Identity.generate(), random.Random(0))
    return attacks_connections._connection(rogue, victim)


async def each(
    address: str, number: int, act: Callable[[Transport, PeerId], Awaitable[None]]
) -> None:
    """Lets one identity act, again and again, and come back when its connection has ended."""
    while True:
        with suppress(TransportError, IndexError, ExceptionGroup, OSError):
            async with stranger(address, number) as (transport, victim):
                await act(transport, victim)
        await trio.sleep(0.5)


async def all_of(
    act: Callable[[Transport, PeerId], Awaitable[None]], address: str, identities: int
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(identities):
            nursery.start_soon(each, address, number, act)
            await trio.sleep(0.05)


# Frames of yamux


async def _frames(transport: Transport, victim: PeerId, frame: bytes, a_second: int) -> None:
    """Frames without a body, each in a message of its own, in even portions."""
    connection = connection_of(transport, victim)
    session = connection.secured_conn
    portion = max(1, a_second // 20)
    while connection.is_established:
        due = trio.current_time() + portion / a_second
        left = portion
        while left:
            now, left = min(left, 400), max(0, left - 400)
            for _ in range(now):
                session.seal(frame)
            await session.flush()
        await trio.sleep_until(due)


async def nothing(_transport: Transport, _victim: PeerId) -> None:
    """The identities are only there."""
    await trio.sleep_forever()


async def small_frames(transport: Transport, victim: PeerId) -> None:
    """Window updates of a stream that is not there, just below the rate of a connection."""
    await _frames(transport, victim, HEADER.pack(0, WINDOW_UPDATE, 0, 77, 2**32 - 1), 3900)


async def pings(transport: Transport, victim: PeerId) -> None:
    await _frames(transport, victim, HEADER.pack(0, PING, SYN, 0, 1), 3900)


async def opened_streams(transport: Transport, victim: PeerId) -> None:
    """Streams that are opened and reset at once, just below the rate of a connection."""
    connection = connection_of(transport, victim)
    while connection.is_established:
        for _ in range(5):
            stream = await connection.open_stream()
            await trio.lowlevel.checkpoint()
            stream.abort()
        await trio.sleep(0.11)


async def windows(transport: Transport, victim: PeerId, words: bytes) -> None:
    """Fills the windows of as many streams as it gets."""
    connection = connection_of(transport, victim)

    async def fill() -> None:
        while connection.is_established:
            with suppress(Exception):
                stream = await connection.open_stream()
                try:
                    stream.outbox.clear()
                    await stream.send(words)
                    with trio.move_on_after(60.0):
                        while True:
                            await stream.send(bytes(64 * 1024))
                finally:
                    stream.abort()
            await trio.sleep(2.0)

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(fill)


MULTISTREAM = b"\x13/multistream/1.0.0\n"


def _asks(protocol: str) -> bytes:
    words = protocol.encode() + b"\n"
    return MULTISTREAM + bytes([len(words)]) + words


async def identify(transport: Transport, victim: PeerId) -> None:
    """Asks who the victim is, as often as streams may be opened."""
    connection = connection_of(transport, victim)

    async def ask() -> None:
        with suppress(Exception):
            stream = await connection.open_stream()
            await stream.send(_asks("/ipfs/id/1.0.0"))
            with trio.move_on_after(5.0):
                while True:
                    await stream.read(4096)

    async with trio.open_nursery() as nursery:
        while connection.is_established:
            for _ in range(5):
                nursery.start_soon(ask)
            await trio.sleep(0.11)


async def reconnects(address: str, identities: int) -> None:
    """Handshakes that come to their end, and a goodbye, as fast as it goes."""

    async def one(number: int) -> None:
        while True:
            with suppress(TransportError, ExceptionGroup, OSError):
                listen = [f"/ip4/{source(number)}/tcp/0"]
                async with open_libp2p_transport(Identity.generate(), listen) as transport:
                    await transport.connect(address)
            await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        for number in range(identities):
            nursery.start_soon(one, number)


async def comparisons(transport: Transport, victim: PeerId) -> None:
    """Comparisons of statements, just below the rate of an asker."""
    while True:
        with trio.move_on_after(2.0), suppress(Exception):
            stream = await transport.open_stream(victim, STATEMENTS_PROTOCOL)
            try:
                await send_frame(stream, b"")
                await stream.receive_exactly(8)
            finally:
                with trio.CancelScope(shield=True):
                    await stream.reset()
        await trio.sleep(0.125)


async def trickles(transport: Transport, victim: PeerId) -> None:
    """A byte a second on streams of each protocol."""

    async def one(protocol: str) -> None:
        while True:
            with suppress(Exception):
                stream = await transport.open_stream(victim, protocol)
                while True:
                    await stream.send(b"\0")
                    await trio.sleep(1.0)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        for protocol in (STATEMENTS_PROTOCOL, BLOCKS_PROTOCOL, RUN_PROTOCOL):
            for _ in range(8):
                nursery.start_soon(one, protocol)


# Gossip


async def _spoken(
    address: str, number: int, say: Callable[[Rogue, PeerId, int], Awaitable[None]], a_second: float
) -> None:
    while True:
        with suppress(TransportError, ExceptionGroup, OSError, trio.TooSlowError):
            identity = Identity.generate()
            listen = [f"/ip4/{source(number)}/tcp/0"]
            async with open_libp2p_transport(identity, listen) as transport:
                victim = PeerId(address.rpartition("/")[2])
                rogue = Rogue(
                    transport, identity, random.Random(number), addresses={victim: address}
                )
                await attacks_connections.enter(rogue, [victim])
                count = 0
                due = trio.current_time()
                while transport.peers():
                    await say(rogue, victim, count)
                    count += 1
                    due += 1 / a_second
                    await trio.sleep_until(due)
        await trio.sleep(0.5)


async def _announcements(rogue: Rogue, victim: PeerId, count: int) -> None:
    if count % 200 == 0:
        rogue.like = await rogue.head(victim)  # type: ignore[attr-defined]
    await rogue.gossip(rogue.announce(rogue.like, phase="training"))  # type: ignore[attr-defined]


async def _readies(rogue: Rogue, victim: PeerId, count: int) -> None:
    if count % 50 == 0:
        rogue.like = await rogue.head(victim)  # type: ignore[attr-defined]
    await rogue.gossip(rogue.ready(rogue.like))  # type: ignore[attr-defined]


async def spoken(
    say: Callable[[Rogue, PeerId, int], Awaitable[None]],
    a_second: float,
    address: str,
    identities: int,
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(identities):
            nursery.start_soon(_spoken, address, number, say, a_second)
            await trio.sleep(0.05)


FLOODS: dict[str, Flood] = {
    "only connected": partial(all_of, nothing),
    "small frames": partial(all_of, small_frames),
    "pings": partial(all_of, pings),
    "streams opened and reset": partial(all_of, opened_streams),
    "windows of streams without a protocol": partial(all_of, partial(windows, words=b"")),
    "windows behind a question": partial(
        all_of, partial(windows, words=_asks("/ipfs/ping/1.0.0") + bytes(32))
    ),
    "identify": partial(all_of, identify),
    "handshakes that end": reconnects,
    "comparisons": partial(all_of, comparisons),
    "a byte a second": partial(all_of, trickles),
    "announcements": partial(spoken, _announcements, 55.0),
    "readies": partial(spoken, _readies, 55.0),
}


def run(name: str, address: str, identities: int) -> None:
    """The life of a process of strangers."""
    with contextlib.suppress(KeyboardInterrupt):
        trio.run(FLOODS[name], address, identities)
