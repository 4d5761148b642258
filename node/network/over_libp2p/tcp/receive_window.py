"""How much a peer may send ahead of what this node has read, where the download is limited.

A limit of the download is kept by reading later. What a peer sends meanwhile goes into the kernel's
buffer at the full rate of the line, and on a fast line the kernel lets that buffer grow to
megabytes: a ring of some seconds would come in as if there were no limit.

Whenever a peer that paused goes on, a whole window comes in at the full rate of the line. So the
window is no larger than the round trip needs.
"""

from __future__ import annotations

import math
import socket
import sys
from contextlib import suppress
from pathlib import Path

SPARE_SECONDS = 0.05
"""Unread data besides what is on its way, as time at the limit: more than two turns of a caller
(`rate_limit.PIECE_SECONDS`), and with what the limit lets through at once a thirtieth of 3 s."""

ROUND_TRIP_SECONDS = 0.2
"""Where the kernel does not say how long the round trip is. Few pairs of homes have a longer one,
which makes a connection slower than its limit."""

ROUND_TRIP_SECONDS_MAX = 1.0
"""The kernel says more than an hour before it has measured."""

ROUND_TRIP_STEP_SECONDS = 0.01
"""The window follows the round trip in such steps, and so changes seldom."""

WINDOW_BYTES_MIN = 32 * 1024
"""Some packets have to be on their way for TCP to work well."""

_MOST = Path("/proc/sys/net/core/rmem_max")
_MOST_BYTES = 212_992
"""The largest buffer that this system gives to a program that asks, and Linux's own default."""

_SO_BUF_LOCK = 72
"""Option of <asm-generic/socket.h>, Linux 5.14: 0 lets the kernel choose the size again."""


_CAN_WAIT_FOR_BYTES = sys.platform == "linux"
"""Elsewhere SO_RCVLOWAT is absent, refused, or not looked at by every way to wait."""

_UNREAD_SHARE = 4
"""At most this fraction of the window is unread while more is waited for: the window that the peer
may use shrinks by what is unread, and on a new connection it is as short as one message."""

_SMALL_WAKE_BYTES = 4096
"""So few bytes are waited for whatever the window is."""

_WINDOW_PLACE = 64
"""Where `struct tcp_info` has the present upper bound of the window, in bytes (`rcv_ssthresh`)."""

_MIN_RTT_PLACE = 148
"""Where `struct tcp_info` of <linux/tcp.h> has the shortest round trip of the last minutes, in
microseconds (Linux 4.6)."""


def window_bytes(bytes_per_second: float, round_trip_seconds: float) -> int:
    """Returns how much may be on its way at a limit."""
    num_steps = math.ceil(round_trip_seconds / ROUND_TRIP_STEP_SECONDS)
    seconds = num_steps * ROUND_TRIP_STEP_SECONDS + SPARE_SECONDS
    return max(WINDOW_BYTES_MIN, int(bytes_per_second * seconds))


def round_trip_seconds(raw_socket: socket.socket) -> float:
    """Returns the shortest round trip of a connection, or what is assumed of one that is not
    known. OSError."""
    if sys.platform == "linux":
        info = raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_PLACE + 4)
        if len(info) == _MIN_RTT_PLACE + 4:
            microseconds = int.from_bytes(info[_MIN_RTT_PLACE:], sys.byteorder)
            return min(microseconds * 1e-6, ROUND_TRIP_SECONDS_MAX)
    return ROUND_TRIP_SECONDS


def _window_bytes(raw_socket: socket.socket) -> int:
    """The window that the kernel gives at present at most; 0 where it does not say. OSError."""
    info = raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WINDOW_PLACE + 4)
    return int.from_bytes(info[_WINDOW_PLACE:], sys.byteorder)


def most_bytes() -> int:
    """Returns the largest window that can be asked for."""
    with suppress(OSError, ValueError):
        return int(_MOST.read_text())
    return _MOST_BYTES


class ReceiveWindow:
    """The window that the kernel gives to the other end of a connection."""

    def __init__(self, raw_socket: socket.socket) -> None:
        self._socket = raw_socket
        self._bytes: int | None = None
        """What was asked for; None while the kernel chooses."""
        self._wake_bytes = 1
        """Unread bytes at which the kernel says that there is something to read."""

    def wake_at(self, num_bytes: int) -> None:
        """The kernel says that there is something to read when so many bytes have come, or a part
        of the window, or when the connection has ended. Elsewhere than on Linux it says so at the
        first byte.

        Symptom: on a line of 20 Mbit/s a process woke for every packet or two, thirty times for
        each message of 64 KiB. No byte of such a message is of use before its last one has come.
        """
        if not _CAN_WAIT_FOR_BYTES:
            return
        with suppress(OSError):  # the connection may have ended: reading says so
            if num_bytes > _SMALL_WAKE_BYTES:
                share = _window_bytes(self._socket) // _UNREAD_SHARE
                num_bytes = min(num_bytes, max(share, _SMALL_WAKE_BYTES))
            if num_bytes == self._wake_bytes:
                return
            self._wake_bytes = num_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)

    def fit(self, bytes_per_second: float) -> None:
        """Fits the window to a limit (inf: none). Call it whenever something is to be read.

        The kernel never takes back what it has let the peer send: a smaller window holds when that
        has come. Where the system gives no window as large as the limit needs, the kernel goes on
        to choose: a window that is too small would make long lines slower than the limit.
        """
        with suppress(OSError):  # the connection may have ended: reading says so
            wanted: int | None = None
            if bytes_per_second != math.inf:
                wanted = window_bytes(bytes_per_second, round_trip_seconds(self._socket))
            if wanted == self._bytes:
                return
            self._bytes = wanted
            if wanted is not None and wanted <= most_bytes():
                # The kernel takes twice as much, for what it keeps beside the data.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
            elif sys.platform == "linux":
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
