"""The sending side of the ring's stream to one member.

`ring_chunks` has the receiving side, `protocol.wire.ring_messages` the messages.

A receipt is acknowledged when it is read, never when it is passed on, so a slow member shows as
itself and not as its predecessor. A link without any receipt for `RECEIPT_SECONDS`, although
something is on its way, has failed. A sender that comes in the middle of a ring waits for the
inventory, and leaves out what is of no use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import Stream, StreamClosed, Transport, TransportError
from gossamer.node.rounds.dispatcher import SENDS_PER_CHUNK_MAX, LinkFullError, LinkTarget
from gossamer.node.rounds.ring_chunks import RingChunks
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.limits import MIB
from gossamer.protocol.rounds.actions import Send
from gossamer.protocol.rounds.inventory import (
    Inventory,
    decode_inventory,
)
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.state.chain import mask_bytes
from gossamer.protocol.wire.ring_messages import (
    RING_MESSAGE_BYTES_MAX,
    RING_PROTOCOL,
    Ack,
    ChunkMessage,
    HeldChunks,
    Hello,
    decode_to_sender,
)

RECEIPT_SECONDS = 10.0
"""A piece of a chunk (`frames.PIECE_BYTES`) takes 2 s on a line of 1 Mbit/s, far below what a
volunteer has. A process or line that is dead altogether shows earlier, by its silence."""

FAST_LINK_BYTES_PER_SECOND = 32e6
"""Rate from which chunks are not packed any more: a quarter of a gigabit a second, more than a home
line has. There a megabyte needs 5 ms less of the line when it is packed, and 4 to 5 ms of two
members' cores, which their trainers need (tests/benchmarks/packing.py)."""

FAST_LINK_BYTES_MIN = 4 * MIB
"""Bytes that a member has to have received before its link counts as fast: a socket's buffer takes
the first ones at once."""

WATCH_SECONDS = 0.25
"""Interval at which a link reports its rate: several times before a rate is judged
(`link_rates`)."""


class LinkFailed(Exception):
    """The member at the other end does not keep up; the text is the reason for `Accusation`."""


class SentChunks:
    """The chunks that one link has queued, sent and seen received. It does no I/O and has no clock.

    `RingLink` feeds it from a stream, and the simulator from virtual time. Every event takes the
    local time in seconds, from a clock that never goes back.
    """

    def __init__(self) -> None:
        self.inventory: Inventory | None = None
        """The inventory that the member sent; None before that."""
        self._queued = 0
        self._queued_bytes = 0
        """Bytes of all chunks that were queued and not left out. A chunk that has not been sent
        counts as it is without packing."""
        self._left_out = 0
        self._under_way: deque[int] = deque()
        """Sizes of the chunks that were sent and are not yet received."""
        self._received = 0
        self._received_bytes = 0
        self._reported_bytes = 0
        """Bytes of the busy times that have ended."""
        self._next_bytes = 0
        """Bytes of the next chunk that the member has received."""
        self._silent_seconds = 0.0
        self._busy_since_seconds: float | None = None
        self._busy_before_seconds = 0.0

    @property
    def all_received(self) -> bool:
        """Returns whether everything that was queued has been received or is of no use."""
        return self._received + self._left_out == self._queued

    def queue(self, action: Send) -> None:
        """A chunk is queued."""
        self._queued += 1
        self._queued_bytes += len(action.payload)

    def is_wanted(self, action: Send) -> bool:
        """Returns whether a queued chunk is of use to the member. A chunk that is not is left
        out."""
        inventory = self.inventory
        if inventory is None or inventory.wants(action.chunk, action.mask, action.digest):
            return True
        self._left_out += 1
        self._queued_bytes -= len(action.payload)
        return False

    def sent(self, now: float, action: Send, num_bytes: int) -> None:
        """A queued chunk is on its way, packed to so many bytes."""
        if not self._under_way:
            self._busy_since_seconds = now
            self._silent_seconds = 0.0
        self._queued_bytes += num_bytes - len(action.payload)
        self._under_way.append(num_bytes)

    def answered(self) -> None:
        """The member said something."""
        self._silent_seconds = 0.0

    def acknowledged(self, now: float, received: int, next_bytes: int) -> tuple[int, float] | None:
        """The member has received so many chunks, and so many bytes of the next one.

        Returns:
            Bytes and seconds of the busy time that ends with this receipt; None if it goes on.

        Raises:
            LinkFailed: the member acknowledges what was not sent.
        """
        if not self._received <= received <= self._received + len(self._under_way):
            raise LinkFailed("malformed answer: acknowledged what was not sent")
        while self._received < received:
            self._received += 1
            self._received_bytes += self._under_way.popleft()
        self._next_bytes = min(next_bytes, self._under_way[0]) if self._under_way else 0
        since_seconds = self._busy_since_seconds
        if self._under_way or since_seconds is None:
            return None
        self._busy_since_seconds = None
        self._busy_before_seconds += now - since_seconds
        transferred = self._received_bytes - self._reported_bytes
        self._reported_bytes = self._received_bytes
        return transferred, now - since_seconds

    def waited(self, seconds: float, *, is_greeted: bool) -> None:
        """Time passed.

        Args:
            seconds: since the last call, without those in which this process was stopped.
            is_greeted: whether the member has answered the greeting, if it has to.

        Raises:
            LinkFailed: nothing was heard for `RECEIPT_SECONDS` although something is on its way.
        """
        if self._under_way or not is_greeted:
            self._silent_seconds += seconds
        if self._silent_seconds > RECEIPT_SECONDS:
            raise LinkFailed("timeout: no receipt")

    def is_fast(self, now: float) -> bool:
        """Returns whether the link is so fast that chunks are not packed."""
        measure = self.measure(now)
        if measure is None or measure.acked_bytes < FAST_LINK_BYTES_MIN:
            return False
        return measure.acked_bytes >= FAST_LINK_BYTES_PER_SECOND * measure.busy_seconds

    def measure(self, now: float) -> LinkMeasure | None:
        """The totals of the link so far; None before anything was sent."""
        busy_seconds = self._busy_before_seconds
        if self._busy_since_seconds is not None:
            busy_seconds += now - self._busy_since_seconds
        if not busy_seconds:
            return None
        received_bytes = self._received_bytes + self._next_bytes
        return LinkMeasure(received_bytes, busy_seconds, self._queued_bytes - received_bytes)


class RingLink:
    """Sends chunks to one member of one ring (an `OutgoingLink`)."""

    def __init__(
        self,
        transport: Transport,
        target: LinkTarget,
        chunks: RingChunks,
        awake_since: Callable[[float], float],
        *,
        on_transfer: Callable[[int, float], None] = lambda _bytes, _seconds: None,
        on_measured: Callable[[LinkMeasure], None] = lambda _measure: None,
    ) -> None:
        """
        Args:
            chunks: of the round.
            awake_since: the seconds for which this process has run since a local time.
            on_transfer: gets the bytes and seconds of each time in which the link was busy.
            on_measured: gets the link's rate every `WATCH_SECONDS`.
        """
        self._transport = transport
        self._target = target
        self._chunks = chunks
        outbox_max = SENDS_PER_CHUNK_MAX * chunks.plan.num_chunks
        self._into_outbox, self._outbox = trio.open_memory_channel[Send](outbox_max)
        self._awake_since = awake_since
        self._on_transfer = on_transfer
        self._on_measured = on_measured
        self._sent = SentChunks()
        self._greeted = trio.Event()
        """Set when the member's inventory came, or at once if it is not waited for."""
        if not target.waits_for_inventory:
            self._greeted.set()
        self._finishing = False
        self.scope = trio.CancelScope()
        """The scope in which the caller runs `run`; `close` cancels it, also before it is entered.
        """

    def send(self, frame: Send) -> None:
        """See `OutgoingLink`."""
        try:
            self._into_outbox.send_nowait(frame)
        except trio.WouldBlock:
            raise LinkFullError from None
        self._sent.queue(frame)

    def finish(self) -> None:
        """See `OutgoingLink`: `run` returns when everything was received."""
        self._finishing = True
        self._into_outbox.close()

    def close(self) -> None:
        """See `OutgoingLink`."""
        self.scope.cancel()

    @property
    def _is_done(self) -> bool:
        """Returns whether no more will be queued and all that was has been received or is not
        wanted."""
        return self._finishing and self._sent.all_received

    async def run(self) -> None:
        """Sends what is queued until cancelled or finished.

        Raises:
            LinkFailed: the member cannot be reached, refused, or does not acknowledge.
        """
        try:
            stream = await self._transport.open_stream(
                self._target.peer, RING_PROTOCOL, at_once=True
            )
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
        num_members = len(self._target.ring.members)
        await send_frame(stream, to_msgpack(Hello(self._target.ring.envelope)))
        await self._greeted.wait()
        async for action in self._outbox:
            if not self._sent.is_wanted(action):
                continue
            is_fast = self._sent.is_fast(trio.current_time())
            parts = (action.payload,) if is_fast else await self._chunks.packed(action)
            num_bytes = sum(len(part) for part in parts)
            self._sent.sent(trio.current_time(), action, num_bytes)
            mask = mask_bytes(action.mask, num_members)
            chunk_message = ChunkMessage(action.chunk, mask, action.finisher, action.signature)
            await send_frame(stream, to_msgpack(chunk_message), *parts)

    async def _receive_answers(self, stream: Stream, scope: trio.CancelScope) -> None:
        sent, num_members = self._sent, len(self._target.ring.members)
        while True:
            try:
                message, payload = await receive_frame(
                    stream, message_bytes_max=RING_MESSAGE_BYTES_MAX
                )
                answer = decode_to_sender(message)
                if isinstance(answer, HeldChunks):
                    num_chunks = self._chunks.plan.num_chunks
                    sent.inventory = decode_inventory(payload, num_chunks, num_members)
                    self._greeted.set()
            except RemoteProtocolError:
                raise LinkFailed("malformed answer") from None
            sent.answered()
            if isinstance(answer, Ack):
                now = trio.current_time()
                transfer = sent.acknowledged(now, answer.received, answer.next_bytes)
                if transfer is not None:
                    self._on_transfer(*transfer)
            if self._is_done:
                scope.cancel()

    async def _watch(self) -> None:
        """Reports the rate, and gives the link up when it is silent."""
        while True:
            before = trio.current_time()
            await trio.sleep(WATCH_SECONDS)
            self._sent.waited(self._awake_since(before), is_greeted=self._greeted.is_set())
            measure = self._sent.measure(trio.current_time())
            if measure is not None:
                self._on_measured(measure)
