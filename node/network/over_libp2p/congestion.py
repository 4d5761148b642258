"""Congestion control of TCP: BBR, begun anew where its estimate of the line has collapsed."""

from __future__ import annotations

import logging
import socket
import struct
from contextlib import suppress

from gossamer.node.network.over_libp2p.noise import socket_of

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

_TCP_CC_INFO = 26
_TCP_BBR_INFO = struct.Struct("=II")
"""Option and first two fields of <linux/tcp.h> and <linux/inet_diag.h>: bytes per second."""

_TCP_INFO_BYTES = 104
_UNACKED = struct.Struct("=24xI")
"""The packets in flight in ``struct tcp_info`` of <linux/tcp.h>."""


def tune(connection: object) -> None:
    """Lets the kernel send at the line's rate on long lines, and keep little of what waits.

    Without BBR one lost packet in 200 halves the rate of a line of 100 ms again and again. Without
    a bound on unsent bytes seconds of chunks wait in the kernel, where a vote cannot pass them.
    """
    raw_socket = socket_of(connection)
    if raw_socket is None:
        return
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # not there, or not allowed to this user: the default stays
            raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, BBR)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)


class LineEstimates:
    """BBR's estimates of this node's line, one for each connection that it sends on.

    Symptom: a connection that lost one small packet, while others filled the line, had an estimate
    of 62 kbit/s instead of 20 Mbit/s a second later. The next ring sent 0.09 MB/s on it, and put an
    innocent member out as slow: the estimate took seconds to grow again. Seen in the kernel's view
    of the sockets (``ss -ti``), where the estimate fell with the retransmission of that packet.
    """

    def __init__(self) -> None:
        self._best_rate = 0.0

    def look(self, connection: object) -> None:
        """A stream begins on a connection: if its estimate has collapsed, BBR begins anew."""
        raw_socket = socket_of(connection)
        if raw_socket is None:
            return
        with suppress(OSError):  # the connection has ended
            rate = bbr_bytes_per_second(raw_socket)
            if rate is None:
                return
            self._best_rate = max(rate, FADING * self._best_rate)
            if rate * COLLAPSE_FACTOR < self._best_rate and _is_idle(raw_socket):
                logger.debug("BBR begins anew at %d bytes per second", rate)
                begin_anew(raw_socket)


def bbr_bytes_per_second(raw_socket: socket.socket) -> int | None:
    """BBR's estimate of a connection; None: another algorithm or system.

    Raises:
        OSError: the connection has ended.
    """
    if not hasattr(socket, "TCP_CONGESTION"):
        return None
    name = raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    if name.rstrip(b"\0") != BBR:
        return None
    info = raw_socket.getsockopt(socket.IPPROTO_TCP, _TCP_CC_INFO, 64)
    if len(info) < _TCP_BBR_INFO.size:
        return None
    low, high = _TCP_BBR_INFO.unpack_from(info)
    return int(low | high << 32)


def begin_anew(raw_socket: socket.socket) -> None:
    """Lets BBR forget its estimate and search the line's rate, as on a new connection.

    Raises:
        OSError: the connection has ended.
    """
    for algorithm in (RENO, BBR):
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)


def _is_idle(raw_socket: socket.socket) -> bool:
    info = raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return bool(_UNACKED.unpack_from(info)[0] <= IDLE_PACKETS_MAX)
