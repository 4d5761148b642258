"""Yamux for py-libp2p, written for bulk data that shares its connection with small messages.

py-libp2p's own yamux loses data and wedges connections when a call is cancelled, polls for window
space, lets a peer push past its receive window, copies every byte five times and switches tasks
for every 64 KiB (see `gossamer.node.libp2p_guards` for the symptoms). This one speaks the same
protocol (https://github.com/hashicorp/yamux/blob/master/spec.md) and differs in its shape:

- Two tasks own the socket. The reader hands frames to their streams; it never waits for a stream,
  because a stream's buffer is bounded by its window. The writer takes turns between the streams
  that have data, a noise message each, control frames first, and writes batches.
- A sender only hands over references and waits until the writer has sealed them. So cancelling a
  sender touches no half-written frame: its stream is reset and the connection lives on.
- A peer that sends more than its window is cut off. The windows of a connection grow with use
  (doubling when one is emptied within four round trips) up to a sum.
- Whatever ends the connection ends every stream at once, for readers and writers.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import trio
from libp2p.abc import ConnectionType, IMuxedConn, IMuxedStream
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)
from multiaddr import Multiaddr

from gossamer.node.libp2p_noise import PLAINTEXT_BYTES_MAX, NoiseSession

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("!BBHII")  # version, type, flags, stream id, length
_DATA, _WINDOW_UPDATE, _PING, _GO_AWAY = range(4)
_SYN, _ACK, _FIN, _RST = 1, 2, 4, 8
FRAME_BYTES_MAX = PLAINTEXT_BYTES_MAX - _HEADER.size
"""Of a data frame's body that we send: header and body fill one noise message."""

SPEC_WINDOW_BYTES = 256 * 1024  # what both sides may send before any update (yamux spec)
# Four chunks' worth less one frame would stall a pipeline of 1 MiB chunks at its very first one.
FIRST_WINDOW_BYTES = 1024 * 1024
# 100 Mbit/s at 640 ms or 1 Gbit/s at 64 ms: the long fat links of home machines.
STREAM_WINDOW_BYTES_MAX = 8 * 1024 * 1024
# What one peer can make us hold: its streams' windows stop growing at this sum.
CONNECTION_WINDOW_BYTES_MAX = 32 * 1024 * 1024
# A node uses some ten streams with a peer; beyond this it is an attack (256 MiB would be granted).
INBOUND_STREAMS_MAX = 128
# Replies that a peer makes us queue (pongs, resets) while it does not read.
CONTROL_FRAMES_MAX = 4096
# Smaller pieces are copied together: one frame may not pin the 64 KiB message it came in.
_PIECE_BYTES_MIN = 4096
PING_INTERVAL_SECONDS = 5.0
# TCP_USER_TIMEOUT notices dead links in 10 s; this notices a stopped or hung process behind a live
# kernel, and leaves a machine that swaps for a while its connection.
SILENCE_SECONDS_MAX = 30.0
CLOSE_SECONDS_MAX = 1.0
# How long a stream that we are done with waits for the peer's end before it is reset.
LINGER_SECONDS_MAX = 30.0


class YamuxStream(IMuxedStream):
    """One stream. `send` and `receive_exactly` are the fast way; read and write are libp2p's."""

    def __init__(self, stream_id: int, conn: YamuxConnection, is_initiator: bool) -> None:
        self.stream_id = stream_id
        self.conn = conn
        self.muxed_conn = conn
        self.is_initiator = is_initiator
        self.traffic = [0, 0]  # payload bytes sent and received; see `count_in`
        self.send_window = SPEC_WINDOW_BYTES
        self.outbox: deque[memoryview] = deque()
        self._window = FIRST_WINDOW_BYTES  # how much the peer may have under way to us
        self._credit = FIRST_WINDOW_BYTES  # of it, what the peer has not used
        self._consumed = 0  # read by us and not yet given back as credit
        self._updated_at = 0.0
        self._pieces: deque[bytearray | memoryview] = deque()
        self._offset = 0  # read of the first piece
        self._buffered = 0
        self._changed = trio.Event()
        self._sending = trio.Lock()
        self._sent = trio.Event()
        self.send_closed = False
        self.recv_closed = False
        self.was_reset = False
        self.discarded_at: float | None = None  # since when nobody reads here

    @property
    def closed(self) -> bool:
        """Whether both directions have ended."""
        return self.was_reset or (self.send_closed and self.recv_closed)

    # -- sending

    async def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send all parts; see `gossamer.node.transport.Stream.send`."""
        async with self._sending:
            self._check_sendable()
            for part in parts:
                if len(part):
                    self.outbox.append(memoryview(part).cast("B"))
            if not self.outbox:
                return
            self._sent = trio.Event()
            self.conn.schedule(self)
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

    def _check_sendable(self) -> None:
        if self.was_reset:
            raise MuxedStreamReset("the stream was reset")
        if self.send_closed:
            raise MuxedStreamError("the stream is closed for sending")

    def next_frame(self, message: memoryview) -> int:
        """Write this stream's next data frame into `message`; returns its length, 0 for none."""
        room = min(FRAME_BYTES_MAX, self.send_window)
        end = _HEADER.size
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
        length = end - _HEADER.size
        if length == 0:
            return 0
        _HEADER.pack_into(message, 0, 0, _DATA, 0, self.stream_id, length)
        self.send_window -= length
        self.traffic[0] += length
        if not self.outbox:
            self._sent.set()
        return end

    # -- receiving

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        """The next bytes; see `gossamer.node.transport.Stream.receive_exactly`.

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
                if not self._buffered:
                    await self._wait_for_data()
                filled += self._take_into(view[filled:])
        except BaseException:
            if filled:
                self._put_back(view[:filled])
            raise
        return result

    async def read(self, n: int | None = -1) -> bytes:
        """At least one and at most `n` bytes, or all that is there (libp2p's interface)."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if n == 0:
            return b""
        if not self._buffered:
            await self._wait_for_data()
        size = self._buffered if n is None or n < 0 else min(n, self._buffered)
        result = bytearray(size)
        self._take_into(memoryview(result))
        return bytes(result)

    async def _wait_for_data(self) -> None:
        while not self._buffered:
            if self.was_reset:
                raise MuxedStreamReset("the stream was reset")
            if self.recv_closed:
                raise MuxedStreamEOF("the peer has ended the stream")
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
        self._give_credit(done)
        return done

    def _put_back(self, data: memoryview) -> None:
        """Return bytes to the front of the buffer; their credit was given and stays given."""
        if self._offset:
            self._pieces[0] = memoryview(self._pieces[0])[self._offset :]
            self._offset = 0
        self._pieces.appendleft(data)
        self._buffered += len(data)

    def _give_credit(self, num_bytes: int) -> None:
        self._consumed += num_bytes
        if self._consumed * 2 < self._window or self.recv_closed or self.was_reset:
            return
        now = trio.current_time()
        increment = self._consumed
        if now - self._updated_at < 4 * self.conn.rtt_or_guess():
            growth = self.conn.grant(min(self._window, STREAM_WINDOW_BYTES_MAX - self._window))
            self._window += growth
            increment += growth
        self._updated_at = now
        self._consumed = 0
        self._credit += increment
        self.conn.control(_WINDOW_UPDATE, 0, self.stream_id, increment)

    def feed(self, piece: memoryview) -> None:
        """Take bytes from the connection's reader.

        Raises:
            ConnectionClosedError: the peer sent more than its window.
        """
        size = len(piece)
        self._credit -= size
        if self._credit < 0:
            raise ConnectionClosedError("the peer sent more than its receive window")
        self.traffic[1] += size
        if self.recv_closed or self.was_reset or self.discarded_at is not None:
            return
        if size >= _PIECE_BYTES_MIN:
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
        self._changed.set()

    # -- ending

    async def close(self) -> None:
        """End our direction; the peer's stays open (libp2p's half-close)."""
        async with self._sending:
            if not self.send_closed and not self.was_reset:
                self.send_closed = True
                self.conn.control(_WINDOW_UPDATE, _FIN, self.stream_id, 0)
                self.conn.forget_if_closed(self)

    def discard(self) -> None:
        """Nobody will read here any more: drop what is buffered and what still comes."""
        self.discarded_at = trio.current_time()
        self._pieces.clear()
        self._offset = self._buffered = 0

    async def reset(self) -> None:
        """End both directions at once."""
        self.abort()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        """`reset` for places that cannot wait."""
        if not self.closed:
            self.conn.control(_WINDOW_UPDATE, _RST, self.stream_id, 0)
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
        """How far the window grew beyond what every stream has."""
        return self._window - FIRST_WINDOW_BYTES

    def set_deadline(self, ttl: int) -> None:
        """Not supported: use trio's cancel scopes."""
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


class YamuxConnection(IMuxedConn):
    """All streams of one connection."""

    def __init__(
        self,
        secured_conn: NoiseSession,
        peer_id: ID,
        is_initiator: bool | None = None,
        on_close: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.secured_conn = secured_conn
        self.peer_id = peer_id
        self.on_close = on_close
        self.streams: dict[int, YamuxStream] = {}
        self.event_started = trio.Event()
        self.event_closed = trio.Event()
        self.event_shutting_down = trio.Event()
        self._initiator = secured_conn.is_initiator if is_initiator is None else is_initiator
        self._next_stream_id = 1 if self._initiator else 2
        self._accepted_out, self._accepted_in = trio.open_memory_channel[YamuxStream](
            INBOUND_STREAMS_MAX
        )
        self._control: deque[bytes] = deque()
        self._ready: deque[YamuxStream] = deque()
        self._work = trio.Event()
        self._idle = trio.Event()
        self._granted = 0
        self._scope = trio.CancelScope()
        self._header = b""  # the start of a frame header whose end has not arrived
        self._body_left = 0
        self._body_stream: YamuxStream | None = None
        self._body_flags = 0
        self._heard_at = 0.0
        self._ping_id = 0
        self._ping_sent_at = 0.0
        self._pong = trio.Event()
        self._rtt = 0.0

    # -- life

    async def start(self) -> None:
        """Run the connection until it ends; never raises for what the peer does."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for task in (self._read_frames, self._write_frames, self._watch):
                        nursery.start_soon(self._until_broken, task)
                    self._heard_at = trio.current_time()
                    self.event_started.set()
        finally:
            self._end_streams()
            with trio.CancelScope(shield=True):
                with contextlib.suppress(Exception):
                    await self.secured_conn.close()
                self.event_closed.set()
                if self.on_close is not None:
                    result = self.on_close()
                    if inspect.isawaitable(result):
                        await result

    async def _until_broken(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except ConnectionClosedError as error:
            logger.debug("connection to %s ended: %s", self.peer_id, error)
        except Exception:  # a bug here, or bytes nobody thought of: one connection, not the node
            logger.exception("connection to %s dropped", self.peer_id)
        self._scope.cancel()

    def _end_streams(self) -> None:
        self.event_shutting_down.set()
        self.event_started.set()
        self._accepted_out.close()
        for stream in list(self.streams.values()):
            stream.on_reset()
        self.streams.clear()
        self._ready.clear()
        self._control.clear()
        self._idle.set()

    async def close(self, error_code: int = 0) -> None:
        """Say goodbye if the peer still listens, then end the connection."""
        if not self.event_shutting_down.is_set():
            self.event_shutting_down.set()
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_SECONDS_MAX):
                if self.event_started.is_set():
                    self._idle = trio.Event()
                    self.control(_GO_AWAY, 0, 0, error_code)
                    await self._idle.wait()
            self._scope.cancel()
            self._end_streams()
        if not self.event_started.is_set():
            await self.secured_conn.close()
            self.event_closed.set()
        await trio.lowlevel.checkpoint()

    @property
    def is_initiator(self) -> bool:
        """Whether we dialled."""
        return self._initiator

    @property
    def is_established(self) -> bool:
        """Whether streams can be opened."""
        return self.event_started.is_set() and not self.event_shutting_down.is_set()

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self.event_closed.is_set()

    # -- streams

    async def open_stream(self) -> YamuxStream:
        """A new stream; the peer learns of it with the first frames."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.is_established:
            raise MuxedStreamError("the connection is closed")
        stream = YamuxStream(self._next_stream_id, self, True)
        self._next_stream_id += 2
        self.streams[stream.stream_id] = stream
        self.control(
            _WINDOW_UPDATE, _SYN, stream.stream_id, FIRST_WINDOW_BYTES - SPEC_WINDOW_BYTES
        )
        return stream

    async def accept_stream(self) -> IMuxedStream:
        """The next stream that the peer opens."""
        try:
            return await self._accepted_in.receive()
        except trio.EndOfChannel as error:
            raise MuxedConnUnavailable("the connection is closed") from error

    def forget_if_closed(self, stream: YamuxStream) -> None:
        """Free a stream's place when both directions have ended."""
        if stream.closed and self.streams.pop(stream.stream_id, None) is not None:
            self._granted -= stream.granted

    def grant(self, num_bytes: int) -> int:
        """How much of `num_bytes` more window the connection's sum allows."""
        num_bytes = max(0, min(num_bytes, CONNECTION_WINDOW_BYTES_MAX - self._granted))
        self._granted += num_bytes
        return num_bytes

    # -- writing

    def control(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Queue a frame without a body; it overtakes data."""
        if self._scope.cancel_called or self.event_closed.is_set():
            return
        if len(self._control) >= CONTROL_FRAMES_MAX:
            logger.warning("peer %s makes us reply and does not read; dropped", self.peer_id)
            self._scope.cancel()
            return
        self._control.append(_HEADER.pack(0, kind, flags, stream_id, length))
        self._work.set()

    def schedule(self, stream: YamuxStream) -> None:
        """Queue a stream that has something to send and window for it."""
        if stream.outbox and stream.send_window > 0 and stream not in self._ready:
            self._ready.append(stream)
            self._work.set()

    async def _write_frames(self) -> None:
        session = self.secured_conn
        message = memoryview(bytearray(PLAINTEXT_BYTES_MAX))
        headers_max = PLAINTEXT_BYTES_MAX // _HEADER.size
        while True:
            while not self._control and not self._ready:
                self._idle.set()
                self._work = trio.Event()
                await self._work.wait()
            await session.wait_writable()
            if self._control:
                count = min(len(self._control), headers_max)
                session.seal(b"".join(self._control.popleft() for _ in range(count)))
            while self._ready and session.has_room:
                stream = self._ready.popleft()
                length = stream.next_frame(message)
                if length:
                    session.seal(message[:length])
                self.schedule(stream)
            await session.flush()

    # -- reading

    async def _read_frames(self) -> None:
        while True:
            plaintexts = await self.secured_conn.receive()
            self._heard_at = trio.current_time()
            for plaintext in plaintexts:
                self._feed(memoryview(plaintext))

    def _feed(self, data: memoryview) -> None:
        """Cut plaintext into frames; frames and messages need not line up."""
        position, end = 0, len(data)
        while position < end:
            if self._body_left:
                take = min(self._body_left, end - position)
                if self._body_stream is not None:
                    self._body_stream.feed(data[position : position + take])
                position += take
                self._body_left -= take
                if self._body_left == 0:
                    self._apply_flags(self._body_stream, self._body_flags)
                    self._body_stream = None
                continue
            if self._header or end - position < _HEADER.size:
                missing = _HEADER.size - len(self._header)
                self._header += bytes(data[position : position + missing])
                position += missing
                if len(self._header) < _HEADER.size:
                    return
                fields = _HEADER.unpack(self._header)
                self._header = b""
            else:
                fields = _HEADER.unpack_from(data, position)
                position += _HEADER.size
            self._on_frame(*fields)

    def _on_frame(self, version: int, kind: int, flags: int, stream_id: int, length: int) -> None:
        if version != 0 or kind > _GO_AWAY:
            raise ConnectionClosedError(f"not yamux: version {version}, type {kind}")
        if kind == _PING:
            if flags & _SYN:
                self.control(_PING, _ACK, 0, length)
            elif length == self._ping_id:
                self._rtt = trio.current_time() - self._ping_sent_at
                self._pong.set()
            return
        if kind == _GO_AWAY:
            raise ConnectionClosedError(f"the peer ended the connection (code {length})")
        if flags & _SYN:
            self._on_new_stream(stream_id)
        stream = self.streams.get(stream_id)  # None: a stream that ended here first
        if kind == _WINDOW_UPDATE:
            if stream is not None:
                stream.send_window += length
                self.schedule(stream)
                self._apply_flags(stream, flags)
            return
        self._body_left, self._body_stream, self._body_flags = length, stream, flags
        if length == 0:
            self._apply_flags(stream, flags)

    def _on_new_stream(self, stream_id: int) -> None:
        if stream_id % 2 == self._next_stream_id % 2 or stream_id in self.streams:
            raise ConnectionClosedError(f"the peer opened stream {stream_id}, which is not its")
        inbound = sum(1 for number in self.streams if number % 2 != self._next_stream_id % 2)
        if inbound >= INBOUND_STREAMS_MAX or self.event_shutting_down.is_set():
            self.control(_WINDOW_UPDATE, _RST, stream_id, 0)
            return
        stream = YamuxStream(stream_id, self, False)
        try:
            self._accepted_out.send_nowait(stream)
        except (trio.WouldBlock, trio.BrokenResourceError):
            self.control(_WINDOW_UPDATE, _RST, stream_id, 0)
            return
        self.streams[stream_id] = stream
        self.control(_WINDOW_UPDATE, _ACK, stream_id, FIRST_WINDOW_BYTES - SPEC_WINDOW_BYTES)

    def _apply_flags(self, stream: YamuxStream | None, flags: int) -> None:
        if stream is None:
            return
        if flags & _RST:
            stream.on_reset()
            self.forget_if_closed(stream)
        elif flags & _FIN:
            stream.on_fin()

    # -- liveness

    async def _watch(self) -> None:
        """Measure the round trip, and drop a peer that is silent although we ask."""
        while True:
            await self._send_ping()
            await trio.sleep(PING_INTERVAL_SECONDS)
            now = trio.current_time()
            for stream in list(self.streams.values()):
                since = stream.discarded_at
                if since is not None and now - since > LINGER_SECONDS_MAX:
                    stream.abort()
            if now - self._heard_at > SILENCE_SECONDS_MAX:
                raise ConnectionClosedError(f"nothing heard for {SILENCE_SECONDS_MAX:.0f} s")

    async def _send_ping(self) -> None:
        self._ping_id = (self._ping_id + 1) & 0xFFFFFFFF
        self._ping_sent_at = trio.current_time()
        self.control(_PING, _SYN, 0, self._ping_id)

    async def answers_within(self, seconds: float) -> bool:
        """Whether the peer answers a ping in time: is this connection alive?"""
        self._pong = trio.Event()
        await self._send_ping()
        with trio.move_on_after(seconds):
            await self._pong.wait()
            return True
        return False

    def rtt(self) -> float:
        """The newest round trip in seconds, 0 before the first pong."""
        return self._rtt

    def rtt_or_guess(self) -> float:
        """The round trip for sizing windows; at least a busy machine's scheduling delay."""
        return max(self._rtt, 0.005)

    # -- what py-libp2p asks

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The other side's address."""
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Direct or relayed."""
        return self.secured_conn.get_connection_type()

    def get_remote_address(self) -> tuple[str, int] | None:
        """The other side's host and port."""
        return self.secured_conn.get_remote_address()
