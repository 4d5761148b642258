"""Yamux for py-libp2p, written for bulk data that shares its connection with small messages.

py-libp2p's own yamux loses data and wedges connections when a call is cancelled, polls for window
space, lets a peer push past its receive window, copies every byte five times and switches tasks
for every 64 KiB (see `over_libp2p.guards` for the symptoms). This one speaks the same
protocol (https://github.com/hashicorp/yamux/blob/master/spec.md) and differs in its shape:

- Two tasks own the socket. The reader hands frames to their streams; it never waits for a stream,
  because a stream's buffer is bounded by its window. The writer takes turns between the streams
  that have data, a noise message each, control frames first, and writes batches.
- A sender only hands over references and waits until the writer has sealed them. So cancelling a
  sender touches no half-written frame: its stream is reset and the connection lives on.
- A peer that sends more than its window is cut off. The windows of a connection grow with use,
  up to a sum: a window doubles when a peer would empty it within eight round trips.
- The end of the connection, for any reason, ends every stream at once, for readers and writers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

import trio
from libp2p.abc import IMuxedConn, IMuxedStream
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable, MuxedStreamError
from multiaddr import Multiaddr

from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.over_libp2p.noise.noise import NoiseSession
from gossamer.node.network.over_libp2p.tcp.congestion import LineRate, LineSearch
from gossamer.node.network.over_libp2p.yamux.frames import FrameCutter, SmallFrames
from gossamer.node.network.over_libp2p.yamux.signs_of_life import SignsOfLife
from gossamer.node.network.over_libp2p.yamux.stream import (
    ACK,
    FIN,
    GO_AWAY,
    HEADER,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    PeerViolation,
    YamuxStream,
)
from gossamer.node.network.over_libp2p.yamux.windows import (
    FIRST_WINDOW_BYTES,
    SPEC_WINDOW_BYTES,
    Windows,
)
from gossamer.node.network.over_libp2p.yamux.writer import YamuxWriter
from gossamer.node.network.transport import Path
from gossamer.protocol.policy.conduct.throttle import Rate, Throttle

logger = logging.getLogger(__name__)

# A node uses some ten streams with a peer, and its protocols allow it some forty in all.
INBOUND_STREAMS_MAX = 64
# Opening streams only to reset them costs the peer less than us.
OPEN_RATE = Rate(per_second=50, burst=256)
# Replies that a peer makes us queue (pongs, resets) while it does not read.
CONTROL_FRAMES_MAX = 4096
CLOSE_SECONDS_MAX = 1.0
# How long a stream that we are done with waits for the peer's end before it is reset.
LINGER_SECONDS_MAX = 30.0


class YamuxConnection(IMuxedConn):
    """All streams of one connection.

    It has more than 12 attributes and 15 public methods: reader, writer, pings and windows work on
    one state, and py-libp2p's interface comes on top.
    """

    def __init__(
        self,
        secured_conn: NoiseSession,
        peer_id: ID,
        liveness: Liveness,
        line: LineRate,
    ) -> None:
        """
        Args:
            liveness: looks at this connection while it lives.
            line: what is known of this node's line from its other connections.
        """
        self._liveness = liveness
        self.secured_conn = secured_conn
        self.peer_id = peer_id
        self.on_close: Callable[[], Awaitable[None]] | None = None
        """py-libp2p sets it, and is told of the end."""
        self.on_violation: Callable[[str], None] = lambda _problem: None
        """Handler that gets the reason when the connection ends because the peer broke the
        rules."""
        self.on_ending: Callable[[], None] = lambda: None
        """Is called when no more streams can be opened."""
        self.turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint_if_cancelled
        """Returns when the next stream that the peer has opened may be served."""
        self.small_frames = SmallFrames()
        self.on_received: Callable[[int], None] = lambda _num_bytes: None
        """Is told how many bytes have come."""
        self.streams: dict[int, YamuxStream] = {}
        self.event_started = trio.Event()
        self.event_closed = trio.Event()
        self.event_shutting_down = trio.Event()
        self.was_dialled = secured_conn.is_initiator
        """Whether this node dialled. After a simultaneous open both ends did."""
        self.path = Path("direct")
        self.opened_seconds = trio.current_time()
        self._next_stream_id = 1 if self.is_initiator else 2
        self._accepted_out, self._accepted_in = trio.open_memory_channel[YamuxStream](
            INBOUND_STREAMS_MAX
        )
        self.search = LineSearch(secured_conn.socket, line)
        self.writer = YamuxWriter(secured_conn, self.search)
        self.windows = Windows()
        self._opened = Throttle(OPEN_RATE)
        self._scope = trio.CancelScope()
        self._in_line = trio.CancelScope()
        """Its block waits for the turn of a stream."""
        self._cutter = FrameCutter(self._on_header, self._apply_flags)
        self.signs = SignsOfLife(
            lambda number: self.control(PING, SYN, 0, number), liveness, peer_id
        )

    # -- life

    async def start(self) -> None:
        """Run the connection until it ends; never raises for what the peer does."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for task in (self._read_frames, self.writer.run):
                        nursery.start_soon(self._until_broken, task)
                    self.signs.heard_seconds = trio.current_time()
                    self._liveness.add(self)
                    self.event_started.set()
        finally:
            self._liveness.remove(self)
            self._end_streams()
            with trio.CancelScope(shield=True):
                with contextlib.suppress(Exception):
                    await self.secured_conn.close()
                self.event_closed.set()
                if self.on_close is not None:
                    await self.on_close()

    async def _until_broken(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except ConnectionClosedError as error:
            logger.debug("connection to %s ended: %s", self.peer_id, error)
            if isinstance(error, PeerViolation):
                self.on_violation(str(error))
        except Exception:  # a bug here, or unforeseen bytes, end one connection and not the node
            logger.exception("connection to %s dropped", self.peer_id)
        self._scope.cancel()

    def _end_streams(self) -> None:
        self._begin_to_end()
        self.event_started.set()
        self._accepted_out.close()
        self._in_line.cancel()
        for stream in list(self.streams.values()):
            stream.on_reset()
        self.streams.clear()
        self.writer.clear()

    def _begin_to_end(self) -> None:
        if not self.event_shutting_down.is_set():
            self.event_shutting_down.set()
            self.on_ending()

    async def close(self, error_code: int = 0) -> None:
        """Say goodbye if the peer still listens, then end the connection."""
        if not self.event_shutting_down.is_set():
            has_begun = self.event_started.is_set()
            self._begin_to_end()
            if has_begun:
                with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_SECONDS_MAX):
                    self.control(GO_AWAY, 0, 0, error_code)
                    await self.writer.written()
            self._scope.cancel()
            self._end_streams()
            if not has_begun:  # else `start` does it
                self.event_closed.set()
                await self.secured_conn.close()
        await trio.lowlevel.checkpoint()

    @property
    def is_initiator(self) -> bool:
        """Returns whether this node dialled."""
        return self.secured_conn.is_initiator

    @property
    def is_established(self) -> bool:
        """Returns whether streams can be opened."""
        return self.event_started.is_set() and not self.event_shutting_down.is_set()

    @property
    def is_closed(self) -> bool:
        """Returns whether the connection has ended."""
        return self.event_closed.is_set()

    # -- streams

    async def open_stream(self) -> YamuxStream:
        """A new stream; the peer learns of it with the first frames."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.is_established:
            raise MuxedStreamError("the connection is closed")
        send_window = self.windows.of_outbound(self._num_open(self._next_stream_id))
        stream = YamuxStream(self._next_stream_id, self, True, send_window=send_window)
        self._next_stream_id += 2
        self.streams[stream.stream_id] = stream
        self.control(WINDOW_UPDATE, SYN, stream.stream_id, FIRST_WINDOW_BYTES - SPEC_WINDOW_BYTES)
        return stream

    async def accept_stream(self) -> IMuxedStream:
        """The next stream that the peer opens, when its turn has come. One that the peer has reset
        meanwhile is passed over, and the next one has its turn.

        Raises:
            MuxedConnUnavailable: the connection has ended.
        """
        has_turn = False
        async for stream in self._accepted_in:
            if not (has_turn or stream.was_reset):
                with trio.CancelScope() as self._in_line:
                    await self.turn()
                has_turn = True
            if not stream.was_reset:
                return stream
        raise MuxedConnUnavailable("the connection is closed")

    def forget_if_closed(self, stream: YamuxStream) -> None:
        """Free a stream's place when both directions have ended."""
        if stream.closed and self.streams.pop(stream.stream_id, None) is not None:
            self.windows.give_back(stream.granted)

    # -- writing

    def control(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Queue a frame without a body; it overtakes data."""
        if self._scope.cancel_called or self.event_closed.is_set():
            return
        if len(self.writer.control_frames) >= CONTROL_FRAMES_MAX:
            logger.warning("peer %s makes us reply and does not read; dropped", self.peer_id)
            self._scope.cancel()
            return
        frame = HEADER.pack(0, kind, flags, stream_id, length)
        if kind == PING:
            self.writer.add_sign_of_life(frame)
        else:
            self.writer.add_control(frame)

    # -- reading

    async def _read_frames(self) -> None:
        while True:
            for plaintext in await self.secured_conn.receive():
                now = self.signs.heard_seconds = trio.current_time()
                num_frames = self._cutter.feed(memoryview(plaintext))
                self.on_received(len(plaintext))
                await self.small_frames.came(now, num_frames, len(plaintext))

    def _on_header(self, version: int, kind: int, flags: int, stream_id: int, length: int) -> None:
        if version != 0 or kind > GO_AWAY:
            raise PeerViolation(f"not yamux: version {version}, type {kind}")
        if kind == PING:
            if flags & SYN:
                self.control(PING, ACK, 0, length)
            else:
                self.signs.answered(length)
            return
        if kind == GO_AWAY:
            raise ConnectionClosedError(f"the peer ended the connection (code {length})")
        if flags & SYN:
            self._on_new_stream(stream_id)
        stream = self.streams.get(stream_id)  # None: a stream that ended here first
        if kind == WINDOW_UPDATE:
            if stream is not None:
                if flags & ACK and stream.is_initiator:
                    stream.on_answer(length)
                else:
                    stream.send_window += length
                self.writer.schedule(stream)
                self._apply_flags(stream, flags)
            return
        self._cutter.expect_body(stream, flags, length)

    def _on_new_stream(self, stream_id: int) -> None:
        if stream_id % 2 == self._next_stream_id % 2 or stream_id in self.streams:
            raise PeerViolation(f"the peer opened stream {stream_id}, which is not its")
        # The rate first: to count streams costs more, and those that are too many count for it.
        may_open = self._opened.try_take(trio.current_time())
        inbound = self._num_open(stream_id) if may_open else INBOUND_STREAMS_MAX
        if inbound >= INBOUND_STREAMS_MAX or self.event_shutting_down.is_set():
            self.control(WINDOW_UPDATE, RST, stream_id, 0)
            return
        window = self.windows.of_inbound(inbound)
        stream = YamuxStream(stream_id, self, False, window)
        try:
            self._accepted_out.send_nowait(stream)
        except (trio.WouldBlock, trio.BrokenResourceError):
            self.control(WINDOW_UPDATE, RST, stream_id, 0)
            return
        self.streams[stream_id] = stream
        self.control(WINDOW_UPDATE, ACK, stream_id, window - SPEC_WINDOW_BYTES)

    def unread_bytes(self) -> int:
        """Returns the bytes that have come and that nobody has read."""
        return sum(stream.unread_bytes for stream in self.streams.values())

    def _num_open(self, stream_id: int) -> int:
        """The open streams of the end that opens the stream of this number."""
        return sum(1 for number in self.streams if number % 2 == stream_id % 2)

    def _apply_flags(self, stream: YamuxStream | None, flags: int) -> None:
        if stream is not None and flags & RST:
            stream.on_reset()
            self.forget_if_closed(stream)
        elif stream is not None and flags & FIN:
            stream.on_fin()

    # -- liveness

    def look(self, now: float, *, after_stall: bool) -> float:
        """Ask a silent peer for a sign of life, and drop one that gives none; see `Watched`."""
        for stream in list(self.streams.values()):
            since = stream.discarded_at
            if since is not None and now - since > LINGER_SECONDS_MAX:
                stream.abort()
        silence_seconds = now - self.signs.heard_seconds
        if not after_stall and silence_seconds > self._liveness.silence_seconds_max():
            self.drop(f"nothing heard for {silence_seconds:.0f} s")
        elif now >= self.signs.ask_at(was_dialled=self.was_dialled):
            self.signs.ask()
        return self.signs.ask_at(was_dialled=self.was_dialled)

    def drop(self, reason: str) -> None:
        """End the connection without a word to the peer."""
        logger.debug("connection to %s ended: %s", self.peer_id, reason)
        self._scope.cancel()

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
