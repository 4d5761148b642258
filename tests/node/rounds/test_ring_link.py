"""The ring's stream: what is queued arrives, whatever the order of events."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Bytes, Stream
from gossamer.node.rounds.ring_link import RingLink
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring import Send
from gossamer.protocol.wire.framing import encode_prefix
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL, Ack
from gossamer.protocol.wire.statements import Signed
from tests.support.memory_transport import MemoryNetwork

RECEIVER = PeerId("receiver")


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
            link = RingLink(
                transport,
                RECEIVER,
                Signed("", b"", b""),
                num_chunks=5,
                num_members=2,
                outbox_max=8,
                waits_for_inventory=False,
            )
            chunks = [bytes([number]) for number in range(5)]
            for number, chunk in enumerate(chunks):
                link.send(Send(RECEIVER, number, 1, 0, chunk))
            link.finish()
            with trio.fail_after(5):
                await link.run()
        assert stream.received == chunks

    trio.run(case)
