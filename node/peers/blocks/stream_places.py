"""The places for streams on which this node serves blocks: shared out, and none for ever.

Identities cost nothing, and neither does a stream that asks for nothing. Thirteen strangers with
sixteen such streams each would take all places of strangers at every node, and nobody could join
the run any more.

Rules
-----
- Strangers and members (`uploads.Uploads.is_member`) leave one place in `LEFT_SHARE` to each other.
  While a place is free for the newcomer's kind, no other stream ends.
- Where members have fewer places than are theirs, a member takes one of the strangers.
- Else one of the newcomer's kind gives way: the stream whose peer has kept this node waiting for
  the longest, if that is longer than `STALLED_SECONDS`. The peer asks for nothing, or does not read
  what it asked for.
- Else the oldest one of the network that has the most, if the newcomer's has fewer by two. The
  oldest and not the idlest: a byte now and then makes an attacker's stream look busy.
- Else, within the newcomer's network, the oldest one of the peer that has the most, if the newcomer
  has fewer by two.
- Otherwise the newcomer is refused.

This module does no I/O and has no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gossamer.node.network.places import NoPlaceError, oldest_of_most
from gossamer.protocol.ids import PeerId

LEFT_SHARE = 4
"""One in so many places is left to the other kind of peers."""

STALLED_SECONDS = 30.0
"""Time after which a stream counts as stalled. A peer takes a piece of 256 KiB in it with a line of
70 kbit/s for each of its streams."""


@dataclass(eq=False)
class ServedStream:
    """One stream of another peer."""

    peer: PeerId
    network: str
    """The network that the peer is in."""
    is_member: bool
    end: Callable[[], None] = field(repr=False)
    """Ends it."""
    waits_since: float = math.inf
    """Local time since which this node waits for the peer to ask or to read; infinite while the
    peer waits for this node."""

    @contextmanager
    def waiting(self, now: float) -> Iterator[None]:
        """A context for the time in which this node waits for the peer. It begins now."""
        self.waits_since = now
        try:
            yield
        finally:
            self.waits_since = math.inf


class StreamPlaces:
    """The streams on which one node serves blocks. Times are the local clock in seconds."""

    def __init__(self, streams_max: int) -> None:
        """`streams_max`: places of all peers together."""
        self._streams_max = streams_max
        self._kind_max = max(1, streams_max - streams_max // LEFT_SHARE)
        self.taken: dict[ServedStream, None] = {}
        """In the order in which they began."""

    def take(self, now: float, newcomer: ServedStream) -> None:
        """A stream begins. Another one ends for it if need be.

        Raises:
            NoPlaceError: none gives way.
        """
        own = [stream for stream in self.taken if stream.is_member == newcomer.is_member]
        if len(own) >= self._kind_max or len(self.taken) >= self._streams_max:
            giving = self._giving_way(now, newcomer, own)
            if giving is None:
                raise NoPlaceError(f"this peer serves {len(self.taken)} streams already")
            self.leave(giving)  # its place is free at once
            giving.end()
        self.taken[newcomer] = None

    def leave(self, stream: ServedStream) -> None:
        """A stream has ended."""
        self.taken.pop(stream, None)

    def _giving_way(
        self, now: float, newcomer: ServedStream, own: list[ServedStream]
    ) -> ServedStream | None:
        """`own`: the streams of the newcomer's kind."""
        if newcomer.is_member and len(own) < self._kind_max:
            strangers = [stream for stream in self.taken if not stream.is_member]
            return _stalled(now, strangers) or oldest_of_most(strangers, None, _network)
        neighbours = [stream for stream in own if stream.network == newcomer.network]
        return (
            _stalled(now, own)
            or oldest_of_most(own, newcomer, _network)
            or oldest_of_most(neighbours, newcomer, _peer)
        )


def _stalled(now: float, streams: list[ServedStream]) -> ServedStream | None:
    """The stream that has been stalled for the longest; None where none is."""
    idlest = min(streams, key=lambda each: each.waits_since, default=None)
    return None if idlest is None or now - idlest.waits_since <= STALLED_SECONDS else idlest


def _network(stream: ServedStream) -> str:
    return stream.network


def _peer(stream: ServedStream) -> PeerId:
    return stream.peer
