"""libp2p's pings over the real network: each stream gets its echo, and not without end."""

from __future__ import annotations

from contextlib import suppress

import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.echoes import (
    ECHO_BYTES,
    PAUSE_SECONDS,
    PROTOCOL,
    STREAMS_MAX,
)
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.transport import TransportError
from gossamer.protocol.ids import PeerId

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
ASKING_SECONDS = 1.0


async def _ask_without_end(end: Libp2pTransport, peer: PeerId, echoes: list[bytes]) -> None:
    """Sends further pings before the first echo is there."""
    with suppress(TransportError):
        stream = await end.open_stream(peer, PROTOCOL)

        async def send() -> None:
            with suppress(TransportError):
                while True:
                    await stream.send(bytes(100 * ECHO_BYTES))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            with suppress(TransportError):
                while True:
                    echoes.append(bytes(await stream.receive_exactly(ECHO_BYTES)))


def test_a_ping_is_echoed_at_once_and_again_after_a_pause() -> None:
    async def main() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as one,
            open_libp2p_transport(Identity.generate(), ()) as other,
        ):
            await other.connect(one.addresses()[0])
            with trio.fail_after(10.0):
                stream = await other.open_stream(one.peer_id, PROTOCOL)
                for number in range(3):
                    ping = bytes([number]) * ECHO_BYTES
                    await stream.send(ping)
                    assert await stream.receive_exactly(ECHO_BYTES) == ping
                await stream.close()

    trio.run(main)


def test_a_peer_that_pings_without_end_is_echoed_now_and_then() -> None:
    async def main() -> None:
        echoes: list[bytes] = []
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as one,
            open_libp2p_transport(Identity.generate(), ()) as other,
        ):
            await other.connect(one.addresses()[0])
            began = trio.current_time()
            with trio.move_on_after(ASKING_SECONDS):
                async with trio.open_nursery() as nursery:
                    for _ in range(2 * STREAMS_MAX):
                        nursery.start_soon(_ask_without_end, other, one.peer_id, echoes)
            seconds = trio.current_time() - began
        assert 0 < len(echoes) <= STREAMS_MAX * (1 + seconds / PAUSE_SECONDS)

    trio.run(main)
