"""Getting blocks from several peers at once.

One `Download` is one list of wanted digests. A worker a peer keeps a few requests on their way on
one stream; the next digest goes to whichever worker has room, so a fast peer brings more. Then:

- A peer whose stream fails, or that brings no block for `REQUEST_SECONDS`, is left alone for
  `RETURN_SECONDS`, and what it was asked for goes to the others. An answer that a block is not
  there brings nothing.
- When all `WORKERS_MAX` places are taken, the peer that brought least gives its place, once in
  `TRIAL_SECONDS`, to one that this download has not asked yet.
- A peer that does not have a block is not asked for it again, until it has been left alone so long
  because it had nothing more to give.
- A block that is late (`late_blocks`) is also asked of another peer that has nothing else to do,
  and so on up to `COPIES_MAX`; the first whole answer counts.
- A peer that sends wrong bytes, or breaks the protocol, is reported and out for good.
- A peer whose block is longer than any of the wanted ones may be is out for good, before the block
  is read, and not reported: the peer that named the block is to blame, and may be another one.
- When no peer can be asked, the pass is over. The next pass, after a pause, asks all peers anew.
  After `PASSES` of them in a row that brought nothing, the download ends with what it has.

Each block is checked and stored at once, so whatever ends a download, the next one goes on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import structlog
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import Stream, Transport, TransportError
from gossamer.node.peers.blocks.late_blocks import Wanted, Worker, quiet_peers
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.errors import MalformedError, OversizedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, short
from gossamer.protocol.limits import BLOCK_BYTES_MAX, KIB
from gossamer.protocol.wire.block_messages import (
    BLOCK_MESSAGE_BYTES_MAX,
    BLOCKS_PROTOCOL,
    decode_reply,
    encode_request,
)

_log = structlog.get_logger()

PEERS_MAX = 8
"""Peers that are asked at once; those that stall do not count."""

WORKERS_MAX = 16
"""Streams open at once, stalled ones included."""

REQUESTS_PER_PEER_MAX = 4
"""Requests on their way at once: hides the round trip, and is little to ask elsewhere again."""

OPEN_SECONDS = 15.0

REQUEST_SECONDS = 60.0
"""Time without a block after which a peer is given up: 4 MiB at 0.6 Mbit/s."""

TRIAL_SECONDS = 60.0
"""Time that each peer has at least to bring blocks. On a home line of 10 Mbit/s, a block that is
cut off so often is a twentieth of what comes."""

RETURN_SECONDS = 30.0
PASSES = 3
PAUSE_SECONDS = 2.0

_LOOK_SECONDS = 0.5
"""How often an idle worker looks for late blocks, and the download for new sources."""

INLINE_BYTES_MAX = 64 * KIB
"""Longest block that is read, checked and written in the event loop."""

_T = TypeVar("_T")


async def read_or_write(
    num_bytes: int,
    function: Callable[[], _T],
    *,
    limiter: trio.CapacityLimiter | None = None,
) -> _T:
    """Calls a function that reads or writes so many bytes of the disk: in the event loop if they
    are few, for a thread's hand-over costs more, else in a thread of `limiter`."""
    if num_bytes <= INLINE_BYTES_MAX:
        return function()
    return await trio.to_thread.run_sync(function, limiter=limiter)


class _LongBlockError(TransportError):
    """A block that is longer than the wanted ones may be."""


class Download:
    """One attempt to get a list of blocks into the store.

    `wanted` are the blocks still missing, `peers_asked` everybody who was asked, `last_problem`
    what went wrong last with one of them.

    Args:
        sources: asked again and again for the peers that may have the blocks.
        on_stored: called with the digest of each block as it is stored.
        on_offence: called for a peer that sent what the protocol does not allow.
        spares_line: says that no blocks are to be moved now, which ends the download.
        bytes_max: most bytes of each block.
        passes: passes in a row without a block after which the download ends.

    It has more than 7 parameters and 12 attributes: a fetch has its own limits and callbacks, and
    the workers share what is known of each peer.
    """

    def __init__(
        self,
        transport: Transport,
        store: BlockStore,
        digests: Iterable[Digest],
        sources: Callable[[], Sequence[PeerId]],
        on_stored: Callable[[Digest], None],
        on_offence: Callable[[PeerId, RemoteProtocolError], None],
        spares_line: Callable[[], bool],
        bytes_max: int,
        passes: int,
    ) -> None:
        self.wanted = {digest: Wanted(digest) for digest in digests}
        self.peers_asked: set[PeerId] = set()
        self.last_problem = ""
        self._order = list(self.wanted.values())
        self._transport = transport
        self._store = store
        self._sources = sources
        self._on_stored = on_stored
        self._on_offence = on_offence
        self._spares_line = spares_line
        self._bytes_max = bytes_max
        self._passes = passes
        self._workers: list[Worker] = []
        self._not_before: dict[PeerId, float] = {}
        self._out: set[PeerId] = set()
        """Peers that are not asked again."""
        self._failure: Exception | None = None
        self._changed = trio.Event()

    async def run(self) -> None:
        """Returns when all blocks are here, no peer can be asked any more (see `wanted`), or the
        line is spared.

        Raises:
            DiskError: our own disk failed; likewise whatever a callback raises.

        Cancellation: streams are reset; the blocks stored so far stay.
        """
        passes_left = self._passes
        while self.wanted and not self._spares_line():
            num_wanted = len(self.wanted)
            await self._pass()
            if self._failure is not None:
                raise self._failure
            passes_left = passes_left - 1 if len(self.wanted) == num_wanted else self._passes
            if not passes_left:
                return
            if self.wanted:
                await trio.sleep(PAUSE_SECONDS)

    async def _pass(self) -> None:
        self._not_before.clear()
        async with trio.open_nursery() as nursery:
            while self.wanted and self._failure is None and not self._spares_line():
                self._start_workers(nursery)
                if not self._workers:
                    break
                await self._wait_for_change()
            nursery.cancel_scope.cancel()

    def _start_workers(self, nursery: trio.Nursery) -> None:
        """Starts as many workers as there is use for. A stalled worker does not count, so another
        takes over."""
        now = trio.current_time()
        num_active = sum(worker.is_active(now) for worker in self._workers)
        num_useful = min(PEERS_MAX, len(self.wanted)) - num_active
        quiet = quiet_peers(self._workers, now)
        if num_useful <= 0 or not any(each.may_ask(quiet, now) for each in self.wanted.values()):
            return
        candidates = self._candidates(now)
        num_places = WORKERS_MAX - len(self._workers)
        if not num_places and not self.peers_asked.issuperset(candidates):
            self._free_a_place(now)
        for peer_id in candidates[: min(num_useful, num_places)]:
            for wanted in self.wanted.values():
                wanted.refused.discard(peer_id)
            self.peers_asked.add(peer_id)
            worker = Worker(peer_id, started_at=now, progress_at=now, heard_at=now)
            self._workers.append(worker)
            nursery.start_soon(self._work, worker)

    def _free_a_place(self, now: float) -> None:
        """Ends the worker that brought least, if each had its time."""
        newest_at = max(worker.started_at for worker in self._workers)
        if now >= newest_at + TRIAL_SECONDS:
            least = min(self._workers, key=lambda worker: worker.num_bytes)
            self._note_problem(least, "it brought less than all others")
            least.scope.cancel()

    def _candidates(self, now: float) -> list[PeerId]:
        working = {worker.peer_id for worker in self._workers}
        excluded = working | self._out | {self._transport.peer_id}
        return sorted(
            (
                peer_id
                for peer_id in set(self._sources()) - excluded
                if self._not_before.get(peer_id, now) <= now
            ),
            key=self._rank,
        )

    def _rank(self, peer_id: PeerId) -> tuple[bool, bytes]:
        """Peers that were not asked yet come first. Every node and every download asks in another
        order, so that no peer is first for all."""
        first = next(iter(self.wanted))
        order = digest_of(self._transport.peer_id.encode(), first, peer_id.encode())
        return peer_id in self.peers_asked, order

    async def _work(self, worker: Worker) -> None:
        try:
            with worker.scope:
                await self._ask(worker)
        except trio.TooSlowError:
            self._note_problem(worker, "no block in time")
        except _LongBlockError as error:
            self._note_problem(worker, str(error))
            self._out.add(worker.peer_id)
        except TransportError as error:
            self._note_problem(worker, str(error))
        except RemoteProtocolError as error:
            self._note_problem(worker, str(error))
            self._out.add(worker.peer_id)
            self._on_offence(worker.peer_id, error)
        except Exception as error:
            # Ours: the disk, or a callback. Leaves the nursery as itself, not in a group.
            self._failure = error
        finally:
            for wanted in worker.under_way:
                wanted.asked.pop(worker.peer_id, None)
            self._workers.remove(worker)
            self._not_before[worker.peer_id] = trio.current_time() + RETURN_SECONDS
            self._wake()

    async def _ask(self, worker: Worker) -> None:
        with trio.fail_after(OPEN_SECONDS):
            stream = await self._transport.open_stream(worker.peer_id, BLOCKS_PROTOCOL)
        worker.opening = False
        worker.progress_at = worker.heard_at = trio.current_time()
        try:
            while self.wanted:
                await self._send_requests(worker, stream)
                if worker.under_way:
                    await self._receive_reply(worker, stream)
                elif all(worker.peer_id in each.refused for each in self.wanted.values()):
                    break
                else:
                    await self._wait_for_change()
                    worker.progress_at = worker.heard_at = trio.current_time()
            if worker.under_way:
                await stream.reset()
            else:
                await stream.close()  # may be cut short: the last block ends the whole pass
        except BaseException:
            with trio.CancelScope(shield=True):
                await stream.reset()
            raise

    async def _send_requests(self, worker: Worker, stream: Stream) -> None:
        while len(worker.under_way) < REQUESTS_PER_PEER_MAX:
            wanted = self._claim(worker)
            if wanted is None:
                return
            wanted.asked[worker.peer_id] = trio.current_time()
            worker.under_way.append(wanted)
            with trio.fail_after(REQUEST_SECONDS):
                await send_frame(stream, encode_request(wanted.digest))

    async def _receive_reply(self, worker: Worker, stream: Stream) -> None:
        with trio.fail_at(worker.progress_at + REQUEST_SECONDS):
            message, payload = await self._receive_frame(worker, stream)
        worker.heard_at = trio.current_time()
        worker.is_answering = False
        wanted = worker.under_way[0]
        digest, found = decode_reply(message)
        if digest != wanted.digest or found != bool(payload):
            raise MalformedError(f"the answer does not fit the request for {short(wanted.digest)}")
        if found and digest in self.wanted:
            await self._keep(digest, payload)
        worker.under_way.popleft()
        del wanted.asked[worker.peer_id]
        if found:
            worker.num_bytes += len(payload)
            worker.progress_at = trio.current_time()
        else:
            wanted.refused.add(worker.peer_id)
            if not wanted.asked:
                self._wake()

    async def _receive_frame(self, worker: Worker, stream: Stream) -> tuple[bytearray, bytearray]:
        """The next answer. Raises as `receive_frame`, and _LongBlockError."""

        def note_begun() -> None:
            worker.is_answering = True

        try:
            return await receive_frame(
                stream,
                message_bytes_max=BLOCK_MESSAGE_BYTES_MAX,
                payload_bytes_max=self._bytes_max,
                on_begun=note_begun,
            )
        except OversizedError as error:
            if self._bytes_max == BLOCK_BYTES_MAX:
                raise
            raise _LongBlockError(str(error)) from error

    async def _keep(self, digest: Digest, payload: bytearray) -> None:
        await read_or_write(len(payload), partial(self._store.put, payload, expected=digest))
        if self.wanted.pop(digest, None) is not None:  # else a second peer was faster
            self._on_stored(digest)
            if not self.wanted:
                self._wake()

    def _claim(self, worker: Worker) -> Wanted | None:
        """Returns the block to ask this worker's peer for next."""
        while worker.cursor < len(self._order):
            wanted = self._order[worker.cursor]
            worker.cursor += 1
            if (
                wanted.digest in self.wanted
                and not wanted.asked
                and worker.peer_id not in wanted.refused
            ):
                return wanted
        # It has gone through the list once: what others gave back, and what is late with them.
        now = trio.current_time()
        quiet = quiet_peers(self._workers, now)
        for wanted in self.wanted.values():
            if (
                worker.peer_id not in wanted.refused
                and worker.peer_id not in wanted.asked
                and wanted.may_ask(quiet, now)
            ):
                return wanted
        return None

    def _note_problem(self, worker: Worker, problem: str) -> None:
        self.last_problem = f"{short(worker.peer_id)}: {problem}"
        _log.debug("a peer failed to send blocks", peer=short(worker.peer_id), problem=problem)

    async def _wait_for_change(self) -> None:
        with trio.move_on_after(_LOOK_SECONDS):
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
