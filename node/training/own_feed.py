"""The feed of a node that trains on data of its own, in a run where every peer does.

The node reads its shards from the first to the last and begins again, whatever the others do. It
claims nothing and names no data in its messages. How far it is stays on its disk: a position that
counts on over the epochs, and moves when the work on the tokens before it is in `pending`. Work
that is dropped later does not move it back: its text comes again in the next epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.base.threads import RunInThread
from gossamer.node.storage.own_data import OwnData
from gossamer.node.training.feed import Feed, Queue
from gossamer.protocol.accounting.ledger import EpochProgress
from gossamer.protocol.wire.statements import Span


class OwnFeed(Feed):
    """Keeps the trainer's queue filled from this node's own shards."""

    def __init__(self, data: OwnData, health: DiskHealth, run_in_thread: RunInThread) -> None:
        """`data`: opened, with one shard or more."""
        sizes = [shard.num_tokens for shard in data.shards]
        super().__init__(min(sizes))
        self._data = data
        self._health = health
        self._run_in_thread = run_in_thread
        self._ends = list(accumulate(sizes))
        self._epoch_tokens = self._ends[-1]
        self._position = self._queued = data.position

    def epoch_progress(self) -> EpochProgress:
        """See `Feed`: this node's own epochs."""
        epoch, consumed = divmod(self._position, self._epoch_tokens)
        num_shards = len(self._ends)
        done = bisect_right(self._ends, consumed)
        return EpochProgress(epoch, consumed, self._epoch_tokens, done, num_shards)

    def consumed(self, spans: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
        """See `Feed`. The `Ready` names nothing."""
        for shard, start, stop in spans:
            begin = self._position - self._position % self._epoch_tokens
            begin += self._begin(shard) + start
            # Before the position it is of the next epoch, or was queued once more.
            if begin < self._position and begin + self._epoch_tokens < self._queued:
                begin += self._epoch_tokens
            self._position = max(self._position, begin + stop - start)
            is_end_of_piece = stop == self._data.shards[shard].num_tokens
            self._level.consumed(stop - start, is_end_of_piece=is_end_of_piece)
        self._wake.set()
        return ()

    def requeue(self) -> None:
        """See `Feed`. The position stays."""
        self._queued = self._position
        super().requeue()

    async def _fill(self, queue: Queue) -> None:
        offset = self._queued % self._epoch_tokens
        shard = bisect_right(self._ends, offset)
        start, stop = offset - self._begin(shard), self._data.shards[shard].num_tokens
        self._queued += stop - start
        self._level.queued(stop - start)
        await queue(shard, str(self._data.shards[shard].path), start, stop)

    async def save(self) -> None:
        """Writes the position if it has moved. A disk that fails costs nothing else."""
        position = self._position
        if position == self._data.position:
            return
        with self._health.writing("own data"):
            await self._run_in_thread(lambda: self._data.save(position))

    def _begin(self, shard: int) -> int:
        return self._ends[shard - 1] if shard else 0
