"""The windows of yamux's streams on a long line, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID

from gossamer.node.base.rate_limit import NO_LIMIT
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.stream import (
    ACK,
    DATA,
    HEADER,
    WINDOW_UPDATE,
    YamuxStream,
)
from gossamer.node.network.over_libp2p.yamux.windows import (
    FIRST_WINDOW_BYTES,
    LARGE_WINDOWS_MAX,
    SPEC_WINDOW_BYTES,
    Windows,
)
from tests.support.quiet_yamux import NoSocket, quiet_connection

ONE_WAY_SECONDS = 0.05
BYTES_PER_SECOND = 100e6 / 8
BULK_BYTES = 5_000_000
"""What a member sends to its successor in one step of a ring of 20 MB."""


class Line:
    """A noise session over a line with a rate and a delay; `far` is its other end."""

    has_room = True
    has_unsent = False
    is_writable = True
    limit = NO_LIMIT
    socket = NoSocket()

    def __init__(self, *, is_initiator: bool) -> None:
        self.is_initiator = is_initiator
        self.far = self
        self._sealed: list[bytes] = []
        self._arrive, self._arrived = trio.open_memory_channel[tuple[float, bytes]](math.inf)

    async def receive(self) -> list[bytes]:
        at_seconds, data = await self._arrived.receive()
        await trio.sleep_until(at_seconds)
        return [data]

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def seal(self, data: Any) -> None:
        self._sealed.append(bytes(data))

    async def flush(self) -> None:
        sealed, self._sealed = self._sealed, []
        for message in sealed:
            await trio.sleep(len(message) / BYTES_PER_SECOND)
            self.send_at_once(message)

    def send_at_once(self, data: bytes) -> None:
        self.far._arrive.send_nowait((trio.current_time() + ONE_WAY_SECONDS, data))

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


def run_pair(story: Callable[[YamuxConnection, YamuxConnection], Awaitable[None]]) -> None:
    """Runs a story with both ends of a connection; the first one dialled."""

    async def main() -> None:
        near, far = Line(is_initiator=True), Line(is_initiator=False)
        near.far, far.far = far, near
        ends = [quiet_connection(line, ID(b"peer")) for line in (near, far)]
        async with trio.open_nursery() as nursery:
            for end in ends:
                nursery.start_soon(end.start)
                await end.event_started.wait()
            await ends[0].signs.answers_within(1)  # measures the round trip, as a node's pings do
            await ends[1].signs.answers_within(1)
            await story(*ends)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def seconds_of_bulk(near: YamuxConnection, far: YamuxConnection) -> float:
    """The time from the opening of a stream until the other end has all that was sent."""
    begun_seconds = trio.current_time()
    stream = await near.open_stream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send, bytes(BULK_BYTES))
        accepted = cast(YamuxStream, await far.accept_stream())
        await accepted.receive_exactly(BULK_BYTES)
    await stream.close()
    await accepted.close()
    return trio.current_time() - begun_seconds


IDEAL_SECONDS = BULK_BYTES / BYTES_PER_SECOND + ONE_WAY_SECONDS


def test_the_window_grows_with_the_first_half_that_is_read() -> None:
    async def story(near: YamuxConnection, far: YamuxConnection) -> None:
        seconds = await seconds_of_bulk(near, far)
        # 256 KiB are on their way for 21 ms, and the rest waits for the peer's answer.
        assert seconds < IDEAL_SECONDS + 2 * ONE_WAY_SECONDS

    run_pair(story)


def test_a_later_stream_is_not_held_up_by_its_windows() -> None:
    async def story(near: YamuxConnection, far: YamuxConnection) -> None:
        await seconds_of_bulk(near, far)
        later_seconds = await seconds_of_bulk(near, far)
        # 1 MiB is on its way for 84 ms, and a round trip after its first quarter comes the credit.
        assert later_seconds < IDEAL_SECONDS + ONE_WAY_SECONDS

    run_pair(story)


def test_what_was_sent_before_the_peers_answer_counts_in_its_window() -> None:
    async def story(near: YamuxConnection, far: YamuxConnection) -> None:
        first, accepted = await near.open_stream(), cast(YamuxStream, await far.accept_stream())
        await trio.sleep(3 * ONE_WAY_SECONDS)  # the answer has come
        assert first.send_window == FIRST_WINDOW_BYTES
        later = await near.open_stream()
        assert later.send_window == FIRST_WINDOW_BYTES
        accepted = cast(YamuxStream, await far.accept_stream())
        await later.send(bytes(FIRST_WINDOW_BYTES))
        await trio.sleep(3 * ONE_WAY_SECONDS)
        assert later.send_window == 0  # the far end reads nothing yet
        assert accepted.has_unread
        assert far.is_established

    run_pair(story)


def test_no_more_streams_begin_large_than_the_peer_takes() -> None:
    async def story(near: YamuxConnection, far: YamuxConnection) -> None:
        await near.open_stream()
        await far.accept_stream()
        await trio.sleep(3 * ONE_WAY_SECONDS)
        streams = [await near.open_stream() for _ in range(LARGE_WINDOWS_MAX)]
        assert [stream.send_window for stream in streams[-2:]] == [
            FIRST_WINDOW_BYTES,
            SPEC_WINDOW_BYTES,
        ]
        for stream in streams:
            await stream.send(bytes(stream.send_window))
            await far.accept_stream()
        await trio.sleep(1)
        assert far.is_established
        assert all(stream.send_window == 0 for stream in streams)

    run_pair(story)


@pytest.mark.parametrize("answer_bytes", [0, SPEC_WINDOW_BYTES, 2 * SPEC_WINDOW_BYTES])
def test_another_implementation_gets_no_more_than_its_specification_allows(
    answer_bytes: int,
) -> None:
    """It answers a stream with the credit of what it has read, and not with a first window."""

    async def main() -> None:
        line, sent = Line(is_initiator=True), Line(is_initiator=False)
        line.far = sent
        connection = quiet_connection(line, ID(b"peer"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.start)
            await connection.event_started.wait()
            stream = await connection.open_stream()
            nursery.start_soon(stream.send, bytes(SPEC_WINDOW_BYTES))
            answer = HEADER.pack(0, WINDOW_UPDATE, ACK, stream.stream_id, answer_bytes)
            sent.far = line
            sent.send_at_once(answer)
            await trio.sleep(1)
            assert stream.send_window == answer_bytes
            sent.send_at_once(answer)  # some say so with each frame
            await trio.sleep(1)
            assert stream.send_window == 2 * answer_bytes
            later = await connection.open_stream()
            assert later.send_window == SPEC_WINDOW_BYTES
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_peer_that_gives_less_than_before_is_not_believed_again() -> None:
    windows = Windows()
    assert windows.of_outbound(0) == SPEC_WINDOW_BYTES
    more_bytes = FIRST_WINDOW_BYTES - SPEC_WINDOW_BYTES
    windows.given(more_bytes, 0)
    assert windows.of_outbound(0) == FIRST_WINDOW_BYTES
    windows.given(0, more_bytes)
    assert windows.of_outbound(0) == SPEC_WINDOW_BYTES
    windows.given(more_bytes, 0)
    assert windows.of_outbound(0) == SPEC_WINDOW_BYTES


def test_a_stream_without_bulk_takes_nothing_of_the_connections_sum() -> None:
    async def story(near: YamuxConnection, far: YamuxConnection) -> None:
        await seconds_of_bulk(near, far)
        stream = await near.open_stream()
        accepted = cast(YamuxStream, await far.accept_stream())
        for _ in range(1000):  # 20 kB/s, as gossip at its busiest
            await stream.send(bytes(1000))
            await accepted.receive_exactly(1000)
            await trio.sleep(ONE_WAY_SECONDS)
        assert accepted.granted == 0

    run_pair(story)


def test_a_peer_cannot_send_more_than_its_window_on_a_later_stream() -> None:
    async def story(near: YamuxConnection, far: YamuxConnection) -> None:
        await seconds_of_bulk(near, far)
        stream = await near.open_stream()
        await far.accept_stream()
        frame = HEADER.pack(0, DATA, 0, stream.stream_id, FIRST_WINDOW_BYTES + 1)
        cast(Line, near.secured_conn).send_at_once(frame + bytes(FIRST_WINDOW_BYTES + 1))
        await trio.sleep(1)
        assert far.is_closed

    run_pair(story)


def test_what_is_read_again_after_a_cancellation_gives_no_credit_twice() -> None:
    """Otherwise a peer that sends the beginning of a message may send without a bound."""

    async def story(near: YamuxConnection, far: YamuxConnection) -> None:
        stream = await near.open_stream()
        accepted = cast(YamuxStream, await far.accept_stream())
        halves = bytes(FIRST_WINDOW_BYTES), bytes(range(256)) * (FIRST_WINDOW_BYTES // 256)
        await stream.send(halves[0])
        for _ in range(10):
            with trio.move_on_after(1):
                await accepted.receive_exactly(2 * FIRST_WINDOW_BYTES)
        assert stream.send_window <= FIRST_WINDOW_BYTES + accepted.granted
        await stream.send(halves[1])
        assert await accepted.receive_exactly(2 * FIRST_WINDOW_BYTES) == b"".join(halves)
        await trio.sleep(1)
        assert stream.send_window >= FIRST_WINDOW_BYTES // 2

    run_pair(story)
