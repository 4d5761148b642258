"""The noise channel of py-libp2p with a fast data path.

py-libp2p's own channel costs two buffered reads, three copies and a task switch for each 64 KiB
noise message, and its writes go out one message at a time. Here the handshake is py-libp2p's, and
what follows it is ours: many messages are read with one system call, sealed and opened straight
from and into reused buffers, and written with one system call. The bytes on the wire are the same
(libp2p noise spec: 2-byte big-endian length, then ChaCha20-Poly1305 under a little-endian counter
nonce).

Rules: after the handshake one task reads and one task writes. `seal` and `flush` work on one
buffer for all connections, so nothing may be awaited between the first `seal` and `flush`.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
import termios
from typing import cast

import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.io import NoiseTransportReadWriter
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.secure_session import SecureSession

from gossamer.node.base.rate_limit import NO_LIMITS, SMALL_BYTES_MAX, Limits, RateLimit
from gossamer.node.network.over_libp2p.noise.newcomers import ArrivingConnection
from gossamer.node.network.over_libp2p.noise.simultaneous import (
    FirstAnswer,
    Replayed,
    SimultaneousOpen,
)
from gossamer.node.network.over_libp2p.tcp.receive_window import ReceiveWindow

_TAG_BYTES = 16
_LENGTH_BYTES = 2
MESSAGE_BYTES_MAX = 65535
"""Largest noise message on the wire, without its length."""
PLAINTEXT_BYTES_MAX = MESSAGE_BYTES_MAX - _TAG_BYTES

# One read takes this much at most: enough that a system call's cost vanishes (8 messages), little
# enough that opening it (0.2 ms) delays nothing.
_READ_BYTES_MAX = 8 * (MESSAGE_BYTES_MAX + _LENGTH_BYTES)
# One write: what a newly queued small message waits for at most, 20 ms on a 100 Mbit/s line.
BATCH_MESSAGES_MAX = 4
_BATCH_BYTES_MAX = BATCH_MESSAGES_MAX * (MESSAGE_BYTES_MAX + _LENGTH_BYTES)


class _Buffers:
    """Shared by all connections of an event loop, for the daemon's memory. They are used between
    two awaits, never across one."""

    def __init__(self) -> None:
        self.read = memoryview(bytearray(_READ_BYTES_MAX + MESSAGE_BYTES_MAX + _LENGTH_BYTES))
        self.write = memoryview(bytearray(_BATCH_BYTES_MAX))


_buffers: trio.lowlevel.RunVar[_Buffers] = trio.lowlevel.RunVar("noise buffers")


def _shared_buffers() -> _Buffers:
    try:
        return _buffers.get()
    except LookupError:
        buffers = _Buffers()
        _buffers.set(buffers)
        return buffers


class NoiseSession(SecureSession):
    """An established noise channel over a TCP socket.

    It has more than 12 attributes: each direction has a key, a counter and buffers.
    """

    def __init__(
        self, session: SecureSession, raw_conn: IRawConnection, limits: Limits = NO_LIMITS
    ) -> None:
        """Take over a session whose handshake py-libp2p has just finished on a connection."""
        super().__init__(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
            conn=session.conn,
        )
        channel = cast(NoiseTransportReadWriter, session.conn)
        protocol = channel.noise_state.noise_protocol
        sender, receiver = protocol.cipher_state_encrypt, protocol.cipher_state_decrypt
        self.raw_conn = cast(RawConnection, raw_conn)
        self.carrier = cast(TrioTCPStream, self.raw_conn.stream)
        """TCP, or one end of a circuit in its place."""
        # The same methods, where nothing is waited for.
        self.socket = cast(socket.socket, self.carrier.stream.socket)
        self._sealer, self._seal_count = ChaCha20Poly1305(sender.k), sender.n
        self._opener, self._open_count = ChaCha20Poly1305(receiver.k), receiver.n
        self._buffers = _shared_buffers()
        self._partial = bytearray()  # the start of a message whose end has not arrived
        self._opened: list[bytes] = []  # plaintexts that `read` has not handed out
        self._sealed = 0  # bytes in the write buffer
        self._missing = 1  # bytes that have to come before a message can be opened, as far as known
        self._is_drained = False  # whether the newest read took all that had come
        self._unsent = b""  # the end of a message that `send_at_once` could not write
        self._closed = False
        # Inside a circuit nothing is counted: the connection that carries it is.
        is_network = self.socket.family != getattr(socket, "AF_UNIX", None)
        self._limits = limits if is_network else NO_LIMITS
        self._window = ReceiveWindow(self.socket)

    # -- receiving

    async def receive(self) -> list[bytes]:
        """The plaintexts of the messages that arrive next, at least one.

        Raises:
            ConnectionClosedError: end of the connection, or bytes that do not authenticate.

        Cancellation: nothing is lost.
        """
        while not self._opened:
            self._opened = self._open_all(await self._read_ready())
        opened, self._opened = self._opened, []
        return opened

    async def _read_ready(self) -> int:
        """Read into the shared buffer behind the partial message; returns the end of the bytes.

        No await follows the read, so that no other task touches the buffer before it is opened.
        """
        buffer, limit = self._buffers.read, self._limits.down
        waits = self._is_drained
        if not waits:
            await trio.lowlevel.checkpoint()
        while True:
            if waits or limit.is_limited:
                self._window.wake_at(1 if limit.is_limited else self._missing)
                await self._wait(trio.lowlevel.wait_readable)
            self._window.fit(limit.bytes_per_second)
            if limit.is_limited:
                await limit.turn(is_small=self._bytes_ready() <= SMALL_BYTES_MAX)
            kept = len(self._partial)
            try:
                target = buffer[kept : kept + self._read_bytes_max]
                received = os.readv(self._descriptor(), [target])
            except BlockingIOError:
                waits = True
                continue
            except OSError as error:
                raise ConnectionClosedError(f"connection lost: {error.strerror}") from error
            # Then the next read waits for the kernel's word at once, and does not try first.
            self._is_drained = received < len(target)
            if received == 0:
                raise ConnectionClosedError("connection closed by the peer")
            limit.charge(received)
            buffer[:kept] = self._partial
            return kept + received

    @property
    def _read_bytes_max(self) -> int:
        limit = self._limits.down
        return limit.piece_bytes if limit.is_limited else _READ_BYTES_MAX

    def _bytes_ready(self) -> int:
        """Bytes that the kernel holds for this connection."""
        answer = bytearray(4)
        fcntl.ioctl(self._descriptor(), termios.FIONREAD, answer)
        return int.from_bytes(answer, sys.byteorder)

    def _open_all(self, end: int) -> list[bytes]:
        """Open every whole message in the shared buffer and keep the rest."""
        buffer = self._buffers.read
        start, missing = 0, 1
        opened = []
        open_one = self._opener.decrypt
        count = self._open_count
        while end - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            stop = body + (buffer[start] << 8 | buffer[start + 1])
            if stop > end:
                missing = stop - end
                break
            try:
                opened.append(open_one(_nonce(count), buffer[body:stop], None))
            except InvalidTag as error:
                raise ConnectionClosedError("a message that does not authenticate") from error
            count += 1
            start = stop
        self._open_count, self._missing = count, missing
        self._partial[:] = buffer[start:end]
        return opened

    # -- sending

    @property
    def has_room(self) -> bool:
        """Returns whether another full message fits into this batch."""
        return self._sealed + MESSAGE_BYTES_MAX + _LENGTH_BYTES <= _BATCH_BYTES_MAX

    @property
    def limit(self) -> RateLimit:
        """The limit of what this node sends. Under a limit a batch is sealed and flushed right
        after a turn, and has `RateLimit.piece_bytes` of payload at most."""
        return self._limits.up

    def seal(self, plaintext: bytes | bytearray | memoryview) -> None:
        """Add one message (at most `PLAINTEXT_BYTES_MAX`) to the batch."""
        buffer = self._buffers.write
        length = len(plaintext) + _TAG_BYTES
        body = self._sealed + _LENGTH_BYTES
        buffer[self._sealed] = length >> 8
        buffer[self._sealed + 1] = length & 0xFF
        self._sealer.encrypt_into(
            _nonce(self._seal_count), plaintext, None, buffer[body : body + length]
        )
        self._seal_count += 1
        self._sealed = body + length

    @property
    def is_writable(self) -> bool:
        """Returns whether the socket takes more now; `wait_writable` waits for that."""
        poll = select.poll()
        poll.register(self._descriptor(), select.POLLOUT)
        return bool(poll.poll(0))

    @property
    def has_unsent(self) -> bool:
        """Returns whether `send_rest` has to be called before the next `flush`."""
        return bool(self._unsent)

    def send_at_once(self, plaintext: bytes | memoryview) -> None:
        """Send one small message without a wait. What the socket does not take is left to
        `send_rest`.

        Whether the kernel wants more is not asked: so short a message does not pile up there. Call
        it only without a limit, while nothing is sealed or unsent and no `flush` is under way.

        Raises:
            ConnectionClosedError: the connection is gone.
        """
        self.seal(plaintext)
        end, sent = self._take_sealed()
        self._unsent = bytes(self._buffers.write[sent:end])

    async def send_rest(self) -> None:
        """Write what `send_at_once` could not. ConnectionClosedError: the connection is gone."""
        unsent, self._unsent = self._unsent, b""
        await self._write_rest(memoryview(unsent))

    async def flush(self) -> None:
        """Write the batch.

        Raises:
            ConnectionClosedError: the connection is gone.

        Cancellation: the connection is unusable afterwards, since half a message may be out.
        """
        end, sent = self._take_sealed()
        if sent == end:
            return
        # The shared buffer is free from here.
        await self._write_rest(memoryview(bytes(self._buffers.write[sent:end])))

    def _take_sealed(self) -> tuple[int, int]:
        """Writes of the batch as much as the socket takes; returns (bytes of the batch, written
        ones)."""
        end, self._sealed = self._sealed, 0
        self._limits.up.charge(end)
        try:
            return end, os.write(self._descriptor(), self._buffers.write[:end])
        except BlockingIOError:
            return end, 0
        except OSError as error:
            raise ConnectionClosedError(f"connection lost: {error.strerror}") from error

    async def _write_rest(self, rest: memoryview) -> None:
        while rest:
            await self.wait_writable()
            try:
                rest = rest[os.write(self._descriptor(), rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionClosedError(f"connection lost: {error.strerror}") from error

    async def wait_writable(self) -> None:
        """Wait until the socket takes more without piling it up in the kernel."""
        await self._wait(trio.lowlevel.wait_writable)

    # -- what py-libp2p calls while it negotiates the muxer, before the fast path begins

    async def read(self, n: int | None = None) -> bytes:
        """Exactly `n` bytes, or with None whatever is there."""
        gathered = bytearray()
        while n is None or len(gathered) < n:
            for plaintext in await self.receive():
                gathered += plaintext
            if n is None and gathered:
                break
        stop = len(gathered) if n is None else n
        if stop < len(gathered):
            self._opened.insert(0, bytes(gathered[stop:]))
        return bytes(gathered[:stop])

    async def write(self, data: bytes) -> None:
        """Send `data`; shielded, because half a message would ruin the connection."""
        with trio.CancelScope(shield=True):
            view = memoryview(data)
            while view:
                await self.limit.turn(is_small=True)
                self.seal(view[:PLAINTEXT_BYTES_MAX])
                await self.flush()
                view = view[PLAINTEXT_BYTES_MAX:]
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        """Close the socket."""
        self._closed = True
        await super().close()

    def _descriptor(self) -> int:
        descriptor = self.socket.fileno()
        if descriptor < 0 or self._closed:
            raise ConnectionClosedError("connection closed")
        return descriptor

    async def _wait(self, wait: object) -> None:
        self._descriptor()
        try:
            await wait(self.socket)  # type: ignore[operator]
        except (trio.ClosedResourceError, OSError, ValueError) as error:
            raise ConnectionClosedError("connection closed") from error


def _nonce(count: int) -> bytes:
    """Four zero bytes and a 64-bit little-endian counter (Noise specification, section 12.3)."""
    return b"\0\0\0\0" + count.to_bytes(8, "little")


class FastNoiseTransport(NoiseTransport):
    """py-libp2p's noise handshake, then `NoiseSession`."""

    limits = NO_LIMITS

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """The responder's side."""
        session = await super().secure_inbound(conn)
        if isinstance(conn, ArrivingConnection):
            conn.is_proven = True
        return NoiseSession(session, conn, self.limits)  # type: ignore[arg-type]

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID | None) -> ISecureConn:
        """The initiator's side; with `peer_id` None any answering peer is accepted.

        Where the other end dialled at the same time, one of both becomes the responder.

        Raises:
            PeerIDMismatchesPubkey: another peer answered.
        """
        looking = FirstAnswer(conn)
        try:
            session = await super().secure_outbound(looking, peer_id)  # type: ignore[arg-type]
        except SimultaneousOpen as both:
            session = await super().secure_inbound(Replayed(conn, both.message))  # type: ignore[arg-type]
            if peer_id is not None and session.get_remote_peer() != peer_id:
                raise PeerIDMismatchesPubkey("another peer dialled from that address") from None
        return NoiseSession(session, conn, self.limits)  # type: ignore[arg-type]
