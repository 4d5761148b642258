"""The data to train on, wherever they come from, and how much of them is queued at the trainer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from gossamer.protocol.accounting.ledger import EpochProgress
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import DATA_RANGES_MAX

ROUNDS_AHEAD = 2
"""Rounds of tokens that are kept queued: the present round's and the next one's."""

PIECES_AHEAD_MAX = DATA_RANGES_MAX // 2
"""Upper bound on queued pieces of shards: the trainer takes no more than twice as many."""

Queue = Callable[[int, str, int, int], Awaitable[None]]
"""Queues tokens at the trainer: (shard, path, start, stop), see `Trainer.queue`."""


class Feed:
    """Chooses the tokens that this node trains on, and keeps the trainer's queue filled.

    `DataFeed` has the run's data, and `OwnFeed` this node's own. Where a method does nothing here,
    that is right for data which nobody else has, and which no message names.
    """

    problem: str | None = None
    """Why there is no data to train on, for people; None if there is."""

    def __init__(self, smallest_shard_tokens: int) -> None:
        self._level = QueueLevel(smallest_shard_tokens)
        self._wake = trio.Event()

    @property
    def claims(self) -> tuple[int, ...]:
        """Partitions of the run's data that this peer claims."""
        return ()

    def epoch_progress(self) -> EpochProgress:
        """The place in the data."""
        raise NotImplementedError

    def want(self, tokens_per_round: int) -> None:
        """Sets how many tokens a round needs."""
        self._level.wanted_tokens = max(1, ROUNDS_AHEAD * tokens_per_round)
        self._wake.set()

    def data_has_grown(self) -> None:
        """The founder has added shards to the run."""

    def need_more(self, tokens_queued: int) -> None:
        """The trainer's queue runs out: it has `tokens_queued` left."""
        self._level.at_most(tokens_queued)
        self._wake.set()

    def consumed(self, spans: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
        """Notes what the trainer consumed, as (shard, start, stop), offsets within shards.

        Returns:
            The spans of the run's data that the next `Ready` names, merged where one follows on
            another.
        """
        raise NotImplementedError

    def carry(self, spans: Sequence[Span]) -> None:
        """Work on this data is carried, from an earlier life or from rounds that left the chain."""

    def leave(self, spans: Sequence[Span]) -> None:
        """No round counts this data: other peers take up its partitions first, if there are any.
        `forget_progress` has to follow."""

    def has_gap(self, spans: Sequence[Span]) -> bool:
        """Returns whether data was trained on that is neither in the ledger nor in these spans."""
        return False

    def forget_progress(self) -> None:
        """Work was dropped: its data is not consumed. The queue has to be emptied as well."""
        self.requeue()

    def requeue(self) -> None:
        """The trainer's queue is empty (restarted, or told to forget): fill it anew."""
        self._level.clear()
        self._wake.set()

    def give_up_lost_claims(self) -> bool:
        """Drops claims that others hold with a lower rank; says whether something was queued."""
        return False

    async def save(self) -> None:
        """Keeps the place in the data, where nothing else does."""

    async def run(self, queue: Queue) -> None:
        """Keeps the queue filled until cancelled."""
        while True:
            await self.save()
            if self._level.is_enough:
                await self._wake.wait()
                self._wake = trio.Event()
            else:
                await self._fill(queue)

    async def _fill(self, queue: Queue) -> None:
        """Queues some of what is missing, or waits until there may be some."""
        raise NotImplementedError


class QueueLevel:
    """Tokens and pieces in the trainer's queue."""

    def __init__(self, smallest_shard_tokens: int) -> None:
        self.smallest_shard_tokens = smallest_shard_tokens
        self.tokens = 0
        self.pieces = 0
        self.wanted_tokens = 0

    @property
    def is_enough(self) -> bool:
        return self.tokens >= self.wanted_tokens or self.pieces >= PIECES_AHEAD_MAX

    @property
    def missing_tokens(self) -> int:
        return self.wanted_tokens - self.tokens

    def queued(self, tokens: int) -> None:
        """One more piece is queued."""
        self.tokens += tokens
        self.pieces += 1

    def consumed(self, tokens: int, *, is_end_of_piece: bool) -> None:
        """The trainer consumed tokens."""
        self.tokens = max(0, self.tokens - tokens)
        if is_end_of_piece:
            self.pieces = max(0, self.pieces - 1)

    def at_most(self, tokens: int) -> None:
        """The trainer says that it has no more tokens than these."""
        if tokens < self.tokens:
            self.tokens = tokens
            # No piece but the first and the last one of a partition is shorter than a shard.
            pieces_max = 2 + 2 * tokens // self.smallest_shard_tokens
            self.pieces = min(self.pieces, pieces_max)

    def clear(self) -> None:
        """The trainer's queue is empty."""
        self.tokens = self.pieces = 0
