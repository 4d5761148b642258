"""Echoes to libp2p's pings (`/ipfs/ping/1.0.0`), by which other programs measure a round trip.

Nodes ask each other by yamux's own pings (`yamux/signs_of_life.py`).

Symptom: py-libp2p echoes as fast as a peer sends, on as many streams as it opens. One peer took a
quarter of a core so, with 32 bytes for each echo.
"""

from __future__ import annotations

import math
from contextlib import suppress

import trio
from libp2p.host.ping import ID as PING_ID
from libp2p.host.ping import PING_LENGTH

from gossamer.node.network.transport import Stream, StreamClosed

PROTOCOL = str(PING_ID)
ECHO_BYTES = PING_LENGTH

PAUSE_SECONDS = 0.1
"""Shortest time between two echoes of a stream. Programs open a stream for each ping, or ping once
a second."""

SILENCE_SECONDS_MAX = 60.0
"""Longest wait for a further ping, or until an echo is read."""

STREAMS_MAX = 2
"""Streams of one peer, as the specification recommends: one, and one that is ending."""


async def answer(stream: Stream) -> None:
    """Serves one stream until the peer ends it. That is noticed at once: other programs open no
    further stream before."""
    next_seconds = -math.inf
    with suppress(StreamClosed):
        while True:
            with trio.fail_after(SILENCE_SECONDS_MAX):
                ping = await stream.receive_exactly(ECHO_BYTES)
                await trio.sleep_until(next_seconds)
                next_seconds = trio.current_time() + PAUSE_SECONDS
                await stream.send(ping)
