"""The amount of data that is queued at the trainer, and the amount that should be."""

from __future__ import annotations

from gossamer.trainer.ipc.messages import DATA_RANGES_MAX

PIECES_AHEAD_MAX = DATA_RANGES_MAX // 2
"""Upper bound on queued pieces of shards: the trainer takes no more than twice as many."""


class QueueLevel:
    """Tokens and pieces in the trainer's queue."""

    def __init__(self, smallest_shard_tokens: int) -> None:
        self._smallest_shard_tokens = smallest_shard_tokens
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
            pieces_max = 2 + 2 * tokens // self._smallest_shard_tokens
            self.pieces = min(self.pieces, pieces_max)

    def clear(self) -> None:
        """The trainer's queue is empty."""
        self.tokens = self.pieces = 0
