"""One stream of a yamux connection: buffers, windows, ends.

A stream does no I/O. Its connection's reader calls `feed` and `on_...`, its connection's writer
calls `next_frame`, and the tasks that use it wait for events that those set.
"""

from __future__ import annotations

import struct
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

import trio
from libp2p.abc import IMuxedStream
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError, MuxedStreamReset

from gossamer.node.base.rate_limit import SMALL_BYTES_MAX
from gossamer.node.network.over_libp2p.noise.noise import PLAINTEXT_BYTES_MAX
from gossamer.node.network.over_libp2p.yamux.windows import (
    CREDIT_BYTES_MAX,
    FIRST_WINDOW_BYTES,
    SPEC_WINDOW_BYTES,
    STREAM_WINDOW_BYTES_MAX,
)

if TYPE_CHECKING:
    from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection

HEADER = struct.Struct("!BBHII")  # version, type, flags, stream id, length
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
FRAME_BYTES_MAX = PLAINTEXT_BYTES_MAX - HEADER.size
"""Largest body of a data frame that this side sends: header and body fill one noise message."""

# A piece is a view into the message that it came in, which it keeps in memory. One that is a
# smaller part of its message is copied, together with others.
_PIECE_PARTS_MAX = 2
# So is a smaller one: a view and its message take some 350 bytes besides the content.
_PIECE_BYTES_MIN = 4096
# A peer that would empty its window in so many round trips is held up by it.
_WINDOW_ROUND_TRIPS = 8
# A busy machine comes so late to its tasks.
_ROUND_TRIP_SECONDS_MIN = 0.005


class PeerViolation(ConnectionClosedError):
    """The connection ends because the peer broke yamux's rules."""


class YamuxStream(IMuxedStream):
    """One stream. `send` and `receive_exactly` are the fast way; read and write are libp2p's.

    It has more than 12 attributes and 15 public methods: both directions have a state of their own,
    and py-libp2p's interface comes on top.
    """

    def __init__(
        self,
        stream_id: int,
        conn: YamuxConnection,
        is_initiator: bool,
        window: int = FIRST_WINDOW_BYTES,
        send_window: int = SPEC_WINDOW_BYTES,
    ) -> None:
        """
        Args:
            window: how much the peer may send before any update of ours.
            send_window: how much this end may send before any update of the peer's.
        """
        self.stream_id = stream_id
        self.conn = conn
        self.muxed_conn = conn
        self.is_initiator = is_initiator
        self.traffic = [0, 0]  # payload bytes sent and received; see `count_in`
        self.send_window = send_window
        self._assumed_bytes = send_window - SPEC_WINDOW_BYTES  # of the peer's window
        self._is_answered = False
        self.outbox: deque[memoryview] = deque()
        self.is_small = False
        """Whether what is being sent is so small that it goes before other streams' data."""
        self._first_window = window
        self._window = window  # how much the peer may have under way to us
        self._credit = window  # of it, what the peer has not used
        self._consumed = 0  # read by us and not yet given back as credit
        self._updated_at: float | None = None  # time of the last update, at first of the first byte
        self._pieces: deque[bytearray | memoryview] = deque()
        self._offset = 0  # read of the first piece
        self._buffered = 0
        self._credited = 0  # of the unread bytes, those whose credit was given when they were read
        self._wanted = 1  # unread bytes that wake the task which reads here
        self._changed = trio.Event()
        self._sending = trio.Lock()
        self._sent = trio.Event()
        self.send_closed = False
        self.recv_closed = False
        self.was_reset = False
        self.discarded_at: float | None = None  # time since which no task reads here

    @property
    def closed(self) -> bool:
        """Returns whether both directions have ended."""
        return self.was_reset or (self.send_closed and self.recv_closed)

    @property
    def has_unread(self) -> bool:
        """Returns whether the next read returns at once with bytes that have come."""
        return self._buffered > 0

    @property
    def unread_bytes(self) -> int:
        """The bytes that have come and that nobody has read."""
        return self._buffered

    # -- sending

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send all parts; see `gossamer.node.network.transport.Stream.send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._sending.acquire_nowait()  # gives no other task a turn where the lock is free
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            self._check_sendable()
            for part in parts:
                if len(part):
                    self.outbox.append(memoryview(part).cast("B"))
            if self.outbox:
                await self._send_outbox()
        finally:
            self._sending.release()

    async def _send_outbox(self) -> None:
        self.is_small = sum(map(len, self.outbox)) <= SMALL_BYTES_MAX
        if self.is_small and self.conn.writer.write_now(self):
            return
        self._sent = trio.Event()
        self.conn.writer.schedule(self)
        try:
            await self._sent.wait()
        except trio.Cancelled:
            self.abort()
            raise
        if self.was_reset:
            raise MuxedStreamReset("the stream was reset while sending")

    async def write(self, data: bytes) -> None:
        """Send `data` (libp2p's interface)."""
        await self.send(data)

    def put_first(self, data: bytes) -> None:
        """Keeps `data` until the first bytes are sent, and sends it before them."""
        if data:
            self.outbox.append(memoryview(data))

    def push(self) -> None:
        """Sends what is kept, without the first bytes, if it is not sent yet. Does not wait."""
        self.conn.writer.schedule(self)

    def _check_sendable(self) -> None:
        if self.was_reset:
            raise MuxedStreamReset("the stream was reset")
        if self.send_closed:
            raise MuxedStreamError("the stream is closed for sending")

    def next_frame(self, message: memoryview, body_bytes_max: int = FRAME_BYTES_MAX) -> int:
        """Write this stream's next data frame into `message`; returns its length, 0 for none."""
        room = min(FRAME_BYTES_MAX, body_bytes_max, self.send_window)
        end = HEADER.size
        limit = end + room
        while self.outbox and end < limit:
            part = self.outbox[0]
            take = min(len(part), limit - end)
            message[end : end + take] = part[:take]
            end += take
            if take == len(part):
                self.outbox.popleft()
            else:
                self.outbox[0] = part[take:]
        length = end - HEADER.size
        if length == 0:
            return 0
        HEADER.pack_into(message, 0, 0, DATA, 0, self.stream_id, length)
        self.send_window -= length
        self.traffic[0] += length
        if not self.outbox:
            self._sent.set()
        return end

    def on_answer(self, more_bytes: int) -> None:
        """The peer has accepted the stream, with so much more window than the specification's."""
        if not self._is_answered:
            self._is_answered = True
            self.conn.windows.given(more_bytes, self._assumed_bytes)
            more_bytes -= self._assumed_bytes
        self.send_window += more_bytes

    # -- receiving

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        """The next bytes; see `gossamer.node.network.transport.Stream.receive_exactly`.

        Raises:
            MuxedStreamEOF: the peer ended the stream first.
            MuxedStreamReset: the stream or the connection died first.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        result = bytearray(num_bytes)
        view = memoryview(result)
        filled = 0
        try:
            while filled < num_bytes:
                # The peer can go on while so much is unread: its credit comes back by halves.
                wanted = min(num_bytes - filled, self._window // 4)
                if self._buffered < wanted:
                    await self._wait_for_data(wanted)
                filled += self._take_into(view[filled:])
        except BaseException:
            if filled:
                self._put_back(view[:filled])
            raise
        return result

    async def read(self, n: int | None = -1) -> bytes:
        """Reads at least one and at most `n` bytes, or all that is there (libp2p's interface)."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if n == 0:
            return b""
        if not self._buffered:
            await self._wait_for_data(1)
        size = self._buffered if n is None or n < 0 else min(n, self._buffered)
        result = bytearray(size)
        self._take_into(memoryview(result))
        return bytes(result)

    async def _wait_for_data(self, num_bytes: int) -> None:
        """Returns when so many bytes are unread. What is less than that stays unread at the end."""
        while self._buffered < num_bytes:
            if self.was_reset:
                raise MuxedStreamReset("the stream was reset")
            if self.recv_closed:
                raise MuxedStreamEOF("the peer has ended the stream")
            self._wanted = num_bytes
            self._changed = trio.Event()
            await self._changed.wait()

    def _take_into(self, target: memoryview) -> int:
        """Move buffered bytes into `target` and give their credit back; returns how many."""
        done = 0
        wanted = len(target)
        while done < wanted and self._pieces:
            piece = self._pieces[0]
            take = min(len(piece) - self._offset, wanted - done)
            target[done : done + take] = memoryview(piece)[self._offset : self._offset + take]
            done += take
            self._offset += take
            if self._offset == len(piece):
                self._pieces.popleft()
                self._offset = 0
        self._buffered -= done
        num_again = min(done, self._credited)  # what was put back lies in front
        self._credited -= num_again
        self._give_credit(done - num_again)
        return done

    def _put_back(self, data: memoryview) -> None:
        """Return bytes to the front of the buffer; their credit was given, and is not given
        again."""
        if self._offset:
            self._pieces[0] = memoryview(self._pieces[0])[self._offset :]
            self._offset = 0
        self._pieces.appendleft(data)
        self._buffered += len(data)
        self._credited += len(data)

    def _give_credit(self, num_bytes: int) -> None:
        self._consumed += num_bytes
        windows = self.conn.windows
        # A window that was wider in earlier streams has no need to prove itself by halves.
        narrow_bytes = SPEC_WINDOW_BYTES if self._window < windows.widest_bytes else self._window
        due_bytes = min(narrow_bytes // 2, CREDIT_BYTES_MAX)
        if self._consumed < due_bytes or self.recv_closed or self.was_reset:
            return
        now = trio.current_time()
        increment = self._consumed
        round_trip_seconds = max(self.conn.signs.rtt_seconds, _ROUND_TRIP_SECONDS_MIN)
        fast_seconds = _WINDOW_ROUND_TRIPS * round_trip_seconds * due_bytes / self._window
        if self._updated_at is not None and now - self._updated_at < fast_seconds:
            wanted = max(2 * self._window, windows.widest_bytes)
            growth = windows.grant(min(wanted, STREAM_WINDOW_BYTES_MAX) - self._window)
            self._window += growth
            windows.widest_bytes = max(windows.widest_bytes, self._window)
            increment += growth
        self._updated_at = now
        self._consumed = 0
        self._credit += increment
        self.conn.control(WINDOW_UPDATE, 0, self.stream_id, increment)

    def feed(self, piece: memoryview) -> None:
        """Take bytes from the connection's reader: a view into a message of bytes.

        Raises:
            PeerViolation: the peer sent more than its window.
        """
        size = len(piece)
        self._credit -= size
        if self._credit < 0:
            raise PeerViolation("the peer sent more than its receive window")
        self.traffic[1] += size
        if self._updated_at is None:
            self._updated_at = trio.current_time()
        if self.recv_closed or self.was_reset:
            return
        if self.discarded_at is not None:
            self.abort()  # no task will read this: the peer should stop sending
            return
        message_bytes = len(piece.obj)  # type: ignore[arg-type]  # bytes
        if size >= _PIECE_BYTES_MIN and _PIECE_PARTS_MAX * size >= message_bytes:
            self._pieces.append(piece)
        elif (
            self._pieces
            and isinstance(last := self._pieces[-1], bytearray)
            and len(last) < PLAINTEXT_BYTES_MAX
        ):
            last += piece
        else:
            self._pieces.append(bytearray(piece))
        self._buffered += size
        if self._buffered >= self._wanted:
            self._changed.set()

    # -- ending

    async def close(self) -> None:
        """End our direction; the peer's stays open (libp2p's half-close)."""
        async with self._sending:
            if not self.send_closed and not self.was_reset:
                self.send_closed = True
                self.conn.control(WINDOW_UPDATE, FIN, self.stream_id, 0)
                self.conn.forget_if_closed(self)

    def discard(self) -> None:
        """No task will read here any more: drop what is buffered and what still comes."""
        if self.discarded_at is None:
            self.discarded_at = trio.current_time()
        self._pieces.clear()
        self._offset = self._buffered = self._credited = 0

    async def reset(self) -> None:
        """End both directions at once."""
        self.abort()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        """`reset` for places that cannot wait."""
        if not self.closed:
            self.conn.control(WINDOW_UPDATE, RST, self.stream_id, 0)
        self.on_reset()
        self.conn.forget_if_closed(self)

    def on_reset(self) -> None:
        """The peer or the connection ended the stream. What has arrived in whole stays readable."""
        self.was_reset = self.was_reset or not (self.send_closed and self.recv_closed)
        self.send_closed = self.recv_closed = True
        self.outbox.clear()
        self._sent.set()
        self._changed.set()

    def on_fin(self) -> None:
        """The peer has ended its direction."""
        self.recv_closed = True
        self._changed.set()
        self.conn.forget_if_closed(self)

    @property
    def granted(self) -> int:
        """The bytes by which the window grew beyond the window that every stream has."""
        return self._window - self._first_window

    def set_deadline(self, ttl: int) -> None:
        """A deadline is not supported: use trio's cancel scopes."""
        raise NotImplementedError

    def get_remote_address(self) -> tuple[str, int] | None:
        """Host and port of the other side."""
        return self.conn.get_remote_address()

    async def __aenter__(self) -> YamuxStream:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()
