"""How much a peer may send ahead of what this node has read, where the download is limited.

A limit of the download is kept by reading later. What a peer sends meanwhile goes into the kernel's
buffer at the full rate of the line, and on a fast line the kernel lets that buffer grow to
megabytes: a ring of some seconds would come in as if there were no limit.
"""

from __future__ import annotations

import math
import socket
import sys
from contextlib import suppress
from pathlib import Path

WINDOW_SECONDS = 0.25
"""Data on its way and unread, as time at the limit: a longer round trip than that makes a
connection slower than its limit."""

WINDOW_BYTES_MIN = 32 * 1024
"""Some packets have to be on their way for TCP to work well."""

_MOST = Path("/proc/sys/net/core/rmem_max")
_MOST_BYTES = 212_992
"""The largest buffer that this system gives to a program that asks, and Linux's own default."""

_SO_BUF_LOCK = 72
"""Option of <asm-generic/socket.h>, Linux 5.14: 0 lets the kernel choose the size again."""


def window_bytes(bytes_per_second: float) -> int:
    """Returns how much may be on its way at a limit."""
    return max(WINDOW_BYTES_MIN, int(bytes_per_second * WINDOW_SECONDS))


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

    def fit(self, bytes_per_second: float) -> None:
        """Fits the window to a limit (inf: none). Call it whenever something is to be read.

        The kernel never takes back what it has let the peer send: a smaller window holds when that
        has come. Where the system gives no window as large as the limit needs, the kernel goes on
        to choose: a window that is too small would make long lines slower than the limit.
        """
        wanted: int | None = None
        if bytes_per_second != math.inf:
            wanted = window_bytes(bytes_per_second)
        if wanted == self._bytes:
            return
        self._bytes = wanted
        with suppress(OSError):  # the connection may have ended: reading says so
            if wanted is not None and wanted <= most_bytes():
                # The kernel takes twice as much, for what it keeps beside the data.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
            elif sys.platform == "linux":
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
