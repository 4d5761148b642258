"""The windows of a yamux connection's streams: how much may be on its way before it is read.

A stream begins with the 256 KiB of yamux's specification, which a line of 100 Mbit/s sends in a
fifth of a round trip of 100 ms. A ring opens new streams, so what earlier streams of the connection
have shown is kept for the later ones: the window that they came to need, and the window that the
peer gives to a new stream.
"""

from __future__ import annotations

SPEC_WINDOW_BYTES = 256 * 1024  # what both sides may send before any update (yamux spec)
# One whole chunk of the ring in flight from the first moment; 256 KiB would stall it four times.
FIRST_WINDOW_BYTES = 1024 * 1024
# 100 Mbit/s at 640 ms or 1 Gbit/s at 64 ms: the long fat links of home machines.
STREAM_WINDOW_BYTES_MAX = 8 * 1024 * 1024
# Credit goes back when so much was read, or half of the window: what waits for it is not under way.
CREDIT_BYTES_MAX = 256 * 1024
# Upper bound on the unread bytes that one peer can make us hold, in at most twice the memory: its
# streams' windows stop growing at this sum.
CONNECTION_WINDOW_BYTES_MAX = 32 * 1024 * 1024
# So many of the streams that a peer has open here begin with a large window: what a peer can make
# us hold is 16 MiB for these and 12 MiB for the others, besides the sum above.
LARGE_WINDOWS_MAX = 16


class Windows:
    """The windows of the streams of one connection, and the sum of what they were granted."""

    def __init__(self) -> None:
        self.widest_bytes = FIRST_WINDOW_BYTES
        """The widest window that a stream here came to need."""
        self._granted = 0
        self._peer_gives_large: bool | None = None
        """Whether the peer gives a new stream `FIRST_WINDOW_BYTES`; None before one has shown."""

    def grant(self, num_bytes: int) -> int:
        """Returns the part of `num_bytes` more window that the connection's sum allows."""
        num_bytes = max(0, min(num_bytes, CONNECTION_WINDOW_BYTES_MAX - self._granted))
        self._granted += num_bytes
        return num_bytes

    def give_back(self, num_bytes: int) -> None:
        """A stream has ended that was granted so many bytes."""
        self._granted -= num_bytes

    def of_inbound(self, num_open: int) -> int:
        """Returns the first window of a stream that the peer opens beside so many others."""
        return FIRST_WINDOW_BYTES if num_open < LARGE_WINDOWS_MAX else SPEC_WINDOW_BYTES

    def of_outbound(self, num_open: int) -> int:
        """Returns how much may be sent on a stream that this node opens beside so many others,
        before the peer says what its window is.

        The peer counts no more of them than this node: an end that has closed a stream has said so
        before it opens the next.
        """
        is_large = self._peer_gives_large and num_open < LARGE_WINDOWS_MAX
        return FIRST_WINDOW_BYTES if is_large else SPEC_WINDOW_BYTES

    def given(self, more_bytes: int, assumed_bytes: int) -> None:
        """The peer's answer to a new stream gives so much more window than the specification's.

        Other implementations answer with the credit of what they have read, which is never as much.
        A peer that gives less than was assumed is not believed again.
        """
        if more_bytes < assumed_bytes:
            self._peer_gives_large = False
        elif (
            more_bytes == FIRST_WINDOW_BYTES - SPEC_WINDOW_BYTES and self._peer_gives_large is None
        ):
            self._peer_gives_large = True
