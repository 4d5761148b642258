"""The chunks of one ring at this node: they come from the member before it, are checked, and get
this node's part. `ring_link` sends them to the next one.

`protocol.wire.ring_messages` has the messages. A receipt is acknowledged when it is read, never
when it is passed on, so a slow member shows as itself and not as its predecessor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.network.frames import receive_frame, receive_message, send_frame
from gossamer.node.network.transport import Stream, StreamClosed
from gossamer.node.rounds.dispatcher import RoundDispatcher
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.packing import Packing
from gossamer.protocol.codecs.payloads import Payloads, SumPayloads
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId, digest_of
from gossamer.protocol.rounds.actions import (
    AverageArrived,
    AverageFinished,
    Contribute,
    Contributed,
    FinishAverage,
    Rejected,
    RingEvent,
    Send,
    SumArrived,
)
from gossamer.protocol.rounds.inventory import (
    NO_DIGEST,
    ArrivedSum,
    Average,
    Held,
    Inventory,
    Payload,
    encode_inventory,
)
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.ring_messages import (
    RING_MESSAGE_BYTES_MAX,
    Ack,
    ChunkMessage,
    HeldChunks,
    Hello,
    decode_to_receiver,
)
from gossamer.protocol.wire.statements import Signed

ACK_SECONDS = 0.25
"""A chunk that takes longer is acknowledged in pieces, so that a slow line is not a silent one."""

FIRST_FRAME_SECONDS = 10.0
"""Longest wait for the first message of a stream, which names its ring."""

INLINE_BYTES_MAX = 96 * 1024
"""A sum of this length is packed and checked by the event loop itself: its digest, signature and
content take some 0.2 ms, and a thread costs as much again to hand them over. A set of this length
may have 22 records, each of which takes 0.3 ms."""

log = structlog.get_logger("round")

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RingChunks:
    """The chunks of one round, their kind of payload, and the threads that work on them."""

    plan: ChunkPlan
    payloads: Payloads
    run_in_thread: RunInThread

    async def packed(self, action: Send) -> Sequence[Buffer]:
        """The parts that travel in place of a chunk's payload."""
        payload, packing = action.payload, self.packing(action.chunk, action.mask)
        if packing is None:
            return (payload,)
        return await self.run(len(payload), lambda: packing.pack(payload))

    def packing(self, chunk: int, mask: int) -> Packing | None:
        """See `ListPayloads.packing`."""
        return self.payloads.packing(self.plan.elements_of(chunk), mask)

    async def run(self, num_bytes: int, work: Callable[[], _Result]) -> _Result:
        """The result of some work on so many bytes of a payload."""
        if isinstance(self.payloads, SumPayloads) and num_bytes <= INLINE_BYTES_MAX:
            return work()
        return await self.run_in_thread(work)


class OwnPart:
    """The work of threads on this peer's part. The dispatcher is told what came of it."""

    def __init__(self, dispatcher: RoundDispatcher, chunks: RingChunks) -> None:
        self._dispatcher = dispatcher
        self._chunks = chunks
        self.contribution: Contribution | None = None
        """This peer's part of the newest ring; None before there is a ring."""
        self.is_spoilt = False
        """Whether this peer's own work cannot be encoded, so that it left the ring."""
        self._num_adding = 0
        """Threads that read this peer's work."""
        self._is_closed = False
        self._closed = trio.Event()
        """Set when no thread reads this peer's work any more."""

    def of_ring(self) -> Contribution:
        """This peer's part of the ring that is followed now. A task that begins when another ring
        is followed would spoil a sum with the part of that one, and blame its sender."""
        assert self.contribution is not None
        return self.contribution

    async def close(self) -> None:
        """Returns when no thread reads this peer's work any more, and none will: it may change.

        For when the round is committed here or about to be left: nothing more is added to a ring.
        Waits for the chunks that are being added, some milliseconds each.
        """
        self._is_closed = True
        if self._num_adding:
            await self._closed.wait()

    async def add(self, ring_id: Digest, action: Contribute, contribution: Contribution) -> None:
        """Adds this peer's part to a chunk.

        Args:
            contribution: the part of the ring that the action is for (`of_ring`).
        """
        await contribution.due(action.chunk, action.payload)
        if self._is_closed:
            return
        is_audited = self._chunks.payloads.are_audited

        def add() -> tuple[Payload, Digest]:
            payload = contribution.add(action.chunk, action.payload, action.mask)
            return payload, digest_of(payload) if is_audited else NO_DIGEST

        self._num_adding += 1
        try:
            payload, digest = await self._chunks.run_in_thread(add)
        except MalformedError as error:  # the received payload cannot be decoded
            assert action.sender is not None
            rejected = Rejected(action.chunk, action.sender)
            self._dispatcher.rejected(trio.current_time(), ring_id, rejected, error)
            return
        except ValueError as error:
            # The work changed since it was offered: its values were checked then.
            log.error(
                "the own part of a chunk cannot be used; this ring goes on without this node",
                error=str(error),
            )
            self.is_spoilt = True
            self._dispatcher.cannot_finish(trio.current_time())
            return
        finally:
            self._num_adding -= 1
            if self._is_closed and not self._num_adding:
                self._closed.set()
        event = Contributed(action.chunk, payload, digest)
        self._dispatcher.ring_event(trio.current_time(), ring_id, event)

    async def finish_average(
        self, ring_id: Digest, action: FinishAverage, contribution: Contribution
    ) -> None:
        """Encodes the average of a chunk, whose sum has all parts. Its argument is as in `add`."""

        def finish_average() -> tuple[Payload, Digest]:
            payload = contribution.finish_average(action.chunk, action.payload, action.mask)
            return payload, digest_of(payload)

        try:
            payload, digest = await self._chunks.run_in_thread(finish_average)
        except (MalformedError, ValueError) as error:
            log.error(
                "an average cannot be encoded; this ring goes on without us", error=str(error)
            )
            self._dispatcher.cannot_finish(trio.current_time())
            return
        event = AverageFinished(action.chunk, payload, digest)
        self._dispatcher.ring_event(trio.current_time(), ring_id, event)


class ReceivedChunk(NamedTuple):
    """A partial sum, or with the position of its finisher an average. `signature`: its sender's
    or finisher's, where one is needed."""

    sender: PeerId
    chunk: int
    mask: int
    """Its contributors, by ring position."""
    finisher: int | None
    payload: Payload
    signature: bytes

    @property
    def is_average(self) -> bool:
        return self.finisher is not None


class Receiver(Protocol):
    """Takes what one predecessor in one ring sends."""

    num_members: int

    def inventory(self) -> Inventory:
        """Returns the inventory of what this member holds of every chunk."""

    async def take(self, received: ReceivedChunk) -> None:
        """Takes a partial sum or an average."""


class CommittedRing:
    """Takes what comes late for a ring that is committed here: it has no use for anything."""

    def __init__(self, num_chunks: int, num_members: int) -> None:
        best = ((1 << num_members) - 1, Digest(bytes(DIGEST_BYTES)))
        self.num_members = num_members
        self._inventory = Inventory((Held(average=best),) * num_chunks)

    def inventory(self) -> Inventory:
        """See `Receiver`."""
        return self._inventory

    async def take(self, received: ReceivedChunk) -> None:
        """Drops it."""


class RingReceiver:
    """Takes what a predecessor sends in one ring that is followed here (a `Receiver`)."""

    def __init__(self, dispatcher: RoundDispatcher, ring_id: Digest, chunks: RingChunks) -> None:
        assert dispatcher.machine.ring is not None
        self.num_members = len(dispatcher.machine.ring.members)
        self._signed_averages = dispatcher.machine.signed_averages
        self._members_signed = self._signed_averages.members
        self._dispatcher = dispatcher
        self._ring_id = ring_id
        self._chunks = chunks

    def inventory(self) -> Inventory:
        """See `Receiver`."""
        answer = self._dispatcher.greeting(self._ring_id)
        if not isinstance(answer, Inventory):
            raise StreamClosed("this ring is not followed here any more")
        return answer

    async def take(self, received: ReceivedChunk) -> None:
        """See `Receiver`."""
        dispatcher, ring_id = self._dispatcher, self._ring_id
        if not self._is_of_use():
            return
        self._check_length(received)
        checked = await self._chunks.run(len(received.payload), lambda: self._checked(received))
        dispatcher.steps_signed(self._members_signed.take_found())
        if not self._is_of_use():  # much may have happened meanwhile
            return
        event: RingEvent = (
            SumArrived(received.chunk, checked)
            if isinstance(checked, ArrivedSum)
            else AverageArrived(received.sender, received.chunk, checked)
        )
        dispatcher.ring_event(trio.current_time(), ring_id, event)

    def _is_of_use(self) -> bool:
        use = self._dispatcher.use_of(self._ring_id)
        if use == "refused":
            raise StreamClosed("another ring is followed here")
        return use == "wanted"

    def _check_length(self, received: ReceivedChunk) -> None:
        chunk, num_bytes, plan = received.chunk, len(received.payload), self._chunks.plan
        if not 0 <= chunk < plan.num_chunks:
            raise MalformedError(f"chunk {chunk} of {plan.num_chunks}")
        is_whole = self._chunks.payloads.is_length(
            num_bytes, plan.elements_of(chunk), received.mask, chunk, is_average=received.is_average
        )
        if not is_whole and self._packing_of(received) is None:
            raise MalformedError(f"{num_bytes} bytes are no chunk of such members")

    def _packing_of(self, received: ReceivedChunk) -> Packing | None:
        """The packing of a chunk that came packed; None if it did not."""
        packing = self._chunks.packing(received.chunk, received.mask)
        if packing is None or not packing.is_length(len(received.payload)):
            return None
        return packing

    def _checked(self, received: ReceivedChunk) -> ArrivedSum | Average:
        """A chunk that is what it has to be, with the signatures that it needs; RemoteProtocolError
        for another."""
        sender, chunk, mask, finisher, payload, signature = received
        payloads, elements = self._chunks.payloads, self._chunks.plan.elements_of(chunk)
        packing = self._packing_of(received)
        if packing is not None:
            payload = packing.unpack(payload)
        checked: ArrivedSum | Average
        if finisher is None:
            digest = digest_of(payload) if payloads.are_audited else NO_DIGEST
            checked = ArrivedSum(sender, mask, payload, digest, signature)
            self._signed_averages.check_sum(chunk, checked)
        else:
            checked = Average(mask, digest_of(payload), finisher, payload, signature)
            self._signed_averages.check(chunk, checked)
        if self._dispatcher.machine.has_to_check(mask, finisher):
            signed, is_average = self._members_signed, received.is_average
            payloads.check(payload, elements, mask, chunk, signed, is_average=is_average)
        return checked


HelloHandler = Callable[[PeerId, Signed], Awaitable[Receiver | None]]
"""Handler of a stream's roster. It returns the receiver of the chunks, or None to refuse the
stream."""


async def serve_ring(stream: Stream, on_hello: HelloHandler) -> None:
    """Receives one predecessor's chunks until the stream ends.

    Raises:
        RemoteProtocolError: the predecessor sent what the protocol does not allow.
        StreamClosed: the stream ended.
    """
    message: bytearray | None = None
    with trio.move_on_after(FIRST_FRAME_SECONDS):
        message = await receive_message(stream)
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
    await send_frame(stream, to_msgpack(HeldChunks()), inventory)
    received = 0
    acked_seconds = 0.0

    async def acknowledge_part(num_bytes: int) -> None:
        nonlocal acked_seconds
        if trio.current_time() - acked_seconds >= ACK_SECONDS:
            acked_seconds = trio.current_time()
            await send_frame(stream, to_msgpack(Ack(received, num_bytes)))

    while True:
        message, payload = await receive_frame(
            stream, message_bytes_max=RING_MESSAGE_BYTES_MAX, on_progress=acknowledge_part
        )
        chunk_message = decode_to_receiver(message)
        if not isinstance(chunk_message, ChunkMessage):
            raise MalformedError("ring stream with a second hello")
        received += 1
        acked_seconds = trio.current_time()
        await send_frame(stream, to_msgpack(Ack(received)))
        await receiver.take(
            ReceivedChunk(
                stream.peer_id,
                chunk_message.chunk,
                int.from_bytes(chunk_message.contributors, "big"),
                chunk_message.finisher,
                payload,
                chunk_message.signature,
            )
        )
