"""The line in which the streams of strangers wait for their turn, and another for their frames.

To agree on the protocol of a stream, and to run its handler, costs this node up to 0.8 ms, and its
peer next to nothing. An identity costs nothing either. So peers without standing share a rate, in
equal parts by network. Members have no turn to wait for: a ring waits for what they ask.

A stream waits and is not refused: a newcomer that was refused by chance would lose to strangers
that open more. What waits is bounded by the streams that a connection may have open.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import trio

from gossamer.protocol.policy.conduct.throttle import Rate, Throttle

STRANGERS_RATE = Rate(per_second=250, burst=1000)
"""Streams of all peers without standing together: a fifth of a processor at most, in the long run.
A newcomer opens some ten in its first second, and a few each second after that. The burst is for a
swarm that starts at once, in which nobody has standing yet."""

STRANGERS_FRAMES_RATE = Rate(per_second=20_000, burst=100_000)
"""Frames with next to nothing in them of all peers without standing together, at some 3 to 5 us
each: a tenth of a processor at most, in the long run. Each connection has a rate of its own, and
334 connections that keep to it would take four processors."""


class StreamTurns:
    """One line of one node."""

    def __init__(self, rate: Rate | None = None) -> None:
        """`rate`: of what passes in all; None: that of streams."""
        self._rate = Throttle(rate or STRANGERS_RATE)
        self._line = trio.Lock()
        self._networks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        """The lock of each network from which streams wait, as long as one of them does."""

    async def turn(self, network: str, amount: float = 1.0) -> None:
        """Returns when one more stream from a network may be served, or so many more frames.

        A connection waits with one stream at a time, so its other streams stand behind it.

        Cancellation: the stream may count as served.
        """
        if not self._networks and self._rate.try_take(trio.current_time(), amount):
            return
        # One stream of each network stands in the line: many identities there get no more.
        lock = self._networks.setdefault(network, trio.Lock())
        async with lock, self._line:
            await trio.sleep(self._rate.take(trio.current_time(), amount))
