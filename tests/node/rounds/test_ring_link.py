"""The ring's stream: what is queued arrives, whatever the order of events."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import trio
import trio.testing

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.network.frames import receive_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Bytes, Stream
from gossamer.node.rounds.dispatcher import LinkTarget
from gossamer.node.rounds.ring_chunks import RingChunks
from gossamer.node.rounds.ring_link import (
    FAST_LINK_BYTES_MIN,
    RECEIPT_SECONDS,
    LinkFailed,
    RingLink,
    SentChunks,
)
from gossamer.protocol.codecs.payloads import payloads_named
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Send
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.framing import encode_prefix
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL, Ack
from tests.support.builders import peers, ring_of
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.node_world import in_no_thread

RECEIVER = peers(1)[0]

CHUNKS = RingChunks(ChunkPlan(5 * 1024, 1024), payloads_named("int8"), in_no_thread)


class PromptReceiver:
    """A stream whose receipts are read before `send` is back, as on a busy machine."""

    peer_id = RECEIVER
    protocol = RING_PROTOCOL

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self._to_read, self._reads = bytearray(), trio.Event()

    async def send(self, *parts: Bytes) -> None:
        if len(parts) == 1:  # the hello
            return
        self.received.append(bytes(parts[1]))
        message = msgspec.msgpack.encode(Ack(len(self.received)))
        self._to_read += encode_prefix(len(message), 0) + message
        self._reads.set()
        await trio.testing.wait_all_tasks_blocked()

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        while len(self._to_read) < num_bytes:
            self._reads = trio.Event()
            await self._reads.wait()
        taken = self._to_read[:num_bytes]
        del self._to_read[:num_bytes]
        return taken

    async def close(self) -> None:
        """Nothing to do."""

    async def reset(self) -> None:
        """Nothing to do."""


def test_finishing_with_chunks_in_the_queue_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that were sent are received while more are queued: that is not the end."""

    async def case() -> None:
        stream = PromptReceiver()

        async def open_stream(peer_id: PeerId, protocol: str, *, at_once: bool) -> Stream:
            assert (peer_id, protocol, at_once) == (RECEIVER, RING_PROTOCOL, True)
            return stream

        async with MemoryNetwork().transport(Identity.generate()) as transport:
            monkeypatch.setattr(transport, "open_stream", open_stream)
            target = LinkTarget(
                RECEIVER,
                ring_of([transport.peer_id, RECEIVER]),
                waits_for_inventory=False,
            )
            link = RingLink(transport, target, CHUNKS, AwakeClock().awake_since)
            chunks = [bytes([number]) for number in range(5)]
            for number, chunk in enumerate(chunks):
                link.send(Send(RECEIVER, number, 1, 0, chunk))
            link.finish()
            with trio.fail_after(5):
                await link.run()
        assert stream.received == chunks

    trio.run(case)


def test_a_link_that_is_closed_before_it_runs_opens_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ring may be replaced before the task of its link has begun."""
    opened: list[PeerId] = []

    async def case() -> None:
        async def open_stream(peer_id: PeerId, _protocol: str, *, at_once: bool) -> Stream:
            opened.append(peer_id)
            await trio.sleep_forever()
            raise AssertionError

        async with MemoryNetwork().transport(Identity.generate()) as transport:
            monkeypatch.setattr(transport, "open_stream", open_stream)
            for is_closed in (False, True):
                target = LinkTarget(
                    RECEIVER,
                    ring_of([transport.peer_id, RECEIVER]),
                    waits_for_inventory=False,
                )
                link = RingLink(transport, target, CHUNKS, AwakeClock().awake_since)
                if is_closed:
                    link.close()
                with trio.move_on_after(5), link.scope:
                    await trio.lowlevel.checkpoint()
                    await link.run()

    trio.run(case, clock=trio.testing.MockClock(autojump_threshold=0))
    assert opened == [RECEIVER]


def test_the_first_chunk_arrives_after_one_way() -> None:
    """The member was asked first whether it speaks the protocol, which took a round trip."""
    one_way_seconds = 0.05
    arrived: list[float] = []

    async def case() -> None:
        network = MemoryNetwork(latency_seconds=one_way_seconds)
        async with (
            network.transport(Identity.generate()) as sender,
            network.transport(Identity.generate()) as receiver,
        ):

            async def receive(stream: Stream) -> None:
                await receive_frame(stream)  # the hello
                await receive_frame(stream)
                arrived.append(trio.current_time())
                await trio.sleep_forever()

            receiver.handle(RING_PROTOCOL, receive)
            await sender.connect(receiver.addresses()[0])
            target = LinkTarget(
                receiver.peer_id,
                ring_of([sender.peer_id, receiver.peer_id]),
                waits_for_inventory=False,
            )
            link = RingLink(sender, target, CHUNKS, AwakeClock().awake_since)
            link.send(Send(receiver.peer_id, 0, 1, 0, b"chunk"))
            begun = trio.current_time()
            with trio.move_on_after(1), link.scope:
                await link.run()
            assert [time - begun for time in arrived] == pytest.approx([one_way_seconds])

    run_simulated(case)


def test_a_receipt_ends_the_busy_time_and_silence_fails_the_link() -> None:
    """The account of a link without a stream: bytes, busy seconds, and the bound on silence."""
    chunks, action = SentChunks(), Send(RECEIVER, 0, 1, 0, bytes(100))
    chunks.queue(action)
    assert chunks.measure(1.0) is None
    chunks.sent(1.0, action, 100)
    chunks.queue(action)
    chunks.sent(2.0, action, 100)
    assert chunks.acknowledged(3.0, 1, 40) is None
    assert chunks.measure(3.0) == LinkMeasure(140, 2.0, 60)
    assert chunks.acknowledged(5.0, 2, 0) == (200, 4.0)
    assert chunks.all_received
    with pytest.raises(LinkFailed, match="not sent"):
        chunks.acknowledged(6.0, 3, 0)
    chunks.waited(2 * RECEIPT_SECONDS, is_greeted=True)  # nothing is on its way
    with pytest.raises(LinkFailed, match="no receipt"):
        chunks.waited(2 * RECEIPT_SECONDS, is_greeted=False)


def test_a_link_is_fast_once_it_has_received_much_in_little_time() -> None:
    """Then its chunks are not packed, which would cost more than it saves."""
    action = Send(RECEIVER, 0, 1, 0, bytes(1024))
    for seconds, is_fast in ((0.13, True), (0.14, False)):
        chunks = SentChunks()
        num_chunks = FAST_LINK_BYTES_MIN // len(action.payload)
        for _ in range(num_chunks):
            chunks.queue(action)
            chunks.sent(1.0, action, len(action.payload))
        assert not chunks.is_fast(1.0 + seconds)
        chunks.acknowledged(1.0 + seconds, num_chunks - 1, 0)
        assert not chunks.is_fast(1.0 + seconds)  # a socket's buffer took these
        chunks.acknowledged(1.0 + seconds, num_chunks, 0)
        assert chunks.is_fast(1.0 + seconds) == is_fast


@pytest.mark.parametrize("is_fast", [False, True])
def test_a_fast_link_sends_chunks_as_they_are(
    monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    packing = payloads_named("fp16", is_packing=True)
    payload = bytes(codec("fp16").encode(np.full(1024, 0.5, np.float32)))

    async def case() -> None:
        stream = PromptReceiver()

        async def open_stream(_peer: PeerId, _protocol: str, *, at_once: bool) -> Stream:
            return stream

        async with MemoryNetwork().transport(Identity.generate()) as transport:
            monkeypatch.setattr(transport, "open_stream", open_stream)
            monkeypatch.setattr(SentChunks, "is_fast", lambda _chunks, _now: is_fast)
            ring = ring_of([transport.peer_id, RECEIVER])
            target = LinkTarget(RECEIVER, ring, waits_for_inventory=False)
            chunks = RingChunks(ChunkPlan(1024, 1024), packing, in_no_thread)
            link = RingLink(transport, target, chunks, AwakeClock().awake_since)
            link.send(Send(RECEIVER, 0, 1, 0, payload))
            link.finish()
            with trio.fail_after(5):
                await link.run()
        (sent,) = stream.received
        assert (sent == payload) == is_fast

    trio.run(case)


def test_a_packed_chunk_counts_with_the_bytes_that_travel() -> None:
    """What is left on a link, which says how slow it is, is not what packing has taken away."""
    chunks, action = SentChunks(), Send(RECEIVER, 0, 1, 0, bytes(100))
    for _ in range(2):
        chunks.queue(action)
    chunks.sent(1.0, action, 85)
    assert chunks.acknowledged(2.0, 0, 40) is None
    assert chunks.measure(2.0) == LinkMeasure(40, 1.0, 45 + 100)
    assert chunks.acknowledged(3.0, 1, 0) == (85, 2.0)
    chunks.sent(3.0, action, 85)
    assert chunks.acknowledged(4.0, 2, 0) == (85, 1.0)
    assert chunks.measure(4.0) == LinkMeasure(170, 3.0, 0)
    assert chunks.all_received
