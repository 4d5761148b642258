"""How often bulk data wakes the tasks of a connection: each time costs some 0.1 ms of a processor
that other programs use as well."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.over_libp2p.noise.noise import MESSAGE_BYTES_MAX, PLAINTEXT_BYTES_MAX
from gossamer.node.network.over_libp2p.tcp.receive_window import ReceiveWindow
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.stream import HEADER, YamuxStream
from gossamer.node.network.over_libp2p.yamux.windows import SPEC_WINDOW_BYTES
from gossamer.node.network.over_libp2p.yamux.writer import MESSAGE_SECONDS_MIN
from tests.node.network.over_libp2p.test_libp2p_guards import running, secured_pair
from tests.node.network.over_libp2p.test_libp2p_yamux import Channel, connection_over
from tests.support.bounded_run import run
from tests.support.quiet_yamux import quiet_connection

PACKET_BYTES = 1448
"""Payload of one TCP segment on Ethernet with timestamps (RFC 7323)."""

PATIENCE_SECONDS = 0.1
"""More than a packet of this machine to itself takes."""

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux waits for more than one byte"
)


class _Turns(trio.abc.Instrument):
    """Counts the turns of one task."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self._task = task
        self.num = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.num += task is self._task


async def is_readable(reading: socket.socket) -> bool:
    with trio.move_on_after(PATIENCE_SECONDS):
        await trio.lowlevel.wait_readable(reading.fileno())
        return True
    return False


@linux
def test_a_socket_is_readable_when_as_much_as_is_wanted_has_come_or_at_its_end() -> None:
    async def case() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            writing = socket.create_connection(listening.getsockname())
            reading, _ = listening.accept()
        with writing, reading:
            window = ReceiveWindow(reading)
            window.wake_at(1000)
            writing.sendall(bytes(999))
            assert not await is_readable(reading)
            writing.sendall(bytes(1))
            assert await is_readable(reading)
            reading.recv(1000)
            window.wake_at(1)
            writing.sendall(bytes(1))
            assert await is_readable(reading)
            reading.recv(1)
            window.wake_at(60_000)  # the window of a new connection is hardly longer
            writing.sendall(bytes(1000))
            assert not await is_readable(reading)
            writing.sendall(bytes(40_000))
            assert await is_readable(reading)
            while len(reading.recv(2**16, socket.MSG_PEEK)) < 41_000:
                pass
            reading.recv(41_000)
            window.wake_at(1000)
            assert not await is_readable(reading)
            writing.close()
            assert await is_readable(reading)

    run(case)


@linux
def test_a_message_that_comes_in_many_packets_wakes_its_reader_a_few_times() -> None:
    """On a line of 20 Mbit/s its reader woke for every packet or two."""
    content = os.urandom(PLAINTEXT_BYTES_MAX)
    turns: list[int] = []

    async def case() -> None:
        async with secured_pair() as (ours, theirs):

            async def receive() -> None:
                counter = _Turns(trio.lowlevel.current_task())
                trio.lowlevel.add_instrument(counter)
                assert await ours.receive() == [content]
                turns.append(counter.num)

            theirs.seal(content)
            end = MESSAGE_BYTES_MAX + 2
            sealed = bytes(theirs._buffers.write[:end])
            raw = theirs.conn.read_writer.read_write_closer
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                for start in range(0, end, PACKET_BYTES):
                    await raw.write(sealed[start : start + PACKET_BYTES])
                    await trio.testing.wait_all_tasks_blocked(0.001)

    run(case)
    assert turns[0] <= 8


def test_a_wait_for_many_bytes_takes_few_turns() -> None:
    """The reader of a stream woke for each message of 64 KiB."""
    num_bytes = 200_000
    turns: list[int] = []

    async def case() -> None:
        async with secured_pair() as (ours, _):
            connection = quiet_connection(ours)
            stream = YamuxStream(2, connection, False)

            async def receive() -> None:
                counter = _Turns(trio.lowlevel.current_task())
                trio.lowlevel.add_instrument(counter)
                assert len(await stream.receive_exactly(num_bytes)) == num_bytes
                turns.append(counter.num)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                for start in range(0, num_bytes, 20_000):
                    stream.feed(memoryview(bytes(20_000)))
                    await trio.testing.wait_all_tasks_blocked()
                    assert start + 20_000 == num_bytes or not turns

    run(case)
    assert turns == [1]


def test_what_came_before_the_end_of_a_stream_stays_readable() -> None:
    async def case() -> None:
        async with secured_pair() as (ours, _):
            stream = YamuxStream(2, quiet_connection(ours), False)

            async def receive() -> None:
                with pytest.raises(MuxedStreamEOF):
                    await stream.receive_exactly(200_000)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await trio.testing.wait_all_tasks_blocked()
                stream.feed(memoryview(bytes(5000)))
                await trio.testing.wait_all_tasks_blocked()
                stream.on_fin()
            assert len(await stream.receive_exactly(5000)) == 5000

    run(case)


@pytest.mark.parametrize("window", [1024, SPEC_WINDOW_BYTES])
def test_more_bytes_than_the_window_holds_are_waited_for(window: int) -> None:
    num_bytes = 5 * window

    async def case() -> None:
        async with secured_pair() as (ours, theirs):
            connection = quiet_connection(ours)
            sender = quiet_connection(theirs)
            async with running(connection, sender), trio.open_nursery() as nursery:
                sending: Any = await sender.open_stream()
                nursery.start_soon(sending.send, bytes(num_bytes))
                receiving: Any = await connection.accept_stream()
                receiving._window = window
                assert len(await receiving.receive_exactly(num_bytes)) == num_bytes

    run(case)


class _Broken(Channel):
    """A noise session whose socket is gone."""

    def send_at_once(self, data: bytes) -> None:
        raise ConnectionClosedError("connection lost")


def over(channel: Channel, case: Callable[[YamuxConnection], Awaitable[None]]) -> None:
    """Runs a case on a connection in virtual time."""

    async def main() -> None:
        connection = connection_over(channel, Liveness(AwakeClock()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.start)
            await connection.event_started.wait()
            await trio.testing.wait_all_tasks_blocked()
            await case(connection)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_small_message_on_an_idle_connection_is_sent_without_a_turn() -> None:
    channel = Channel()

    async def case(connection: YamuxConnection) -> None:
        stream = await connection.open_stream()
        await trio.testing.wait_all_tasks_blocked()
        turns = _Turns(trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(turns)
        del channel.sealed[:]
        await stream.send(b"first ", b"message")
        assert turns.num == 0
        assert channel.sealed[0][HEADER.size :] == b"first message"
        # What comes at once waits for the task that writes, and keeps its place.
        await stream.send(b"second")
        assert turns.num == 1
        await trio.sleep(MESSAGE_SECONDS_MIN)
        await stream.send(b"third")
        bodies = [sealed[HEADER.size :] for sealed in channel.sealed]
        assert bodies == [b"first message", b"second", b"third"]

    over(channel, case)


def test_a_small_message_waits_for_its_window() -> None:
    channel = Channel()

    async def case(connection: YamuxConnection) -> None:
        stream = await connection.open_stream()
        await trio.testing.wait_all_tasks_blocked()
        stream.send_window = 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send, b"message")
            await trio.testing.wait_all_tasks_blocked()
            assert channel.sealed[-1][HEADER.size :] == b"mes"
            stream.send_window = 10
            connection.writer.schedule(stream)
        assert channel.sealed[-1][HEADER.size :] == b"sage"

    over(channel, case)


def test_a_connection_that_fails_under_a_small_message_ends() -> None:
    async def case(connection: YamuxConnection) -> None:
        stream = await connection.open_stream()
        await trio.testing.wait_all_tasks_blocked()
        await stream.send(b"message")
        await connection.event_closed.wait()
        with pytest.raises(MuxedStreamError):
            await stream.send(b"message")

    over(_Broken(), case)
