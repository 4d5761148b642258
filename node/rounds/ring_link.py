"""The ring's stream to one member, and the serving side of it.

    /gossamer/ring/1
    sender  ->  ["hello", Signed(Roster)]              first frame: which ring this is
    sender  ->  ["token", chunk, contributors, finisher or nil]  + the chunk's encoded bytes
    receiver -> ["ack", number of tokens received so far]         at once on receipt

A receipt is acknowledged when it is read, never when it is passed on, so a slow member shows as
itself and not as its predecessor. A link without any receipt for `RECEIPT_SECONDS`, although
something is on its way, has failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import Stream, StreamClosed, Transport, TransportError
from gossamer.protocol.chain import mask_bytes
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.messages import Signed
from gossamer.protocol.ring import Send

RING_PROTOCOL = "/gossamer/ring/1"

RECEIPT_SECONDS = 10.0
"""A chunk of 1 MiB takes 8.4 s on a line of 1 Mbit/s, far below what a volunteer has; the same 10 s
in which the transport notices a dead line."""

_WATCH_SECONDS = 0.5

log = structlog.get_logger("ring")


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="hello"):
    roster: Signed


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="token"):
    chunk: int
    contributors: bytes
    finisher: int | None


class Ack(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ack"):
    received: int


_encoder = msgspec.msgpack.Encoder()
_to_receiver: msgspec.msgpack.Decoder[Hello | Token] = msgspec.msgpack.Decoder(Hello | Token)
_to_sender = msgspec.msgpack.Decoder(Ack)


class LinkFailed(Exception):
    """The member at the other end does not keep up; the text is the reason for `Suspect`."""


class RingLink:
    """Sends chunks to one member of one ring."""

    def __init__(
        self,
        transport: Transport,
        peer: PeerId,
        roster: Signed,
        num_members: int,
        outbox_max: int,
        on_transfer: Callable[[int, float], None] = lambda _bytes, _seconds: None,
    ) -> None:
        """`on_transfer` gets the bytes and seconds of each time in which the link was busy."""
        self._transport = transport
        self._peer = peer
        self._roster = roster
        self._num_members = num_members
        self._into_outbox, self._outbox = trio.open_memory_channel[Send](outbox_max)
        self._queued = 0
        self._on_transfer = on_transfer
        self._sent = 0
        self._received = 0
        self._progress_seconds = 0.0
        self._busy_since_seconds = 0.0
        self._busy_bytes = 0
        self._finishing = False

    def send(self, action: Send) -> None:
        """Queues a chunk. trio.WouldBlock when more is queued than a ring can ever need."""
        self._into_outbox.send_nowait(action)
        self._queued += 1

    def finish(self) -> None:
        """No more will be queued: `run` returns when everything was received."""
        self._finishing = True
        self._into_outbox.close()

    @property
    def _is_done(self) -> bool:
        """Whether no more will be queued and all that was has been received."""
        return self._finishing and self._received == self._queued

    async def run(self) -> None:
        """Sends what is queued until cancelled or finished.

        Raises:
            LinkFailed: the member cannot be reached, refused, or does not acknowledge.
        """
        try:
            stream = await self._transport.open_stream(self._peer, RING_PROTOCOL)
        except TransportError as error:
            raise LinkFailed(f"reset: {error}") from error
        failures: list[LinkFailed] = []  # raised below: inside `except*` they would come in a group
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive_acks, stream, nursery.cancel_scope)
                nursery.start_soon(self._watch)
                await self._send_queued(stream)
                if self._is_done:
                    nursery.cancel_scope.cancel()
        except* StreamClosed:
            if not self._is_done:
                failures.append(LinkFailed("reset"))
        except* LinkFailed as group:
            failures += [error for error in group.exceptions if isinstance(error, LinkFailed)]
        finally:
            with trio.CancelScope(shield=True):
                await stream.reset()
        if failures:
            raise failures[0]

    async def _send_queued(self, stream: Stream) -> None:
        await send_frame(stream, _encoder.encode(Hello(self._roster)))
        async for action in self._outbox:
            if self._sent == self._received:
                self._busy_since_seconds = self._progress_seconds = trio.current_time()
                self._busy_bytes = 0
            self._sent += 1
            self._busy_bytes += len(action.payload)
            token = Token(action.chunk, mask_bytes(action.mask, self._num_members), action.finisher)
            await send_frame(stream, _encoder.encode(token), action.payload)

    async def _receive_acks(self, stream: Stream, scope: trio.CancelScope) -> None:
        while True:
            message, _ = await receive_frame(stream)
            try:
                ack = _to_sender.decode(message)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise LinkFailed("malformed acknowledgement") from None
            if not self._received <= ack.received <= self._sent:
                raise LinkFailed("acknowledged what was not sent")
            self._received = ack.received
            self._progress_seconds = trio.current_time()
            if self._sent == self._received:
                seconds = self._progress_seconds - self._busy_since_seconds
                self._on_transfer(self._busy_bytes, seconds)
            if self._is_done:
                scope.cancel()

    async def _watch(self) -> None:
        while True:
            await trio.sleep(_WATCH_SECONDS)
            silent_seconds = trio.current_time() - self._progress_seconds
            if self._sent > self._received and silent_seconds > RECEIPT_SECONDS:
                raise LinkFailed("timeout: no receipt")


TokenHandler = Callable[[PeerId, int, int, int | None, bytearray], None]
"""(sender, chunk, mask, finisher or None, payload)"""
HelloHandler = Callable[[PeerId, Signed], Awaitable[TokenHandler | None]]
"""Called with the roster; answers with who takes the tokens, or None to refuse."""


async def serve_ring(stream: Stream, on_hello: HelloHandler) -> None:
    """Receives one predecessor's tokens until the stream ends.

    Raises:
        RemoteProtocolError: the predecessor sent what the protocol does not allow.
        StreamClosed: the stream ended.
    """
    message, _ = await receive_frame(stream)
    hello = _decode(message)
    if not isinstance(hello, Hello):
        raise MalformedError("ring stream that does not begin with hello")
    take = await on_hello(stream.peer_id, hello.roster)
    if take is None:
        await stream.reset()
        return
    received = 0
    while True:
        message, payload = await receive_frame(stream)
        token = _decode(message)
        if not isinstance(token, Token):
            raise MalformedError("ring stream with a second hello")
        received += 1
        await send_frame(stream, _encoder.encode(Ack(received)))
        mask = int.from_bytes(token.contributors, "big")
        take(stream.peer_id, token.chunk, mask, token.finisher, payload)


def _decode(message: bytes | bytearray) -> Hello | Token:
    try:
        return _to_receiver.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a ring message: {error}") from error
