"""The sending half of a yamux connection: what goes next, and when.

Frames without a body go first, then small data, then the rest. Streams of each kind take turns, a
noise message each. Under the owner's limit the same order holds over all connections of the node.
"""

from __future__ import annotations

import math
from collections import deque

import trio
from libp2p.io.exceptions import ConnectionClosedError

from gossamer.node.network.over_libp2p.noise.noise import PLAINTEXT_BYTES_MAX, NoiseSession
from gossamer.node.network.over_libp2p.tcp.congestion import LineSearch
from gossamer.node.network.over_libp2p.yamux.stream import HEADER, YamuxStream

# A socket that is full for longer is waiting for the line, not for a processor: then one message
# at a time (5 ms at 100 Mbit/s), so that small ones wait for little.
SLOW_LINE_SECONDS = 0.002

# Signs of life that come in shorter intervals are no longer signs of life alone.
SIGN_SECONDS_MIN = 0.1

# Small messages in shorter intervals wait for the task, which sends many at once and gives
# other tasks their turn. Acknowledgements of chunks come every 5 ms at 200 Mbit/s.
MESSAGE_SECONDS_MIN = 0.002

_HEADERS_MAX = PLAINTEXT_BYTES_MAX // HEADER.size


class YamuxWriter:
    """The one task that writes to a connection's socket, and what waits for it."""

    def __init__(self, session: NoiseSession, search: LineSearch) -> None:
        self.control_frames: deque[bytes] = deque()
        """Frames without a body. The connection bounds them."""
        self._session = session
        self._search = search
        self._small: deque[YamuxStream] = deque()
        self._bulk: deque[YamuxStream] = deque()
        self._bulk_turn: trio.CancelScope | None = None
        """The scope of the wait for a turn with bulk data: what is small ends it."""
        self._work = trio.Event()
        self._idle = trio.Event()
        self._sign_at = -math.inf
        """Time of the newest sign of life (local clock)."""
        self._message_at = -math.inf
        """Time at which `write_now` last wrote (local clock)."""
        self._failure: ConnectionClosedError | None = None
        """What `_write_now` met: it ends `run`, and so the connection."""
        self._waits = False
        """Whether `run` waits for work."""

    def add_control(self, frame: bytes) -> None:
        """Queues a frame without a body; it overtakes data."""
        self.control_frames.append(frame)
        self._hurry()

    def add_sign_of_life(self, frame: bytes) -> None:
        """Sends a frame without a body now if nothing else is to be sent, and queues it otherwise.

        A connection without traffic has nothing but these. So neither the task of `run` nor the
        event loop takes a turn for them. Of many in a row only the first goes out so: a peer that
        asks without end gets its answers in batches, which cost less.
        """
        now = trio.current_time()
        is_rare, self._sign_at = now >= self._sign_at + SIGN_SECONDS_MIN, now
        if is_rare and self._may_write_now():
            self._write_now(frame)
        else:
            self.add_control(frame)

    def write_now(self, stream: YamuxStream) -> bool:
        """Sends what is in a stream's outbox, at most `SMALL_BYTES_MAX`, without a turn of `run` or
        a wait. Returns whether it did; where something else waits, it does not."""
        now = trio.current_time()
        size = sum(map(len, stream.outbox))
        is_rare = now >= self._message_at + MESSAGE_SECONDS_MIN
        if not (is_rare and size <= stream.send_window and self._may_write_now()):
            return False
        self._message_at = now
        message = memoryview(bytearray(HEADER.size + size))
        stream.next_frame(message)
        self._write_now(message)
        return True

    def _may_write_now(self) -> bool:
        """Returns whether `run` waits for work, and the owner's limit holds nothing back."""
        return self._waits and not self._work.is_set() and not self._session.limit.is_limited

    def _write_now(self, message: bytes | memoryview) -> None:
        try:
            self._session.send_at_once(message)
        except ConnectionClosedError as error:
            self._failure = error
        if self._failure is not None or self._session.has_unsent:
            self._work.set()

    def schedule(self, stream: YamuxStream) -> None:
        """Queues a stream that has something to send and window for it."""
        line = self._small if stream.is_small else self._bulk
        if stream.outbox and stream.send_window > 0 and stream not in line:
            line.append(stream)
            if stream.is_small:
                self._hurry()
            self._work.set()

    def _hurry(self) -> None:
        self._work.set()
        if self._bulk_turn is not None:
            self._bulk_turn.cancel()

    def clear(self) -> None:
        """Forgets what waits: the connection has ended."""
        self.control_frames.clear()
        self._small.clear()
        self._bulk.clear()
        self._idle.set()

    async def written(self) -> None:
        """Returns when everything that waits has been written, or when the connection has ended."""
        self._idle = trio.Event()
        self._work.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Writes until cancelled. ConnectionClosedError: the connection is gone."""
        session = self._session
        message = memoryview(bytearray(PLAINTEXT_BYTES_MAX))
        while True:
            was_idle = False
            while not self.control_frames and not self._small and not self._bulk:
                self._idle.set()
                self._work = trio.Event()
                self._waits = was_idle = True
                await self._work.wait()
                self._waits = False
                if self._failure is not None:
                    raise self._failure
                if session.has_unsent:
                    await session.send_rest()
            asked_at = trio.current_time()
            # After a wait for work other tasks have had their turn: no need to give them another.
            if not (was_idle and session.is_writable):
                await session.wait_writable()
            slow_line = trio.current_time() - asked_at > SLOW_LINE_SECONDS
            if session.limit.is_limited:
                await self._write_piece(message)
                continue
            self._seal_control(_HEADERS_MAX)
            while (self._small or self._bulk) and session.has_room:
                self._seal_data(self._small or self._bulk, message, PLAINTEXT_BYTES_MAX)
                if slow_line:
                    break
            await session.flush()
            if self._bulk:
                self._search.look(trio.current_time())

    async def _write_piece(self, message: memoryview) -> None:
        """Writes one piece when the owner's limit lets it go: what is small if there is any then.

        What is sealed has to be sent in its order. So nothing is sealed before its turn has come.
        """
        limit = self._session.limit
        while True:
            is_small = bool(self.control_frames or self._small)
            with trio.CancelScope() as scope:
                self._bulk_turn = None if is_small else scope
                await limit.turn(is_small=is_small)
            self._bulk_turn = None
            if not scope.cancelled_caught:
                break
        left = limit.piece_bytes
        left -= self._seal_control(left // HEADER.size)
        if self._small:
            self._seal_data(self._small, message, left)
        elif self._bulk and left == limit.piece_bytes:
            self._seal_data(self._bulk, message, left)
        await self._session.flush()

    def _seal_control(self, frames_max: int) -> int:
        """Seals frames without a body; returns their bytes."""
        frames = [
            self.control_frames.popleft()
            for _ in range(min(len(self.control_frames), frames_max, _HEADERS_MAX))
        ]
        if frames:
            self._session.seal(b"".join(frames))
        return len(frames) * HEADER.size

    def _seal_data(self, line: deque[YamuxStream], message: memoryview, bytes_max: int) -> None:
        """Seals the next frame of the stream whose turn it is."""
        stream = line.popleft()
        length = stream.next_frame(message, bytes_max)
        if length:
            self._session.seal(message[:length])
        self.schedule(stream)
