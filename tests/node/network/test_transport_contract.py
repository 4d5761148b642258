"""The contract of every `Transport`: the same tests over the real network and the one in memory."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import (
    ConnectError,
    ProtocolRefused,
    Stream,
    StreamClosed,
    Transport,
)
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import GOSSIP_BYTES_MAX
from tests.support.memory_transport import MemoryNetwork, run_simulated

ECHO = "/gossamer-test/echo/1"
DOOR = "/gossamer-test/door/1"
MIB = 1024 * 1024

Open = Callable[[Identity], AbstractAsyncContextManager[Transport]]
Case = Callable[[Open], Awaitable[None]]
Run = Callable[[Case], None]


def _run_libp2p(case: Case) -> None:
    @asynccontextmanager
    async def open_transport(identity: Identity) -> AsyncIterator[Transport]:
        async with open_libp2p_transport(identity, ["/ip4/127.0.0.1/tcp/0"]) as transport:
            yield transport

    async def bounded() -> None:
        with trio.fail_after(60):
            await case(open_transport)

    trio.run(bounded)


def _run_memory(case: Case) -> None:
    network = MemoryNetwork(seed=7)

    @asynccontextmanager
    async def open_transport(identity: Identity) -> AsyncIterator[Transport]:
        async with network.transport(identity) as transport:
            yield transport

    async def bounded() -> None:
        with trio.fail_after(600):
            await case(open_transport)

    run_simulated(bounded, seed=7)


@pytest.fixture(params=[_run_libp2p, _run_memory], ids=["libp2p", "memory"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's coroutine with a way to open transports that reach each other."""
    return request.param  # type: ignore[no-any-return]


@asynccontextmanager
async def pair(open_transport: Open) -> AsyncIterator[tuple[Transport, Transport]]:
    """Two transports, the first connected to the second, which echoes."""
    async with (
        open_transport(Identity.generate()) as client,
        open_transport(Identity.generate()) as server,
    ):
        server.handle(ECHO, echo)
        await client.connect(server.addresses()[0])
        yield client, server


async def echo(stream: Stream) -> None:
    """Answers each 4-byte length and its bytes with the bytes."""
    while True:
        length = int.from_bytes(await stream.receive_exactly(4), "big")
        await stream.send(await stream.receive_exactly(length))


async def call(stream: Stream, data: bytes) -> bytearray:
    """One round trip with `echo`."""
    await stream.send(len(data).to_bytes(4, "big"), data)
    return await stream.receive_exactly(len(data))


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what happens in another task or at another peer."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await trio.sleep(0.01)


def test_who_is_who(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            assert client.peers() == [server.peer_id]
            await eventually(lambda: server.peers() == [client.peer_id])
            seen: list[PeerId] = []

            async def who(stream: Stream) -> None:
                seen.append(stream.peer_id)
                await stream.send(b"!")

            server.handle("/gossamer-test/who/1", who)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/who/1")
            assert (stream.peer_id, stream.protocol) == (server.peer_id, "/gossamer-test/who/1")
            await stream.receive_exactly(1)
            assert seen == [client.peer_id]

    run(case)


def test_bytes_arrive_whole_and_in_order(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            stream = await client.open_stream(server.peer_id, ECHO)
            for size in (0, 1, 65_506, 65_507, 65_508, 3 * MIB + 1):
                data = bytes(index % 251 for index in range(min(size, 70_000))) * (
                    1 if size <= 70_000 else size // 70_000 + 1
                )
                assert await call(stream, data[:size]) == data[:size]

    run(case)


def test_parts_of_every_kind(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            stream = await client.open_stream(server.peer_id, ECHO)
            words = memoryview(bytearray(b"abcdefgh")).cast("I")
            await stream.send(b"\0\0", bytearray(b"\0\x0b"), b"xyz", b"", words)
            assert await stream.receive_exactly(11) == b"xyzabcdefgh"

    run(case)


def test_both_directions_at_once_with_more_than_any_window(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            total = 24 * MIB
            block = bytes(range(256)) * 4096

            async def both_ways(stream: Stream) -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(push, stream)
                    nursery.start_soon(pull, stream)

            async def push(stream: Stream) -> None:
                for _ in range(total // len(block)):
                    await stream.send(block)

            async def pull(stream: Stream) -> None:
                for _ in range(total // len(block)):
                    assert await stream.receive_exactly(len(block)) == block

            server.handle("/gossamer-test/both/1", both_ways)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/both/1")
            await both_ways(stream)

    run(case)


@pytest.mark.long
def test_sender_waits_for_a_reader_that_pauses(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            resume = trio.Event()
            sent = 0
            total = 64

            async def slow(stream: Stream) -> None:
                await resume.wait()
                for _ in range(total):
                    await stream.receive_exactly(MIB)
                await stream.send(b"!")

            async def push(stream: Stream) -> None:
                nonlocal sent
                for _ in range(total):
                    await stream.send(bytes(MIB))
                    sent += 1

            server.handle("/gossamer-test/slow/1", slow)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/slow/1")
            echoing = await client.open_stream(server.peer_id, ECHO)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(push, stream)
                await trio.sleep(6)  # longer than py-libp2p's own patience of 5 s
                assert sent <= 16  # bounded by buffers, not by the reader's memory
                assert await call(echoing, b"not blocked") == b"not blocked"
                resume.set()
                await stream.receive_exactly(1)
            assert sent == total

    run(case)


def test_cancelled_receive_loses_nothing(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            go_on = trio.Event()

            async def halves(stream: Stream) -> None:
                await stream.send(b"first")
                await go_on.wait()
                await stream.send(b"second")

            server.handle("/gossamer-test/halves/1", halves)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/halves/1")
            for _ in range(3):
                with trio.move_on_after(0.1):
                    await stream.receive_exactly(11)
                    raise AssertionError("the second half was not sent yet")
            go_on.set()
            assert await stream.receive_exactly(3) == b"fir"
            assert await stream.receive_exactly(8) == b"stsecond"

    run(case)


def test_cancelled_send_resets_its_stream_and_no_other(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            outcome: list[str] = []

            async def never_reads(stream: Stream) -> None:
                await trio.sleep(1)
                try:
                    while True:
                        await stream.receive_exactly(MIB)
                except StreamClosed:
                    outcome.append("closed")

            server.handle("/gossamer-test/stuck/1", never_reads)
            echoing = await client.open_stream(server.peer_id, ECHO)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/stuck/1")
            with trio.move_on_after(0.3) as scope:
                await stream.send(bytes(64 * MIB))
            assert scope.cancelled_caught
            with pytest.raises(StreamClosed):
                await stream.send(b"more")
            assert await call(echoing, b"alive") == b"alive"
            await eventually(lambda: outcome == ["closed"])

    run(case)


def test_close_lets_what_was_sent_arrive(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            got: list[bytes] = []
            ended = trio.Event()

            async def collect(stream: Stream) -> None:
                got.append(bytes(await stream.receive_exactly(300_000)))
                with pytest.raises(StreamClosed):
                    await stream.receive_exactly(1)
                ended.set()

            server.handle("/gossamer-test/collect/1", collect)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/collect/1")
            await stream.send(b"x" * 300_000)
            await stream.close()
            await stream.close()
            await ended.wait()
            assert got == [b"x" * 300_000]
            with pytest.raises(StreamClosed):
                await stream.send(b"more")

    run(case)


def test_handler_that_returns_ends_the_stream(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):

            async def brief(stream: Stream) -> None:
                await stream.send(b"bye")

            server.handle("/gossamer-test/brief/1", brief)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/brief/1")
            assert await stream.receive_exactly(3) == b"bye"
            with pytest.raises(StreamClosed):
                await stream.receive_exactly(1)

    run(case)


def test_handler_that_raises_costs_its_stream_only(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):

            async def broken(stream: Stream) -> None:
                await stream.receive_exactly(1)
                raise ValueError("a bug in a handler")

            server.handle("/gossamer-test/broken/1", broken)
            echoing = await client.open_stream(server.peer_id, ECHO)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/broken/1")
            await stream.send(b"x")
            with pytest.raises(StreamClosed):
                await stream.receive_exactly(1)
            assert await call(echoing, b"alive") == b"alive"

    run(case)
    assert "a bug in a handler" in caplog.text


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (trio.TooSlowError(), "no answer in time"),
        (MalformedError("a message without an end"), "a message without an end"),
        (ConnectError("the third peer is away"), "the third peer is away"),
    ],
)
def test_what_a_peer_alone_causes_in_a_handler_is_one_plain_line(
    run: Run, caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    protocol = "/gossamer-test/slow/1"
    caplog.set_level(logging.DEBUG)

    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):

            async def slow(stream: Stream) -> None:
                await stream.receive_exactly(1)
                raise error

            server.handle(protocol, slow)
            stream = await client.open_stream(server.peer_id, protocol)
            await stream.send(b"x")
            with pytest.raises(StreamClosed):
                await stream.receive_exactly(1)

    run(case)
    told = [record for record in caplog.records if reason in record.getMessage()]
    assert [(record.levelname, record.exc_info) for record in told] == [("DEBUG", None)]
    assert protocol in told[0].getMessage()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_reset_is_seen_by_reader_and_writer(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            ends: list[str] = []

            async def both_ways(stream: Stream) -> None:
                async def read() -> None:
                    with pytest.raises(StreamClosed):
                        await stream.receive_exactly(1)
                    ends.append("reader")

                async def write() -> None:
                    try:
                        while True:
                            await stream.send(bytes(MIB))
                    except StreamClosed:
                        ends.append("writer")

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read)
                    nursery.start_soon(write)

            server.handle("/gossamer-test/reset/1", both_ways)
            stream = await client.open_stream(server.peer_id, "/gossamer-test/reset/1")
            await stream.receive_exactly(10)
            await stream.reset()
            await stream.reset()
            await eventually(lambda: sorted(ends) == ["reader", "writer"])

    run(case)


def test_a_stream_that_is_used_at_once(run: Run) -> None:
    """What is sent before the peer has agreed arrives, and the answers come as ever."""

    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            stream = await client.open_stream(server.peer_id, ECHO, at_once=True)
            for data in (b"", b"one", bytes(3 * MIB)):
                assert await call(stream, data) == data
            await stream.close()

    run(case)


def test_cancelled_receive_of_a_stream_that_is_used_at_once_loses_nothing(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            stream = await client.open_stream(server.peer_id, ECHO, at_once=True)
            with trio.move_on_after(0):
                await stream.receive_exactly(1)
            with trio.move_on_after(0.2):
                await stream.receive_exactly(1)
            assert await call(stream, b"one") == b"one"

    run(case)


def test_a_stream_that_is_used_at_once_may_be_read_first(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async def greet(stream: Stream) -> None:
            await stream.send(b"hello")
            await echo(stream)

        async with pair(open_transport) as (client, server):
            server.handle("/gossamer-test/greeting/1", greet)
            stream = await client.open_stream(
                server.peer_id, "/gossamer-test/greeting/1", at_once=True
            )
            with trio.fail_after(2):
                assert await stream.receive_exactly(5) == b"hello"
            assert await call(stream, b"one") == b"one"

    run(case)


def test_a_stream_that_is_used_at_once_ends_if_the_peer_refuses(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            stream = await client.open_stream(server.peer_id, "/gossamer-test/none/1", at_once=True)
            with pytest.raises(StreamClosed), trio.fail_after(2):
                await call(stream, b"one")
            with pytest.raises(StreamClosed):
                await stream.send(b"two")
            # The connection lives on.
            assert await call(await client.open_stream(server.peer_id, ECHO), b"one") == b"one"

    run(case)


def test_protocol_that_is_not_spoken(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            with pytest.raises(ProtocolRefused, match="does not speak it"):
                await client.open_stream(server.peer_id, "/gossamer-test/unknown/1")
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await call(stream, b"alive") == b"alive"

    run(case)


def test_connect_errors_say_what_happened(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            stranger = Identity.generate().peer_id
            base, _, _ = server.addresses()[0].partition("/p2p/")
            async with open_transport(Identity.generate()) as gone:
                closed = gone.addresses()[0]
            for address, words in (
                (closed, "refused"),
                (f"{base}/p2p/{stranger}", "another peer answered"),
                ("no address", "is not a"),
                (f"{base}/p2p/{client.peer_id}", "own address"),
            ):
                with pytest.raises(ConnectError, match=words) as caught:
                    await client.connect(address)
                assert address in str(caught.value)
            with pytest.raises(ConnectError, match="not connected"):
                await client.open_stream(stranger, ECHO)

    run(case)


def test_connect_without_a_peer_id_tells_who_answered(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with (
            open_transport(Identity.generate()) as client,
            open_transport(Identity.generate()) as server,
        ):
            base, _, _ = server.addresses()[0].partition("/p2p/")
            assert await client.connect(base) == server.peer_id
            assert client.peers() == [server.peer_id]

    run(case)


def test_connect_any_tries_each_and_names_each(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with (
            open_transport(Identity.generate()) as client,
            open_transport(Identity.generate()) as server,
        ):
            async with open_transport(Identity.generate()) as gone:
                dead, _, _ = gone.addresses()[0].partition("/p2p/")
            with pytest.raises(ConnectError, match=f"(?s){dead}.*no such thing"):
                await client.connect_any(server.peer_id, [dead, "no such thing"])
            with pytest.raises(ConnectError, match="no address is known"):
                await client.connect_any(server.peer_id, [])
            await client.connect_any(server.peer_id, [dead, server.addresses()[0]])
            assert client.peers() == [server.peer_id]

    run(case)


def test_disconnect_ends_streams_and_connecting_again_works(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            stream = await client.open_stream(server.peer_id, ECHO)
            await client.disconnect(server.peer_id)
            assert client.peers() == []
            with pytest.raises(StreamClosed):
                await call(stream, b"dead")
            await eventually(lambda: server.peers() == [])
            await client.disconnect(server.peer_id)
            await client.connect(server.addresses()[0])
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await call(stream, b"again") == b"again"

    run(case)


def test_peer_that_leaves_is_seen(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with open_transport(Identity.generate()) as client:
            async with open_transport(Identity.generate()) as server:
                server.handle(ECHO, echo)
                await client.connect(server.addresses()[0])
                stream = await client.open_stream(server.peer_id, ECHO)
                assert await call(stream, b"alive") == b"alive"
            with pytest.raises(StreamClosed):
                await call(stream, b"dead")
            await eventually(lambda: client.peers() == [])

    run(case)


def test_each_change_of_the_peers_is_told(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        told: list[list[PeerId]] = []
        async with open_transport(Identity.generate()) as client:
            client.on_peers_changed(lambda: told.append(client.peers()))
            async with open_transport(Identity.generate()) as server:
                await client.connect(server.addresses()[0])
                await eventually(lambda: told[-1:] == [[server.peer_id]])
                await client.disconnect(server.peer_id)
                await eventually(lambda: told[-1:] == [[]])
                await eventually(lambda: server.peers() == [])
                await client.connect(server.addresses()[0])
                await eventually(lambda: told[-1:] == [[server.peer_id]])
            await eventually(lambda: told[-1:] == [[]])

    run(case)


def note(inbox: set[tuple[PeerId, bytes]], author: PeerId, data: bytes) -> None:
    inbox.add((author, data))


def test_gossip_reaches_all_and_names_its_author(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with (
            open_transport(Identity.generate()) as hub,
            open_transport(Identity.generate()) as one,
            open_transport(Identity.generate()) as other,
        ):
            heard: dict[PeerId, set[tuple[PeerId, bytes]]] = {}
            for transport in (hub, one, other):
                inbox = heard[transport.peer_id] = set()
                transport.subscribe("news", partial(note, inbox))
            await one.connect(hub.addresses()[0])
            await other.connect(hub.addresses()[0])
            news = (one.peer_id, b"hello")
            with trio.fail_after(20):  # subscriptions take a moment to travel: say it again
                while news not in heard[hub.peer_id] or news not in heard[other.peer_id]:
                    await one.publish("news", b"hello")
                    await trio.sleep(0.2)
            assert heard[one.peer_id] == set()  # not to ourselves
            await one.publish("news", b"x" * GOSSIP_BYTES_MAX)
            await eventually(lambda: len(heard[other.peer_id]) == 2)
            with pytest.raises(ValueError, match="at most"):
                await one.publish("news", b"x" * (GOSSIP_BYTES_MAX + 1))

    run(case)


def test_a_peer_that_comes_later_hears_the_newest_message_of_a_topic_that_retains(run: Run) -> None:
    """It hears nothing of others, which have it from their own connections."""

    async def case(open_transport: Open) -> None:
        async with (
            open_transport(Identity.generate()) as early,
            open_transport(Identity.generate()) as hub,
            open_transport(Identity.generate()) as late,
        ):
            heard: dict[PeerId, list[bytes]] = {}
            for transport in (early, hub, late):
                note = heard[transport.peer_id] = []
                for topic in ("state", "news"):
                    transport.subscribe(
                        topic,
                        lambda _author, data, note=note: note.append(data),  # type: ignore[misc]
                        retains=topic == "state",
                    )
            await hub.publish("state", b"old")
            await hub.publish("state", b"new")
            await early.connect(hub.addresses()[0])
            await eventually(lambda: b"new" in heard[early.peer_id])
            await early.publish("state", b"of another")
            await eventually(lambda: b"of another" in heard[hub.peer_id])
            await late.connect(hub.addresses()[0])
            await eventually(lambda: b"new" in heard[late.peer_id])
            await hub.publish("news", b"the end")
            await eventually(
                lambda: all(b"the end" in heard[each.peer_id] for each in (early, late))
            )
            assert heard[early.peer_id] == [b"new", b"the end"]
            assert heard[late.peer_id] == [b"new", b"the end"]

    run(case)


def test_gossip_handler_that_raises_costs_one_message(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            heard: list[bytes] = []

            def handler(author: PeerId, data: bytes) -> None:
                heard.append(data)
                if len(heard) == 1:
                    raise ValueError("a bug in a gossip handler")

            server.subscribe("news", handler)
            client.subscribe("news", lambda author, data: None)
            with trio.fail_after(20):
                while len(heard) < 3:
                    await client.publish("news", b"hello")
                    await trio.sleep(0.2)

    run(case)
    assert "a bug in a gossip handler" in caplog.text


def test_banned_peer_is_dropped_refused_and_let_in_again(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            server.ban(client.peer_id, 2.0)
            await eventually(lambda: client.peers() == [])
            with trio.fail_after(20):
                try:
                    await client.connect(server.addresses()[0])
                    await eventually(lambda: client.peers() == [])  # refused after the handshake
                except ConnectError:
                    pass
                await trio.sleep(2.0)
                await client.connect(server.addresses()[0])
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await call(stream, b"forgiven") == b"forgiven"

    run(case)


def test_traffic_is_counted_by_protocol(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            stream = await client.open_stream(server.peer_id, ECHO)
            before = client.traffic().get(ECHO, (0, 0))
            await call(stream, b"x" * 10_000)
            sent, received = client.traffic()[ECHO]
            assert (sent - before[0], received - before[1]) == (10_004, 10_000)

    run(case)


def test_round_trip_is_measured(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with pair(open_transport) as (client, server):
            await eventually(lambda: client.round_trip_seconds(server.peer_id) is not None)
            seconds = client.round_trip_seconds(server.peer_id)
            assert seconds is not None
            assert 0 < seconds < 5
            assert client.round_trip_seconds(Identity.generate().peer_id) is None

    run(case)


def test_addresses_can_be_dialled_and_name_us(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with (
            open_transport(Identity.generate()) as client,
            open_transport(Identity.generate()) as server,
        ):
            for address in server.addresses():
                assert address.endswith(f"/p2p/{server.peer_id}")
                assert await client.connect(address) == server.peer_id
                await client.disconnect(server.peer_id)

    run(case)


def test_strangers_are_served_only_what_is_for_strangers(run: Run) -> None:
    async def case(open_transport: Open) -> None:
        async with (
            open_transport(Identity.generate()) as server,
            open_transport(Identity.generate()) as friend,
            open_transport(Identity.generate()) as stranger,
        ):
            server.admit(lambda peer: peer != stranger.peer_id)
            server.handle(ECHO, echo)
            server.handle(DOOR, echo, for_strangers=True)
            heard: dict[PeerId, list[bytes]] = {friend.peer_id: [], stranger.peer_id: []}
            server.subscribe("topic", lambda _author, _data: True)
            for one in (friend, stranger):
                note = heard[one.peer_id].append
                one.subscribe("topic", lambda _author, data, note=note: note(data))  # type: ignore[misc]
                await one.connect(server.addresses()[0])
            with pytest.raises(ProtocolRefused):
                await stranger.open_stream(server.peer_id, ECHO)
            stream = await stranger.open_stream(server.peer_id, DOOR)
            assert await call(stream, b"admit me") == b"admit me"
            assert await call(await friend.open_stream(server.peer_id, ECHO), b"?") == b"?"
            assert server.peers() == [friend.peer_id]
            while not heard[friend.peer_id]:
                await server.publish("topic", b"for members")
                await trio.sleep(0.2)
            await trio.sleep(2.0)
            assert heard[stranger.peer_id] == []
            assert stranger.traffic().get("gossip", (0, 0))[1] == 0

    run(case)


def test_a_stranger_that_is_let_in_gets_gossip_on_the_same_connection(run: Run) -> None:
    """Both ends take each other for strangers when they connect."""

    async def case(open_transport: Open) -> None:
        async with (
            open_transport(Identity.generate()) as server,
            open_transport(Identity.generate()) as newcomer,
        ):
            known: set[PeerId] = set()
            heard: dict[PeerId, list[bytes]] = {server.peer_id: [], newcomer.peer_id: []}
            for one in (server, newcomer):
                one.admit(known.__contains__)
                note = heard[one.peer_id].append
                one.subscribe("topic", lambda _author, data, note=note: note(data))  # type: ignore[misc]
            await newcomer.connect(server.addresses()[0])
            await trio.sleep(2.0)
            await server.publish("topic", b"before")
            known |= {server.peer_id, newcomer.peer_id}
            server.let_in(newcomer.peer_id)
            newcomer.let_in(server.peer_id)
            newcomer.let_in(Identity.generate().peer_id)  # it is not connected: nothing happens
            with trio.fail_after(20):
                while not (heard[server.peer_id] and heard[newcomer.peer_id]):
                    await server.publish("topic", b"to the newcomer")
                    await newcomer.publish("topic", b"from the newcomer")
                    await trio.sleep(0.2)

    run(case)
