"""The ring's stream: what is queued arrives, whatever the order of events."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Bytes, Stream
from gossamer.node.rounds.effects import LinkTarget
from gossamer.node.rounds.ring_link import RECEIPT_SECONDS, LinkFailed, RingLink, SentChunks
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Send
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.wire.framing import encode_prefix
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL, Ack
from gossamer.protocol.wire.statements import Signed
from tests.support.builders import peers, ring_of
from tests.support.memory_transport import MemoryNetwork

RECEIVER = peers(1)[0]


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

        async def open_stream(peer_id: PeerId, protocol: str) -> Stream:
            assert (peer_id, protocol) == (RECEIVER, RING_PROTOCOL)
            return stream

        async with MemoryNetwork().transport(Identity.generate()) as transport:
            monkeypatch.setattr(transport, "open_stream", open_stream)
            target = LinkTarget(
                RECEIVER,
                ring_of([transport.peer_id, RECEIVER]),
                Signed("", b"", b""),
                waits_for_inventory=False,
            )
            link = RingLink(transport, target, 5, AwakeClock().awake_since)
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
        async def open_stream(peer_id: PeerId, _protocol: str) -> Stream:
            opened.append(peer_id)
            await trio.sleep_forever()
            raise AssertionError

        async with MemoryNetwork().transport(Identity.generate()) as transport:
            monkeypatch.setattr(transport, "open_stream", open_stream)
            for is_closed in (False, True):
                target = LinkTarget(
                    RECEIVER,
                    ring_of([transport.peer_id, RECEIVER]),
                    Signed("", b"", b""),
                    waits_for_inventory=False,
                )
                link = RingLink(transport, target, 5, AwakeClock().awake_since)
                if is_closed:
                    link.close()
                with trio.move_on_after(5), link.scope:
                    await trio.lowlevel.checkpoint()
                    await link.run()

    trio.run(case, clock=trio.testing.MockClock(autojump_threshold=0))
    assert opened == [RECEIVER]


def test_a_receipt_ends_the_busy_time_and_silence_fails_the_link() -> None:
    """The account of a link without a stream: bytes, busy seconds, and the bound on silence."""
    chunks, action = SentChunks(), Send(RECEIVER, 0, 1, 0, bytes(100))
    chunks.queue(action)
    assert chunks.measure(1.0) is None
    chunks.sent(1.0, action)
    chunks.queue(action)
    chunks.sent(2.0, action)
    assert chunks.acknowledged(3.0, 1, 40) is None
    assert chunks.measure(3.0) == LinkMeasure(140, 2.0, 60)
    assert chunks.acknowledged(5.0, 2, 0) == (200, 4.0)
    assert chunks.all_received
    with pytest.raises(LinkFailed, match="not sent"):
        chunks.acknowledged(6.0, 3, 0)
    chunks.waited(2 * RECEIPT_SECONDS, is_greeted=True)  # nothing is on its way
    with pytest.raises(LinkFailed, match="no receipt"):
        chunks.waited(2 * RECEIPT_SECONDS, is_greeted=False)
