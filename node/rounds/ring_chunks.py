"""The chunks of one round on their way between two members: packed before they leave, in threads
where that takes long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gossamer.node.base.threads import RunInThread
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.packing import Packing
from gossamer.protocol.codecs.payloads import Payloads, SumPayloads
from gossamer.protocol.rounds.actions import Send
from gossamer.protocol.state.chunk_plan import ChunkPlan

INLINE_BYTES_MAX = 96 * 1024
"""A sum of this length is packed and checked by the event loop itself: its digest, signature and
content take some 0.2 ms, and a thread costs as much again to hand them over. A set of this length
may have 22 records, each of which takes 0.3 ms."""

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
        """See `Payloads.packing`."""
        return self.payloads.packing(self.plan.elements_of(chunk), mask)

    async def run(self, num_bytes: int, work: Callable[[], _Result]) -> _Result:
        """The result of some work on so many bytes of a payload."""
        if isinstance(self.payloads, SumPayloads) and num_bytes <= INLINE_BYTES_MAX:
            return work()
        return await self.run_in_thread(work)
