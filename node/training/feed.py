"""What a node's loop needs of the data to train on, wherever they come from, and how much of them
is queued at the trainer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from gossamer.protocol.accounting.ledger import EpochProgress
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import DATA_RANGES_MAX

ROUNDS_AHEAD = 2
"""Rounds of tokens that are kept queued: the present round's and the next one's."""

PIECES_AHEAD_MAX = DATA_RANGES_MAX // 2
"""Upper bound on queued pieces of shards: the trainer takes no more than twice as many."""

Queue = Callable[[int, str, int, int], Awaitable[None]]
"""Queues tokens at the trainer: (shard, path, start, stop), see `Trainer.queue`."""


class Feed(Protocol):
    """Chooses the tokens that this node trains on, and keeps the trainer's queue filled.

    `DataFeed` has the run's data, and `OwnFeed` this node's own.
    """

    problem: str | None
    """Why there is no data to train on, for people; None if there is."""

    @property
    def claims(self) -> tuple[int, ...]:
        """Partitions of the run's data that this peer claims."""

    def epoch_progress(self) -> EpochProgress:
        """The place in the data."""

    def want(self, tokens_per_round: int) -> None:
        """Sets how many tokens a round needs."""

    def data_has_grown(self) -> None:
        """The founder has added shards to the run."""

    def need_more(self, tokens_queued: int) -> None:
        """The trainer's queue runs out: it has `tokens_queued` left."""

    def consumed(self, spans: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
        """Notes what the trainer consumed, as (shard, start, stop), offsets within shards.

        Returns:
            The spans of the run's data that the next `Ready` names.
        """

    def carry(self, spans: Sequence[Span]) -> None:
        """Work on this data is carried, from an earlier life or from rounds that left the chain."""

    def leave(self, spans: Sequence[Span]) -> None:
        """No round counts this data: other peers take up its partitions first, if there are any.
        `forget_progress` has to follow."""

    def has_gap(self, spans: Sequence[Span]) -> bool:
        """Returns whether data was trained on that is neither in the ledger nor in these spans."""

    def forget_progress(self) -> None:
        """Work was dropped. The queue has to be emptied as well."""

    def requeue(self) -> None:
        """The trainer's queue is empty (restarted, or told to forget): fill it anew."""

    def give_up_lost_claims(self) -> bool:
        """Drops claims that others hold with a lower rank; says whether something was queued."""

    async def run(self, queue: Queue) -> None:
        """Keeps the queue filled until cancelled."""


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
