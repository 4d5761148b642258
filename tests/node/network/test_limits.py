"""A limit holds for what really leaves and arrives over the real network."""

from __future__ import annotations

import pytest
import trio

from gossamer.node.base.rate_limit import Limits, Period, RateLimit
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import Stream

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
PROTOCOL = "/test/bulk/1"
MBIT = 16.0
NUM_BYTES = 4_000_000
"""Two seconds at the limit."""

SHARE_MIN = 0.8
"""Part of the limit that is used: the rest are headers (5 %), handshakes and a busy machine."""


@pytest.mark.parametrize("direction", ["up", "down"])
def test_two_streams_together_keep_to_the_limit(direction: str) -> None:
    received = 0

    async def main() -> float:
        limited = RateLimit([Period(MBIT)])
        limits = Limits(limited if direction == "up" else RateLimit(), limited)
        limits = Limits(limited, RateLimit()) if direction == "up" else Limits(RateLimit(), limited)
        done = trio.Event()

        async def take(stream: Stream) -> None:
            nonlocal received
            while received < NUM_BYTES:
                piece = await stream.receive_exactly(50_000)
                received += len(piece)
            done.set()

        sender_limits = limits if direction == "up" else Limits(RateLimit(), RateLimit())
        taker_limits = limits if direction == "down" else Limits(RateLimit(), RateLimit())
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK, limits=sender_limits) as sender,
            open_libp2p_transport(Identity.generate(), LOOPBACK, limits=taker_limits) as taker,
        ):
            taker.handle(PROTOCOL, take)
            await sender.connect(taker.addresses()[0])
            async with trio.open_nursery() as nursery:
                streams = [await sender.open_stream(taker.peer_id, PROTOCOL) for _ in range(2)]
                started = trio.current_time()
                for stream in streams:
                    nursery.start_soon(stream.send, bytes(NUM_BYTES))
                await done.wait()
                nursery.cancel_scope.cancel()
                return trio.current_time() - started

    with_limit = NUM_BYTES * 8 / 1e6 / trio.run(main)
    assert SHARE_MIN * MBIT < with_limit <= 1.05 * MBIT
