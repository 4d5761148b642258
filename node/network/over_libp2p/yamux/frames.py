"""What comes on a yamux connection, cut into frames: headers for the connection, bodies for its
streams.

Frames and the messages that they come in need not line up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from gossamer.node.network.over_libp2p.yamux.stream import HEADER, YamuxStream
from gossamer.protocol.policy.conduct.throttle import Rate, Throttle

SMALL_FRAMES_RATE = Rate(per_second=4000, burst=10_000)
"""Of one connection. A frame takes 3 to 5 us. A line that is full of data has some hundred a
second."""

FRAME_BYTES = 1024
"""So many bytes of a message make up for one of its frames."""

AT_ONCE = 64
"""So many wait for their turn together. A quiet connection has a few in a minute."""

OnHeader = Callable[[int, int, int, int, int], None]
"""Handler of the header of a frame: (version, type, flags, stream id, length)."""

OnBody = Callable[[YamuxStream | None, int], None]
"""Handler of (stream, flags) of a frame whose body has come. None: a stream that has ended."""


class FrameCutter:
    """Cuts the plaintexts of one connection, one after the other."""

    def __init__(self, on_header: OnHeader, on_body: OnBody) -> None:
        """`on_header` calls `expect_body` for a frame that has one."""
        self._on_header = on_header
        self._on_body = on_body
        self._header = b""  # the start of a header whose end has not arrived
        self._left = 0  # bytes of the body that have not arrived
        self._stream: YamuxStream | None = None
        self._flags = 0

    def expect_body(self, stream: YamuxStream | None, flags: int, num_bytes: int) -> None:
        """A body of so many bytes follows the header, perhaps none; for no stream it is dropped."""
        self._left, self._stream, self._flags = num_bytes, stream, flags
        if not num_bytes:
            self._end_body()

    def feed(self, data: memoryview) -> int:
        """Takes a plaintext. Returns the number of frames that begin in it.

        Raises:
            ConnectionClosedError: what `on_header` raises, or a stream's `feed`.
        """
        position, end, num_frames = 0, len(data), 0
        while position < end:
            if self._left:
                take = min(self._left, end - position)
                if self._stream is not None:
                    self._stream.feed(data[position : position + take])
                position += take
                self._left -= take
                if not self._left:
                    self._end_body()
                continue
            if self._header or end - position < HEADER.size:
                missing = HEADER.size - len(self._header)
                self._header += bytes(data[position : position + missing])
                position += missing
                if len(self._header) < HEADER.size:
                    break
                fields = HEADER.unpack(self._header)
                self._header = b""
            else:
                fields = HEADER.unpack_from(data, position)
                position += HEADER.size
            num_frames += 1
            self._on_header(*fields)
        return num_frames

    def _end_body(self) -> None:
        stream, self._stream = self._stream, None
        self._on_body(stream, self._flags)


async def _at_once(_num_frames: float) -> None:
    """No turn to wait for."""


class SmallFrames:
    """Frames of one connection that carry next to nothing, which cost their sender less than this
    node: those beyond a rate wait, and so does all that their peer sends behind them."""

    def __init__(self) -> None:
        self.turn: Callable[[float], Awaitable[None]] = _at_once
        """Returns when more may be read after so many small frames."""
        self._rate = Throttle(SMALL_FRAMES_RATE)
        self._num_waiting = 0.0

    async def came(self, now: float, num_frames: int, num_bytes: int) -> None:
        """Returns when more may be read after a message in which so many frames have begun."""
        # A message without a frame is no cheaper than one with one.
        num_small = max(1, num_frames) - num_bytes / FRAME_BYTES
        if num_small <= 0:
            return
        if seconds := self._rate.take(now, num_small):
            await trio.sleep(seconds)
        self._num_waiting += num_small
        if self._num_waiting >= AT_ONCE:
            num_small, self._num_waiting = self._num_waiting, 0.0
            await self.turn(num_small)
