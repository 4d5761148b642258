"""The ring's stream to one member, and the serving side of it.

`protocol.wire.ring_messages` has the messages.

A receipt is acknowledged when it is read, never when it is passed on, so a slow member shows as
itself and not as its predecessor. A link without any receipt for `RECEIPT_SECONDS`, although
something is on its way, has failed. A sender that comes in the middle of a ring waits for the
inventory, and leaves out what is of no use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import Stream, StreamClosed, Transport, TransportError
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.rounds.inventory import (
    Held,
    Inventory,
    decode_inventory,
    encode_inventory,
)
from gossamer.protocol.rounds.ring import Payload, Send
from gossamer.protocol.state.chain import mask_bytes
from gossamer.protocol.wire.ring_messages import (
    RING_MESSAGE_BYTES_MAX,
    RING_PROTOCOL,
    Ack,
    ChunkMessage,
    HeldChunks,
    Hello,
    decode_to_receiver,
    decode_to_sender,
    encode_ring_message,
)
from gossamer.protocol.wire.statements import Signed

RECEIPT_SECONDS = 10.0
"""A piece of a chunk (`frames.PIECE_BYTES`) takes 2 s on a line of 1 Mbit/s, far below what a
volunteer has. A process or line that is dead altogether shows earlier, by its silence."""

ACK_SECONDS = 0.25
"""A chunk that takes longer is acknowledged in pieces, so that a slow line is not a silent one."""

FIRST_FRAME_SECONDS = 10.0
"""Longest wait for the first message of a stream, which names its ring."""

WATCH_SECONDS = 0.25
"""How often a link reports its rate: several times before a rate is judged (`link_rates`)."""

log = structlog.get_logger("ring")


class LinkFailed(Exception):
    """The member at the other end does not keep up; the text is the reason for `Accusation`."""


class RingLink:
    """Sends chunks to one member of one ring."""

    def __init__(
        self,
        transport: Transport,
        peer: PeerId,
        roster: Signed,
        *,
        num_chunks: int,
        num_members: int,
        outbox_max: int,
        waits_for_inventory: bool,
        on_transfer: Callable[[int, float], None] = lambda _bytes, _seconds: None,
        on_measured: Callable[[int, float, int], None] = lambda _acked, _seconds, _waiting: None,
    ) -> None:
        """
        Args:
            waits_for_inventory: whether the member may hold something already.
            on_transfer: gets the bytes and seconds of each time in which the link was busy.
            on_measured: gets all bytes received so far, all seconds in which it was busy, and the
                bytes that were queued and not received.
        """
        self._transport = transport
        self._peer = peer
        self._roster = roster
        self._num_chunks = num_chunks
        self._num_members = num_members
        self._into_outbox, self._outbox = trio.open_memory_channel[Send](outbox_max)
        self._on_transfer = on_transfer
        self._on_measured = on_measured
        self._inventory: Inventory | None = None
        self._inventory_came = trio.Event()
        if not waits_for_inventory:
            self._inventory_came.set()
        self._queued = 0
        self._queued_bytes = 0
        """Bytes of all chunks that were queued and not left out."""
        self._left_out = 0
        self._under_way: deque[int] = deque()
        """Sizes of the tokens that were sent and not yet received."""
        self._received = 0
        self._received_bytes = 0
        self._next_bytes = 0
        self._silent_seconds = 0.0
        self._busy_since_seconds: float | None = None
        self._busy_before_seconds = 0.0
        self._busy_bytes = 0
        self._finishing = False

    def send(self, action: Send) -> None:
        """Queues a chunk. trio.WouldBlock when more is queued than a ring can ever need."""
        self._into_outbox.send_nowait(action)
        self._queued += 1
        self._queued_bytes += len(action.payload)

    def finish(self) -> None:
        """No more will be queued: `run` returns when everything was received."""
        self._finishing = True
        self._into_outbox.close()

    @property
    def _is_done(self) -> bool:
        """Whether no more will be queued and all that was has been received or is not wanted."""
        return self._finishing and self._received + self._left_out == self._queued

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
                nursery.start_soon(self._receive_answers, stream, nursery.cancel_scope)
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
        await send_frame(stream, encode_ring_message(Hello(self._roster)))
        await self._inventory_came.wait()
        async for action in self._outbox:
            if self._inventory is not None and not self._inventory.wants(
                action.chunk, action.mask, action.digest
            ):
                self._left_out += 1
                self._queued_bytes -= len(action.payload)
                continue
            if not self._under_way:
                self._busy_since_seconds = trio.current_time()
                self._busy_bytes = 0
                self._silent_seconds = 0.0
            self._under_way.append(len(action.payload))
            chunk_message = ChunkMessage(
                action.chunk, mask_bytes(action.mask, self._num_members), action.finisher
            )
            await send_frame(stream, encode_ring_message(chunk_message), action.payload)

    async def _receive_answers(self, stream: Stream, scope: trio.CancelScope) -> None:
        while True:
            try:
                message, payload = await receive_frame(
                    stream, message_bytes_max=RING_MESSAGE_BYTES_MAX
                )
                answer = decode_to_sender(message)
                if isinstance(answer, HeldChunks):
                    self._inventory = decode_inventory(payload, self._num_chunks, self._num_members)
                    self._inventory_came.set()
            except RemoteProtocolError:
                raise LinkFailed("malformed answer") from None
            self._silent_seconds = 0.0
            if isinstance(answer, Ack):
                self._acknowledged(answer)
            if self._is_done:
                scope.cancel()

    def _acknowledged(self, ack: Ack) -> None:
        if not self._received <= ack.received <= self._received + len(self._under_way):
            raise LinkFailed("malformed answer: acknowledged what was not sent")
        while self._received < ack.received:
            num_bytes = self._under_way.popleft()
            self._received += 1
            self._received_bytes += num_bytes
            self._busy_bytes += num_bytes
        self._next_bytes = min(ack.next_bytes, self._under_way[0]) if self._under_way else 0
        if not self._under_way and self._busy_since_seconds is not None:
            seconds = trio.current_time() - self._busy_since_seconds
            self._busy_since_seconds = None
            self._busy_before_seconds += seconds
            self._on_transfer(self._busy_bytes, seconds)

    async def _watch(self) -> None:
        """Reports the pace, and gives the link up when it is silent.

        Silence is counted in steps, so that it is not the other's when this process was stopped.
        """
        while True:
            before = trio.current_time()
            await trio.sleep(WATCH_SECONDS)
            now = trio.current_time()
            if self._under_way or not self._inventory_came.is_set():
                self._silent_seconds += min(now - before, 2 * WATCH_SECONDS)
            if self._silent_seconds > RECEIPT_SECONDS:
                raise LinkFailed("timeout: no receipt")
            busy_seconds = self._busy_before_seconds
            if self._busy_since_seconds is not None:
                busy_seconds += now - self._busy_since_seconds
            if busy_seconds:
                received_bytes = self._received_bytes + self._next_bytes
                waiting_bytes = self._queued_bytes - received_bytes
                self._on_measured(received_bytes, busy_seconds, waiting_bytes)


class Receiver(Protocol):
    """Takes what one predecessor in one ring sends."""

    num_members: int

    def inventory(self) -> Inventory:
        """What this member holds of every chunk."""

    async def take(
        self, sender: PeerId, chunk: int, mask: int, finisher: int | None, payload: Payload
    ) -> None:
        """A token, or with the position of its finisher a final."""


class CommittedRing:
    """Takes what comes late for a ring that is committed here: it has no use for anything."""

    def __init__(self, num_chunks: int, num_members: int) -> None:
        best = ((1 << num_members) - 1, Digest(bytes(DIGEST_BYTES)))
        self.num_members = num_members
        self._inventory = Inventory((Held(average=best),) * num_chunks)

    def inventory(self) -> Inventory:
        """See `Receiver`."""
        return self._inventory

    async def take(
        self, sender: PeerId, chunk: int, mask: int, finisher: int | None, payload: Payload
    ) -> None:
        """Drops it."""


HelloHandler = Callable[[PeerId, Signed], Awaitable[Receiver | None]]
"""Called with the roster; answers with who takes the tokens, or None to refuse."""


async def serve_ring(stream: Stream, on_hello: HelloHandler) -> None:
    """Receives one predecessor's tokens until the stream ends.

    Raises:
        RemoteProtocolError: the predecessor sent what the protocol does not allow.
        StreamClosed: the stream ended.
    """
    message: bytearray | None = None
    with trio.move_on_after(FIRST_FRAME_SECONDS):
        message, _ = await receive_frame(stream, payload_bytes_max=0)
    if message is None:
        await stream.reset()
        return
    hello = decode_to_receiver(message)
    if not isinstance(hello, Hello):
        raise MalformedError("ring stream that does not begin with hello")
    receiver = await on_hello(stream.peer_id, hello.roster)
    if receiver is None:
        await stream.reset()
        return
    inventory = encode_inventory(receiver.inventory(), receiver.num_members)
    await send_frame(stream, encode_ring_message(HeldChunks()), inventory)
    received = 0
    acked_seconds = 0.0

    async def acknowledge_part(num_bytes: int) -> None:
        nonlocal acked_seconds
        if trio.current_time() - acked_seconds >= ACK_SECONDS:
            acked_seconds = trio.current_time()
            await send_frame(stream, encode_ring_message(Ack(received, num_bytes)))

    while True:
        message, payload = await receive_frame(
            stream, message_bytes_max=RING_MESSAGE_BYTES_MAX, on_progress=acknowledge_part
        )
        chunk_message = decode_to_receiver(message)
        if not isinstance(chunk_message, ChunkMessage):
            raise MalformedError("ring stream with a second hello")
        received += 1
        acked_seconds = trio.current_time()
        await send_frame(stream, encode_ring_message(Ack(received)))
        mask = int.from_bytes(chunk_message.contributors, "big")
        await receiver.take(
            stream.peer_id, chunk_message.chunk, mask, chunk_message.finisher, payload
        )
