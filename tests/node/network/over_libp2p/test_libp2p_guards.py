"""Each guard around py-libp2p 0.8.1, by the symptom it cures: every test fails without its guard.

`test_upstream_still_...` show the symptom in py-libp2p itself where that is cheap: when one of them
fails after an upgrade, its guard may go.
"""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm as StockSwarm
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.security.noise.transport import Transport as StockNoiseTransport
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import Yamux as StockYamux
from multiaddr import Multiaddr

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.network import doorstep, stream_turns
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p import liveness as liveness_module
from gossamer.node.network.over_libp2p.guards import GuardedSwarm
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.over_libp2p.noise import newcomers
from gossamer.node.network.over_libp2p.noise.noise import FastNoiseTransport, NoiseSession
from gossamer.node.network.over_libp2p.tcp import carriers
from gossamer.node.network.over_libp2p.tcp.congestion import LineRate
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.over_libp2p.yamux import connection as yamux
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.stream import YamuxStream
from gossamer.node.network.over_libp2p.yamux.windows import FIRST_WINDOW_BYTES
from gossamer.node.network.transport import ConnectError, ListenError, Stream, StreamClosed
from gossamer.protocol.errors import OversizedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.throttle import Rate
from tests.support.bounded_run import run
from tests.support.quiet_yamux import quiet_connection, socket_under

ECHO = "/gossamer-test/echo/1"
LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
MIB = 1024 * 1024
HEADER = struct.Struct("!BBHII")


async def echo_byte(stream: Stream) -> None:
    """Answers every byte."""
    while True:
        await stream.send(await stream.receive_exactly(1))


async def assert_serves(server: Libp2pTransport) -> None:
    """A newcomer connects and is answered: the host lives."""
    async with open_libp2p_transport(Identity.generate(), []) as newcomer:
        peer_id = await newcomer.connect(server.addresses()[0])
        stream = await newcomer.open_stream(peer_id, ECHO)
        await stream.send(b"?")
        assert await stream.receive_exactly(1) == b"?"


@asynccontextmanager
async def client_and_server() -> AsyncIterator[tuple[Libp2pTransport, Libp2pTransport]]:
    """A connected pair on loopback."""
    async with (
        open_libp2p_transport(Identity.generate(), LOOPBACK) as client,
        open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
    ):
        server.handle(ECHO, echo_byte)
        await client.connect(server.addresses()[0])
        yield client, server


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what happens in another task or at another peer."""
    while not condition():  # noqa: ASYNC110 (there is no event to wait for)
        await trio.sleep(0.01)


async def raw_stream(client: Libp2pTransport, server: PeerId) -> Any:
    """A stream on which nothing has been negotiated."""
    connection = client._swarm.get_connections(ID.from_base58(server))[0]
    return await connection.new_stream()


# -- pairs of bare connections, with either side's layers from py-libp2p


@asynccontextmanager
async def secured_pair(
    dialler: type[StockNoiseTransport] = FastNoiseTransport,
    listener: type[StockNoiseTransport] = FastNoiseTransport,
) -> AsyncIterator[tuple[Any, Any]]:
    """Two ends of a noise channel over loopback TCP."""
    ends: list[Any] = []

    def noise(kind: type[StockNoiseTransport]) -> Any:
        keys = create_new_key_pair(Identity.generate().private_bytes())
        return kind(keys, noise_privkey=create_new_x25519_key_pair().private_key)

    first, second = noise(dialler), noise(listener)
    (accepting,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with accepting:
        port = accepting.socket.getsockname()[1]
        outbound = await trio.open_tcp_stream("127.0.0.1", port)
        inbound = await accepting.accept()

    async def accept() -> None:
        ends.append(await second.secure_inbound(RawConnection(TrioTCPStream(inbound), False)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        ours = await first.secure_outbound(
            RawConnection(TrioTCPStream(outbound), True), second.local_peer
        )
    try:
        yield ours, ends[0]
    finally:
        await trio.aclose_forcefully(outbound)
        await trio.aclose_forcefully(inbound)


def end_of(muxer: type[Any], session: Any, *, is_initiator: bool) -> Any:
    """One end of a connection of this project or of py-libp2p."""
    if muxer is YamuxConnection:
        return quiet_connection(session)
    return muxer(session, session.get_remote_peer(), is_initiator=is_initiator)


@asynccontextmanager
async def muxed_pair(
    dialler: type[Any] = YamuxConnection, listener: type[Any] = YamuxConnection
) -> AsyncIterator[tuple[Any, Any]]:
    """Two ends of a yamux connection, not yet started."""

    def noise_for(muxer: type[Any]) -> type[StockNoiseTransport]:
        return FastNoiseTransport if muxer is YamuxConnection else StockNoiseTransport

    async with secured_pair(noise_for(dialler), noise_for(listener)) as (ours, theirs):
        yield end_of(dialler, ours, is_initiator=True), end_of(listener, theirs, is_initiator=False)


@asynccontextmanager
async def running(*connections: Any) -> AsyncIterator[None]:
    """Run muxed connections until the block ends."""
    async with trio.open_nursery() as nursery:
        for connection in connections:
            nursery.start_soon(connection.start)
            await connection.event_started.wait()
        yield
        nursery.cancel_scope.cancel()


async def read_all(stream: Any, num_bytes: int) -> bytes:
    """`num_bytes` by libp2p's short reads."""
    got = bytearray()
    while len(got) < num_bytes:
        got += await stream.read(65536)
    return bytes(got)


# -- the wire is libp2p's


@pytest.mark.parametrize(
    ("dialler", "listener"),
    [(YamuxConnection, StockYamux), (StockYamux, YamuxConnection)],
    ids=["we dial", "they dial"],
)
def test_speaks_with_py_libp2ps_own_noise_and_yamux(dialler: Any, listener: Any) -> None:
    block = bytes(range(256)) * (2 * MIB // 256)

    async def exchange(stream: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, block)
            assert await read_all(stream, len(block)) == block

    async def case() -> None:
        async with muxed_pair(dialler, listener) as (ours, theirs), running(ours, theirs):
            for opener, accepter in ((ours, theirs), (theirs, ours)):
                stream = await opener.open_stream()
                accepted = await accepter.accept_stream()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(exchange, stream)
                    nursery.start_soon(exchange, accepted)
                await stream.close()
                with pytest.raises(MuxedStreamError):
                    await accepted.read(1)

    run(case)


def test_frames_may_be_cut_anywhere() -> None:
    async def case() -> None:
        async with secured_pair() as (ours, theirs):
            connection = quiet_connection(ours)
            body = bytes(range(100))
            async with running(connection):
                for byte in _syn(2) + _data(2, body) + _data(2, b"") + _data(2, body):
                    await theirs.write(bytes([byte]))
                stream = await connection.accept_stream()
                assert isinstance(stream, YamuxStream)
                assert await stream.receive_exactly(200) == body * 2
                await theirs.write(_data(2, body[:50]) + _data(2, body[50:]) + _data(2, body)[:30])
                await theirs.write(_data(2, body)[30:] + HEADER.pack(0, 1, 4, 2, 0))
                assert await stream.receive_exactly(200) == body * 2
                with pytest.raises(MuxedStreamError):
                    await stream.receive_exactly(1)

    run(case)


# -- defect 1: exceptions in stream handlers, and in gossip


def test_protocol_name_that_is_not_utf8_costs_one_stream() -> None:
    async def case() -> None:
        async with client_and_server() as (client, server):
            stream = await raw_stream(client, server.peer_id)
            await stream.write(b"\x13/multistream/1.0.0\n\x05\xff\xfe\xfd\xfc\n")
            with suppress(Exception):
                while True:
                    await stream.read(100)
            await assert_serves(server)
            assert client.peers() == [server.peer_id]

    run(case)


def test_garbage_on_meshsub_costs_one_stream() -> None:
    async def case() -> None:
        async with client_and_server() as (client, server):
            peer = ID.from_base58(server.peer_id)
            stream = await client._host.new_stream(peer, client._pubsub.protocols)
            await stream.write(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff")
            with suppress(Exception):
                await stream.read(100)
            await assert_serves(server)

    run(case)


def test_gossip_of_empty_entries_is_an_offence_and_waits_for_nothing() -> None:
    """Half a million subscriptions of two bytes: their objects were kept for two minutes."""

    async def case() -> None:
        async with client_and_server() as (client, server):
            offences: list[RemoteProtocolError] = []
            server.on_offence(lambda _peer, error: offences.append(error))
            peer = ID.from_base58(server.peer_id)
            stream = await client._host.new_stream(peer, client._pubsub.protocols)
            await stream.write(b"\x80\x80\x40" + b"\x0a\x00" * (MIB // 2))
            await eventually(lambda: len(offences) == 1)
            assert isinstance(offences[0], OversizedError)
            await assert_serves(server)

    run(case)


def test_handler_that_times_out_costs_one_stream() -> None:
    async def case() -> None:
        async with client_and_server() as (client, server):

            async def handler(stream: Any) -> None:
                raise trio.TooSlowError

            server._host.set_stream_handler("/raw/1", handler)  # type: ignore[arg-type]
            stream = await client.open_stream(server.peer_id, "/raw/1")
            with suppress(Exception):
                await stream.receive_exactly(1)
            await assert_serves(server)

    run(case)


def test_gossip_from_an_impossible_sender_costs_one_message() -> None:
    async def case() -> None:
        async with client_and_server() as (client, server):
            server.subscribe("news", lambda author, data: None)
            await trio.sleep(0.2)
            rpc = rpc_pb2.RPC()
            rpc.publish.add(
                data=b"x", topicIDs=["news"], from_id=b"\x01\x02", seqno=b"1", key=b"?",
                signature=b"?",
            )  # fmt: skip
            body = rpc.SerializeToString()
            peer = ID.from_base58(server.peer_id)
            stream = await client._host.new_stream(peer, client._pubsub.protocols)
            await stream.write(bytes([len(body)]) + body)
            await trio.sleep(0.3)
            await assert_serves(server)

    run(case)


def test_failed_gossip_heartbeat_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as server:
            server.handle(ECHO, echo_byte)
            router: Any = server._pubsub.router
            beats: list[float] = []

            def broken() -> None:
                beats.append(trio.current_time())
                raise KeyError("a peer that has just gone")

            router.heartbeat_interval = 0.05
            monkeypatch.setattr(router, "fanout_heartbeat", broken)
            await eventually(lambda: len(beats) >= 3)
            await assert_serves(server)

    run(case)


# -- defect 2: inbound slots, and newcomers


def test_inbound_slots_come_back() -> None:
    async def case() -> None:
        async with open_libp2p_transport(
            Identity.generate(), LOOPBACK, connections_max=4
        ) as server:
            server.handle(ECHO, echo_byte)
            for _ in range(6):
                await assert_serves(server)
                await eventually(lambda: not server.peers())

    run(case)


def test_silent_connections_keep_no_peer_out() -> None:
    async def case() -> None:
        async with open_libp2p_transport(
            Identity.generate(), LOOPBACK, connections_max=40
        ) as server:
            server.handle(ECHO, echo_byte)
            port = int(server.addresses()[0].split("/")[4])
            silent = []
            for _ in range(doorstep.UNDER_WAY_MAX + 20):
                with suppress(OSError):  # turned away
                    silent.append(await trio.open_tcp_stream("127.0.0.1", port))
            with trio.fail_after(newcomers.HANDSHAKE_SECONDS_MAX / 2):
                # They have one address with the newcomer, which is turned away for a second.
                await eventually(lambda: server.reach().num_turned_away > 0)
                await trio.sleep(doorstep.YIELD_SECONDS)
                await assert_serves(server)
            for stream in silent:
                await stream.aclose()

    run(case)


def test_silent_connection_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers, "HANDSHAKE_SECONDS_MAX", 0.2)

    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as server:
            port = int(server.addresses()[0].split("/")[4])
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                with suppress(trio.BrokenResourceError):
                    while await stream.receive_some(100):
                        pass
            await eventually(lambda: not server._swarm.newcomers._scopes)
            assert server.reach().num_unfinished == 1

    run(case, seconds=5)


# -- defect 3: cancellation


async def _survives_a_cancelled_write(muxer: Any, seconds: float) -> bool:
    """Returns whether a connection works on after a write was cancelled while TCP was full."""
    async with muxed_pair(muxer, muxer) as (ours, theirs):
        for end in (ours, theirs):
            raw = socket_under(end)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        survived = False

        async def write(stream: Any) -> None:
            with suppress(MuxedStreamError, ConnectionClosedError):
                await stream.write(b"k" * 100_000)

        async with running(ours):  # the other side does not read yet: TCP fills
            keep, stuck = await ours.open_stream(), await ours.open_stream()
            with trio.move_on_after(0.2) as scope:
                await stuck.write(bytes(400_000))
            assert scope.cancelled_caught
            async with running(theirs):
                accepted = await theirs.accept_stream()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(write, keep)
                    with trio.move_on_after(seconds), suppress(MuxedStreamError):
                        survived = await read_all(accepted, 100_000) == b"k" * 100_000
                    nursery.cancel_scope.cancel()
        return survived


def test_write_cancelled_while_tcp_is_full_leaves_the_connection_whole() -> None:
    async def case() -> None:
        assert await _survives_a_cancelled_write(YamuxConnection, seconds=25)

    run(case)


def test_upstream_still_breaks_the_connection_of_a_cancelled_write() -> None:
    async def case() -> None:
        assert not await _survives_a_cancelled_write(StockYamux, seconds=3)

    run(case)


def test_timeouts_around_reads_lose_no_bytes() -> None:
    async def case() -> None:
        async with muxed_pair() as (ours, theirs), running(ours, theirs):
            stream = await ours.open_stream()
            accepted = await theirs.accept_stream()
            total = 4 * MIB
            block = bytes(range(256)) * 4
            got = bytearray()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.write, block * (total // len(block)))
                while len(got) < total:
                    with trio.move_on_after(0.0005):
                        got += await accepted.receive_exactly(min(100_000, total - len(got)))
            assert bytes(got) == block * (total // len(block))

    run(case)


# -- defect 4: silently dead links (`test_libp2p_transport.py` pulls a real one)


def test_both_ends_detect_dead_links() -> None:
    async def case() -> None:
        async with client_and_server() as (client, server):
            await eventually(lambda: bool(server.peers()))
            for transport in (client, server):
                ((connection,),) = transport._swarm.get_connections_map().values()
                raw = socket_under(connection.muxed_conn)
                assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                milliseconds = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert milliseconds == carriers.DEAD_LINK_SECONDS * 1000
                idle = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                assert idle == carriers.KEEPALIVE_IDLE_SECONDS

    run(case)


def test_stopped_process_behind_a_live_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_module, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(liveness_module, "SILENCE_SECONDS_MAX", 0.3)

    async def case() -> None:
        liveness = Liveness(AwakeClock())
        async with (
            secured_pair() as (near, far),
            trio.open_nursery() as looks,
            running(ours := YamuxConnection(near, near.get_remote_peer(), liveness, LineRate())),
        ):
            theirs = quiet_connection(far)  # never answers
            looks.start_soon(liveness.run)
            stream = await ours.open_stream()
            with pytest.raises(MuxedStreamError):
                await stream.receive_exactly(1)
            await ours.event_closed.wait()
            assert not theirs.is_closed
            looks.cancel_scope.cancel()

    run(case, seconds=5)


# -- defect 5: the receive window, and other ways to fill our memory


async def _attack(frames: list[bytes]) -> tuple[YamuxConnection, int]:
    """Returns the end of a connection whose peer sends these frames, when it is closed, and the
    bytes that it held at most."""
    async with secured_pair() as (ours, theirs):
        connection = quiet_connection(ours)
        session: NoiseSession = theirs
        async with running(connection):
            held = 0
            with suppress(Exception):
                for frame in frames:
                    await session.write(frame)
                    held = max(held, sum(s._buffered for s in connection.streams.values()))
            await connection.event_closed.wait()
        return connection, held


def _syn(stream_id: int) -> bytes:
    return HEADER.pack(0, 1, 1, stream_id, 0)


def _data(stream_id: int, body: bytes) -> bytes:
    return HEADER.pack(0, 0, 0, stream_id, len(body)) + body


def test_peer_that_ignores_the_window_is_cut_off() -> None:
    async def case() -> None:
        body = bytes(60_000)
        frames = [_syn(2), *[_data(2, body)] * 100]  # 6 MB into a window of 1 MiB
        connection, held = await _attack(frames)
        assert connection.is_closed
        assert held <= FIRST_WINDOW_BYTES

    run(case)


@pytest.mark.parametrize(
    "frame",
    [
        HEADER.pack(1, 0, 0, 0, 0),  # version
        HEADER.pack(0, 9, 0, 0, 0),  # type
        _syn(3),  # an odd stream is ours to open
        _syn(2) + _syn(2),  # open already
    ],
    ids=["version", "type", "parity", "twice"],
)
def test_frames_that_are_not_yamux_end_the_connection(frame: bytes) -> None:
    async def case() -> None:
        connection, _ = await _attack([frame])
        assert connection.is_closed

    run(case)


def test_bytes_that_do_not_authenticate_end_the_connection() -> None:
    async def case() -> None:
        async with secured_pair() as (ours, theirs):
            connection = quiet_connection(ours)
            raw = theirs.conn.read_writer.read_write_closer
            async with running(connection):
                await raw.write(b"\x00\x20" + bytes(32))
                await connection.event_closed.wait()

    run(case)


def test_peer_opens_no_more_streams_than_allowed() -> None:
    async def case() -> None:
        async def accept(connection: Any) -> None:
            while True:
                await connection.accept_stream()

        async with (
            muxed_pair() as (ours, theirs),
            running(ours, theirs),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(accept, theirs)
            limit = yamux.INBOUND_STREAMS_MAX
            streams = [await ours.open_stream() for _ in range(limit + 10)]
            for stream in streams[limit:]:
                with pytest.raises(MuxedStreamError):
                    await stream.receive_exactly(1)
            assert len(theirs.streams) == limit
            await streams[0].reset()
            await eventually(lambda: len(theirs.streams) < limit)  # and the place is free again
            await ours.open_stream()
            await eventually(lambda: len(theirs.streams) == limit)
            nursery.cancel_scope.cancel()

    run(case)


def test_streams_of_strangers_wait_for_their_turn_and_those_of_members_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_turns, "STRANGERS_RATE", Rate(per_second=5, burst=20))

    async def case() -> None:
        async with (
            client_and_server() as (stranger, server),
            open_libp2p_transport(Identity.generate(), LOOPBACK) as member,
        ):
            await member.connect(server.addresses()[0])
            server.keep_places_of(
                is_known=lambda _: True,
                has_standing=lambda peer: peer == member.peer_id,
                is_expected=lambda _: True,
            )
            served: list[PeerId] = []

            async def count(stream: Stream) -> None:
                served.append(stream.peer_id)
                await stream.send(b"!")

            server.handle(ECHO, count, streams_per_peer_max=yamux.INBOUND_STREAMS_MAX)

            async def ask(client: Libp2pTransport) -> None:
                stream = await client.open_stream(server.peer_id, ECHO, at_once=True)
                with suppress(StreamClosed):
                    await stream.receive_exactly(1)
                await stream.reset()

            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(60):  # as many as a connection may have open
                    nursery.start_soon(ask, stranger)
                await eventually(lambda: len(served) > 10)
                for _ in range(40):
                    await ask(member)
                seconds = trio.current_time() - began
                num_strange = served.count(stranger.peer_id)
                nursery.cancel_scope.cancel()
            assert served.count(member.peer_id) == 40
            assert num_strange <= 20 + 5 * seconds + 1

    run(case)


async def accepted(connection: Any, found: list[Any]) -> None:
    """Notes the stream that a connection accepts, or why there is none."""
    try:
        found.append(await connection.accept_stream())
    except MuxedConnUnavailable as error:
        found.append(error)


def test_a_connection_that_ends_leaves_the_line() -> None:
    """What ends and comes back would fill the line, and the memory."""

    async def case() -> None:
        async with muxed_pair() as (ours, theirs), running(ours, theirs):
            theirs.turn = trio.sleep_forever
            found: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(accepted, theirs, found)
                for _ in range(2):
                    await ours.open_stream()
                await eventually(lambda: len(theirs.streams) == 2)
                await ours.close()
            assert isinstance(found[0], MuxedConnUnavailable)

    run(case)


def test_the_turn_of_a_stream_that_is_reset_meanwhile_is_the_next_ones() -> None:
    """A newcomer whose patience ends before its turn comes would never have one."""

    async def case() -> None:
        async with muxed_pair() as (ours, theirs), running(ours, theirs):
            turn, num_turns = trio.Event(), 0

            async def wait() -> None:
                nonlocal num_turns
                num_turns += 1
                await turn.wait()

            theirs.turn = wait
            found: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(accepted, theirs, found)
                first = await ours.open_stream()
                await eventually(lambda: num_turns == 1)
                await first.reset()
                second = await ours.open_stream()
                await eventually(lambda: second.stream_id in theirs.streams)
                turn.set()
            assert found == [theirs.streams[second.stream_id]]
            assert num_turns == 1

    run(case)


def test_what_a_peer_opens_beyond_its_places_counts_for_its_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To refuse a stream costs a look at those that are open otherwise, without end."""
    places = yamux.INBOUND_STREAMS_MAX
    monkeypatch.setattr(yamux, "OPEN_RATE", Rate(per_second=0.01, burst=places + 10))

    async def case() -> None:
        numbers = [2 * number for number in range(1, places + 21)]
        async with secured_pair() as (ours, theirs):
            connection = quiet_connection(ours)
            async with running(connection):
                await theirs.write(b"".join(map(_syn, numbers)))
                for _ in range(places):
                    await connection.accept_stream()
                await connection.streams[2].reset()
                heard = connection.signs.heard_seconds
                await theirs.write(_syn(numbers[-1] + 2))
                await eventually(lambda: connection.signs.heard_seconds > heard)
                assert len(connection.streams) == places - 1

    run(case)


def test_peer_that_makes_us_reply_and_does_not_read_is_dropped() -> None:
    async def case() -> None:
        async with secured_pair() as (ours, theirs):
            for end in (ours, theirs):
                raw = socket_under(end)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            connection = quiet_connection(ours)
            ping = HEADER.pack(0, 2, 1, 0, 7)
            async with running(connection):
                with suppress(Exception):
                    while True:
                        await theirs.write(ping * 1000)
                await connection.event_closed.wait()

    run(case)


def test_tiny_frames_do_not_pin_their_messages() -> None:
    async def case() -> None:
        async with muxed_pair() as (ours, theirs), running(ours, theirs):
            stream = await ours.open_stream()
            accepted = await theirs.accept_stream()
            message = memoryview(bytes(65_000))
            for index in range(5000):
                accepted.feed(message[index : index + 1])
            assert len(accepted._pieces) == 1
            await stream.reset()

    run(case)


def _bytes_held(stream: YamuxStream) -> int:
    """Bytes that the unread pieces of a stream keep in memory."""
    messages: list[Any] = [memoryview(each).obj for each in stream._pieces]
    return sum({id(message): len(message) for message in messages}.values())


@pytest.mark.parametrize("num_bytes", [1, 100, 4096, 20_000, 32_499, 32_500, 65_000])
def test_frames_of_any_size_hold_at_most_twice_their_bytes(num_bytes: int) -> None:
    async def case() -> None:
        async with muxed_pair() as (ours, theirs), running(ours, theirs):
            stream = await ours.open_stream()
            accepted = await theirs.accept_stream()
            sent = bytearray()
            for number in range(10):
                body = bytes([number]) * num_bytes
                message = memoryview(body + bytes(65_000 - num_bytes))
                accepted.feed(message[:num_bytes])
                sent += body
            assert _bytes_held(accepted) <= 2 * accepted._buffered
            assert await accepted.receive_exactly(len(sent)) == sent
            await stream.reset()

    run(case)


@pytest.mark.parametrize("num_bytes", [1, 12, 500])
def test_small_messages_hold_little_more_than_their_bytes(num_bytes: int) -> None:
    """A frame may come in many messages, each of which is whole the piece of one: a view and an
    object for each took up to 355 bytes a byte."""

    async def case() -> None:
        async with muxed_pair() as (ours, theirs), running(ours, theirs):
            stream = await ours.open_stream()
            accepted = await theirs.accept_stream()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(20_000 // num_bytes):
                accepted.feed(memoryview(bytes(num_bytes)))
            held = tracemalloc.get_traced_memory()[0] - before
            assert held <= 2 * accepted._buffered + 10_000
            await stream.reset()

    tracemalloc.start()
    try:
        run(case)
    finally:
        tracemalloc.stop()


async def _served_identify(client: Libp2pTransport, server: Libp2pTransport) -> tuple[Any, Any]:
    """A stream of identify that the client keeps, and the other end of it, whose handler is
    done."""
    [connection] = server._swarm.get_connections(ID.from_base58(client.peer_id))
    muxed: Any = connection.muxed_conn
    stream: Any = await client.open_stream(server.peer_id, "/ipfs/id/1.0.0")
    await stream.receive_exactly(1)
    served = muxed.streams[stream._muxed.stream_id]
    with trio.fail_after(5):
        await eventually(lambda: served.send_closed and served.discarded_at is not None)
    return stream, served


def test_a_stream_whose_handler_is_done_is_not_kept_by_a_peer_that_leaves_it_open() -> None:
    async def case() -> None:
        async with client_and_server() as (client, server):
            _, served = await _served_identify(client, server)
            muxed = served.conn
            muxed.look(served.discarded_at + yamux.LINGER_SECONDS_MAX - 1, after_stall=True)
            assert served.stream_id in muxed.streams
            muxed.look(served.discarded_at + yamux.LINGER_SECONDS_MAX + 1, after_stall=True)
            assert served.stream_id not in muxed.streams
            await assert_serves(server)

    run(case)


def test_what_comes_for_a_stream_whose_handler_is_done_is_not_kept() -> None:
    async def case() -> None:
        async with client_and_server() as (client, server):
            stream, served = await _served_identify(client, server)
            with suppress(StreamClosed):
                await stream.send(bytes(10_000))
            await eventually(lambda: served.was_reset)
            assert served._buffered == 0
            assert served.stream_id not in served.conn.streams
            await assert_serves(server)

    run(case)


# -- the rest of LIBP2P.md's traps


def test_port_in_use_is_refused_by_name() -> None:
    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as first:
            taken, _, _ = first.addresses()[0].partition("/p2p/")
            with pytest.raises(ListenError, match=f"cannot listen on {taken}: .*in use"):
                async with open_libp2p_transport(Identity.generate(), [taken]):
                    pass

    run(case)


def test_plaintext_is_not_spoken() -> None:
    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as server:
            port = int(server.addresses()[0].split("/")[4])
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                for protocol in (b"/plaintext/2.0.0", b"/secio/1.0.0", b"/tls/1.0.0"):
                    line = protocol + b"\n"
                    if protocol == b"/plaintext/2.0.0":
                        await stream.send_all(b"\x13/multistream/1.0.0\n")
                    await stream.send_all(bytes([len(line)]) + line)
                got = b""
                while got.count(b"na\n") < 3:
                    got += await stream.receive_some(1000)
                    assert b"plaintext" not in got

    run(case)


def test_gossip_survives_the_death_of_the_older_of_two_connections() -> None:
    async def case() -> None:
        identity = Identity.generate()
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as hub:
            heard_by_hub: list[bytes] = []
            heard: list[bytes] = []
            hub.subscribe("news", lambda author, data: heard_by_hub.append(data))
            async with open_libp2p_transport(identity, []) as old:
                old.subscribe("news", lambda author, data: None)
                await old.connect(hub.addresses()[0])
                await trio.sleep(0.5)
                peer = ID.from_base58(identity.peer_id)
                (older,) = hub._swarm.get_connections(peer)
                async with open_libp2p_transport(identity, []) as new:  # restarted elsewhere
                    new.subscribe("news", lambda author, data: heard.append(data))
                    await new.connect(hub.addresses()[0])
                    await trio.sleep(0.5)
                    await older.close()
                    for number in range(20):
                        await hub.publish("news", b"%d" % number)
                        await new.publish("news", b"%d" % number)
                        await trio.sleep(0.2)
                        if heard and heard_by_hub:
                            return
                    raise AssertionError((heard, heard_by_hub))

    run(case)


def test_gossip_is_heard_right_after_a_restart_with_the_same_key() -> None:
    async def case() -> None:
        identity = Identity.generate()
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as hub:
            heard: list[bytes] = []
            hub.subscribe("news", lambda author, data: heard.append(data))
            async with open_libp2p_transport(identity, []) as peer:
                peer.subscribe("news", lambda author, data: None)
                await peer.connect(hub.addresses()[0])
                while len(heard) < 200:  # a counter of seconds would need 200 s to get past these
                    await peer.publish("news", b"first")
                    await trio.sleep(0.001)
            async with open_libp2p_transport(identity, []) as peer:
                peer.subscribe("news", lambda author, data: None)
                await peer.connect(hub.addresses()[0])
                for _ in range(50):
                    await peer.publish("news", b"second")
                    await trio.sleep(0.1)
                    if b"second" in heard:
                        return
            raise AssertionError("not heard")

    run(case)


def test_no_peer_is_dialled_unasked() -> None:
    async def case() -> None:
        async with (
            client_and_server() as (client, server),
            open_libp2p_transport(Identity.generate(), LOOPBACK) as other,
        ):
            peer = ID.from_base58(other.peer_id)
            address = Multiaddr(other.addresses()[0].partition("/p2p/")[0])
            client._swarm.peerstore.add_addrs(peer, [address], 120)
            await client._swarm.auto_connector.maybe_connect()
            await client.disconnect(server.peer_id)
            await trio.sleep(0.5)
            assert client.peers() == []
            assert other.peers() == []

    run(case)


def test_peers_that_have_left_are_not_remembered() -> None:
    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as server:
            connector: Any = server._swarm.auto_connector
            for _ in range(3):
                async with open_libp2p_transport(Identity.generate(), []) as client:
                    await client.connect(server.addresses()[0])
                    await eventually(lambda: bool(server.peers()))
                await eventually(lambda: not server._swarm.get_connections())
            assert not connector._recent_disconnects
            assert not connector._last_connect_attempt
            assert not connector._failure_counts

    run(case)


def test_failed_dial_does_not_block_the_peer() -> None:
    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), []) as client:
            identity = Identity.generate()
            async with open_libp2p_transport(identity, LOOPBACK) as server:
                address = server.addresses()[0]
            for _ in range(3):
                with pytest.raises(ConnectError):
                    await client.connect(address)
            listen, _, _ = address.partition("/p2p/")
            async with open_libp2p_transport(identity, [listen]) as server:
                assert await client.connect(address) == server.peer_id

    run(case)


def test_dialling_tells_the_kernels_reason() -> None:
    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), []) as client:
            with pytest.raises(ConnectError, match="refused"):
                await client.connect("/ip4/127.0.0.1/tcp/1")

    run(case)


def test_a_dial_that_is_cancelled_when_its_connection_is_seen_keeps_that_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crossing looks for the direct connection to a peer, and ends its dial when there is one.

    The connection may be the one that this dial has made and has not yet told the listeners of.
    """
    tell = GuardedSwarm.notify_connected

    async def tell_slowly(swarm: GuardedSwarm, connection: Any) -> None:
        await trio.sleep(0.2)
        await tell(swarm, connection)

    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as client,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
        ):
            server.handle(ECHO, echo_byte)
            monkeypatch.setattr(GuardedSwarm, "notify_connected", tell_slowly)
            peer = ID.from_base58(server.peer_id)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.connect, server.addresses()[0])
                await eventually(lambda: bool(client._swarm.get_connections(peer)))
                nursery.cancel_scope.cancel()
            stream = await client.open_stream(server.peer_id, ECHO)
            await stream.send(b"?")
            assert await stream.receive_exactly(1) == b"?"

    run(case)


def test_a_peer_that_is_banned_while_its_connection_is_entered_loses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was no peer of this node yet when the ban ended all connections to the peer."""
    enter = StockSwarm.add_conn
    entering, banned = trio.Event(), trio.Event()

    async def enter_slowly(swarm: Any, muxed_conn: Any, direction: str = "unknown") -> Any:
        if direction == "inbound":
            entering.set()
            await banned.wait()
        return await enter(swarm, muxed_conn, direction)

    monkeypatch.setattr(StockSwarm, "add_conn", enter_slowly)

    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as client,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
        ):
            await client.connect(server.addresses()[0])
            await entering.wait()
            server.ban(client.peer_id, 60.0)
            banned.set()
            await eventually(lambda: client.peers() == [])
            assert server.peers() == []

    run(case)


def test_a_connection_whose_end_is_cancelled_leaves_the_books_and_the_gossip() -> None:
    """One dial of a race finds it dead and ends it, and another one wins meanwhile."""

    async def case() -> None:
        async with client_and_server() as (client, server):
            peer = ID.from_base58(server.peer_id)
            await eventually(lambda: peer in client._pubsub.peers)
            with trio.CancelScope() as scope:
                scope.cancel()
                await client.disconnect(server.peer_id)
            await eventually(lambda: peer not in client._pubsub.peers)
            assert not client._swarm.get_connections(peer)

    run(case)


def test_a_connection_that_never_began_is_closed() -> None:
    async def case() -> None:
        async with secured_pair() as (one, other):
            connection = quiet_connection(one)
            await connection.close()
            assert connection.is_closed
            with pytest.raises(ConnectionClosedError):
                await other.receive()

    run(case)
