"""Congestion control of TCP: BBR, kept from overfilling the line, and begun anew where its estimate
of the line has collapsed."""

from __future__ import annotations

import logging
import math
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

import trio

logger = logging.getLogger(__name__)

# Measures the line's rate and delay and ignores single losses (Cardwell et al., ACM Queue, 2016).
BBR = b"bbr"
# Every Linux has it. A change of algorithm and back is the only way to begin anew.
RENO = b"reno"
# Bytes that the kernel has taken and not sent: 50 ms of a line of 20 Mbit/s, and enough to keep a
# line of 1 Gbit/s busy for a millisecond, until this process writes again.
UNSENT_BYTES_MAX = 128 * 1024

# An estimate so far below the best one of this node's line is not the line's rate: members of one
# ring differ by less (`link_rates.SLOW_FACTOR`).
COLLAPSE_FACTOR = 4.0
# The best estimate fades by this at each look, so that a slower line is learnt in some 70 looks.
FADING = 0.98
# Packets in flight while a connection is as good as idle: the initial window (RFC 6928). Packets
# that fill the line are not disturbed.
IDLE_PACKETS_MAX = 10

# Interval of the looks at a connection while bulk data waits: a round trip over an ocean.
LOOK_SECONDS = 0.1
# How far a search may exceed the rate that was found. BBR's own gain is 2.89. With 1.25 twice as
# many packets are lost, and with 1.0 a faster line would not be learnt.
SEARCH_GAIN = 1.1
# The rate that was found fades by this at each look, so that a slower line is learnt in seconds.
FOUND_FADING = 0.99
# A rate of at least this part of the best estimate is that of this node's line.
LINE_SHARE = 0.5
# A search has filled the line when its estimate has not grown by this in so many round trips, as
# BBR's own search ends, and when it loses as many packets as end that of BBR version 3
# (draft-ietf-ccwg-bbr, "Startup"; some tens of packets are in flight then).
GROWTH = 1.25
FULL_ROUND_TRIPS = 3
LOST_PACKETS_MIN = 10
LOST_SHARE_MIN = 0.02

_TCP_CC_INFO = 26
_TCP_BBR_INFO = struct.Struct("=III4xI")
"""Option of <linux/tcp.h>, and of ``struct tcp_bbr_info`` of <linux/inet_diag.h>: the two halves of
the estimate in bytes per second, the round trip in microseconds, the window's gain in 1/256."""

_STEADY_WINDOW_GAIN = 2 * 256
"""The gain of the window when BBR has ended its search and does not measure the round trip either
(``bbr_cwnd_gain`` of the kernel's tcp_bbr.c)."""

_TCP_INFO_BYTES = 196
_TCP_INFO = struct.Struct("=24xI72xI88xI")
"""Of ``struct tcp_info`` of <linux/tcp.h>: packets in flight, sent again and received, the latter
two since the beginning."""

_SO_MAX_PACING_RATE = 47
_NO_MAX_PACING_RATE = 2**32 - 1
"""Option and value of <asm-generic/socket.h>: bytes per second."""


def tune(stream: trio.SocketStream) -> None:
    """Lets the kernel send at the line's rate on long lines, and keep little of what waits.

    Without BBR one lost packet in 200 halves the rate of a line of 100 ms again and again. Without
    a bound on unsent bytes seconds of chunks wait in the kernel, where a vote cannot pass them.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # not there, or not allowed to this user: the default stays
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, BBR)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)


class LineRate:
    """The best of BBR's estimates of this node's line, over all connections that it sends on."""

    def __init__(self) -> None:
        self.bytes_per_second = 0.0

    def seen(self, bytes_per_second: float) -> None:
        """A connection has this estimate."""
        self.bytes_per_second = max(bytes_per_second, self.bytes_per_second)

    def fade(self) -> None:
        """A stream begins: a line that has become slower is learnt."""
        self.bytes_per_second *= FADING


class LineSearch:
    """BBR's search for the line's rate on one connection, helped by what had been found before.

    A collapsed estimate. Symptom: a connection that lost one small packet, while others filled the
    line, had an estimate of 62 kbit/s instead of 20 Mbit/s a second later (``ss -ti``). The next
    ring put an innocent member out as slow: the estimate took seconds to grow again. So BBR begins
    anew where its estimate is far below the line's rate: when a stream begins on an idle
    connection, and once in the middle of a stream.

    An overfilled line. BBR does not count a round trip in which the program had nothing to send, so
    a ring that waits for its input never ends the search. Symptom: on a line of 100 Mbit/s and 100
    ms the first megabyte of each ring left at 300 Mbit/s and overflowed the router's queue. In one
    of twenty rings BBR then took the rate of the loss recovery for the line's, and ended its search
    there. So a search is held near the rate that was found before. BBR probes for more by itself
    once the search has ended; then nothing holds it.
    """

    def __init__(self, raw_socket: socket.socket, line: LineRate) -> None:
        self._socket = raw_socket
        self._line = line
        self._look_at = -math.inf
        self._found_rate = 0.0
        """Bytes per second; 0 until BBR had ended a search, or its search had filled the line."""
        self._max_pacing_rate = _NO_MAX_PACING_RATE
        self._may_begin_anew = True
        self._grown = BbrView(0, True, math.inf, 0, 0, 0)
        """The view when the estimate last grew in this stream."""
        self._grown_seconds = 0.0

    def begin(self) -> None:
        """A stream begins: if the estimate of an idle connection has collapsed, BBR begins anew."""
        self._may_begin_anew = True
        self._grown = self._grown._replace(bytes_per_second=0)
        view = self._view()
        if view is None:
            return
        self._line.fade()
        self._line.seen(view.bytes_per_second)
        is_idle = view.in_flight <= IDLE_PACKETS_MAX
        if is_idle and view.bytes_per_second * COLLAPSE_FACTOR < self._line.bytes_per_second:
            self._begin_anew(view)

    def look(self, now: float) -> None:
        """Bulk data waits on the connection. `now`: local time in seconds."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        view = self._view()
        if view is None:
            return
        self._learn(view, now)
        has_collapsed = view.bytes_per_second * COLLAPSE_FACTOR < self._found_rate
        if has_collapsed and not view.is_searching and self._may_begin_anew:
            self._may_begin_anew = False
            self._begin_anew(view)
        else:
            self._bound(is_searching=view.is_searching)

    def _learn(self, view: BbrView, now: float) -> None:
        rate = view.bytes_per_second
        self._line.seen(rate)
        if not view.is_searching:
            self._found_rate = max(rate, FOUND_FADING * self._found_rate)
        elif self._found_rate or self._fills_the_line(view, now):
            self._found_rate = max(rate, self._found_rate)

    def _fills_the_line(self, view: BbrView, now: float) -> bool:
        """Returns whether a search has stopped to grow and loses packets. Losses alone say little:
        they may come from what other connections send."""
        before = self._grown
        if view.bytes_per_second >= GROWTH * before.bytes_per_second:
            self._grown, self._grown_seconds = view, now
            return False
        lost, received = view.sent_again - before.sent_again, view.received - before.received
        return (
            now - self._grown_seconds >= FULL_ROUND_TRIPS * view.round_trip_seconds
            and lost >= LOST_PACKETS_MIN
            and lost >= LOST_SHARE_MIN * received
        )

    def _begin_anew(self, view: BbrView) -> None:
        self._bound(is_searching=True)
        logger.debug("BBR begins anew at %d bytes per second", view.bytes_per_second)
        with suppress(OSError):  # the connection has ended
            begin_anew(self._socket)

    def _bound(self, *, is_searching: bool) -> None:
        """Sets the largest rate of the connection."""
        rate = _NO_MAX_PACING_RATE
        # A rate below that share is the other end's, or of a collapse.
        is_the_lines = self._found_rate >= LINE_SHARE * self._line.bytes_per_second
        if is_searching and self._found_rate and is_the_lines:
            rate = min(rate, int(SEARCH_GAIN * self._found_rate))
        if rate == self._max_pacing_rate:
            return
        self._max_pacing_rate = rate
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=I", rate))

    def _view(self) -> BbrView | None:
        """The kernel's view; None: another algorithm or system, or the connection has ended."""
        with suppress(OSError):
            return bbr_view(self._socket)
        return None


class BbrView(NamedTuple):
    """The kernel's view of a connection under BBR."""

    bytes_per_second: int
    """BBR's estimate of the line."""
    is_searching: bool
    """Whether BBR has not ended its search, or measures the round trip."""
    round_trip_seconds: float
    """The shortest one."""
    in_flight: int
    """Packets."""
    sent_again: int
    """Packets since the beginning."""
    received: int
    """Packets that the other end has received since the beginning."""


def bbr_view(raw_socket: socket.socket) -> BbrView | None:
    """The kernel's view of a connection; None: another algorithm or system.

    Raises:
        OSError: the connection has ended.
    """
    if not hasattr(socket, "TCP_CONGESTION"):
        return None
    name = raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    if name.rstrip(b"\0") != BBR:
        return None
    estimate = raw_socket.getsockopt(socket.IPPROTO_TCP, _TCP_CC_INFO, 64)
    packets = raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if len(estimate) < _TCP_BBR_INFO.size or len(packets) < _TCP_INFO.size:
        return None
    low, high, round_trip, window_gain = _TCP_BBR_INFO.unpack_from(estimate)
    is_searching = window_gain != _STEADY_WINDOW_GAIN
    return BbrView(
        low | high << 32, is_searching, round_trip / 1e6, *_TCP_INFO.unpack_from(packets)
    )


def begin_anew(raw_socket: socket.socket) -> None:
    """Lets BBR forget its estimate and search the line's rate, as on a new connection.

    Raises:
        OSError: the connection has ended.
    """
    for algorithm in (RENO, BBR):
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
