"""Liveness of a yamux connection, in virtual time over a channel without a network."""

from __future__ import annotations

import math
from typing import Any, cast

import trio
import trio.testing
from libp2p.peer.id import ID

from gossamer.node.network.libp2p_noise import NoiseSession
from gossamer.node.network.libp2p_yamux import SILENCE_SECONDS_MAX, YamuxConnection
from gossamer.node.network.libp2p_yamux_stream import ACK, HEADER, PING
from gossamer.node.network.transport import PING_SECONDS


class Channel:
    """A noise session whose other side answers when the test says so."""

    is_initiator = True
    has_room = True

    def __init__(self) -> None:
        self.sealed: list[bytes] = []
        self._arrive, self._arrived = trio.open_memory_channel[bytes](math.inf)

    async def receive(self) -> list[bytes]:
        return [await self._arrived.receive()]

    def answer_ping(self) -> None:
        _, kind, _, _, number = HEADER.unpack(self.sealed[-1][-HEADER.size :])
        assert kind == PING
        self._arrive.send_nowait(HEADER.pack(0, PING, ACK, 0, number))

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def seal(self, data: Any) -> None:
        self.sealed.append(bytes(data))

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


def test_our_own_stop_is_not_the_peers_silence() -> None:
    clock = trio.testing.MockClock()

    async def pass_time(seconds: float) -> None:
        clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked(0.005)

    async def main() -> None:
        channel = Channel()
        connection = YamuxConnection(cast(NoiseSession, channel), ID(b"peer"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.start)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                # Stopped for longer than a peer may be silent; its answers have yet to be read.
                await pass_time(3 * SILENCE_SECONDS_MAX)
                assert connection.is_established
                channel.answer_ping()
                await trio.testing.wait_all_tasks_blocked(0.005)
                await pass_time(PING_SECONDS / 2)
                assert connection.is_established
            await pass_time(3 * SILENCE_SECONDS_MAX)
            silent_seconds = 0.0
            while connection.is_established:
                await pass_time(PING_SECONDS / 2)
                silent_seconds += PING_SECONDS / 2
            assert silent_seconds <= PING_SECONDS, "it is asked once more, and that is all"

    trio.run(main, clock=clock)
