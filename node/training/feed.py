"""What a node's loop needs of the data to train on, wherever they come from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from gossamer.protocol.accounting.ledger import EpochProgress
from gossamer.protocol.wire.statements import Span

ROUNDS_AHEAD = 2
"""Rounds of tokens that are kept queued: the present round's and the next one's."""

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

    def need_more(self, tokens_queued: int) -> None:
        """The trainer's queue runs out: it has `tokens_queued` left."""

    def consumed(self, spans: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
        """Notes what the trainer consumed, as (shard, start, stop), offsets within shards.

        Returns:
            The spans of the run's data that the next `Ready` names.
        """

    def carry(self, spans: Sequence[Span]) -> None:
        """Work on this data is carried, from an earlier life or from rounds that left the chain."""

    def forget_progress(self) -> None:
        """Work was dropped. The queue has to be emptied as well."""

    def requeue(self) -> None:
        """The trainer's queue is empty (restarted, or told to forget): fill it anew."""

    def give_up_lost_claims(self) -> bool:
        """Drops claims that others hold with a lower rank; says whether something was queued."""

    async def run(self, queue: Queue) -> None:
        """Keeps the queue filled until cancelled."""
