"""The work of threads on the chunks of one round: they pack what leaves, add this peer's own part,
and finish averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.rounds.dispatcher import RoundDispatcher
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.packing import Packing
from gossamer.protocol.codecs.payloads import Payloads, SumPayloads
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.rounds.actions import Contribute, FinishAverage, Send
from gossamer.protocol.rounds.inventory import NO_DIGEST, Payload
from gossamer.protocol.state.chunk_plan import ChunkPlan

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
        """See `Payloads.packing`."""
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
        await contribution.due(action.chunk, is_first=action.payload is None)
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
            self._dispatcher.rejected(
                trio.current_time(), ring_id, action.chunk, action.sender, error
            )
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
        self._dispatcher.contributed(trio.current_time(), ring_id, action.chunk, payload, digest)

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
        now = trio.current_time()
        self._dispatcher.average_finished(now, ring_id, action.chunk, payload, digest)
