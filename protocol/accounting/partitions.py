"""Partitions of the data: runs of consecutive shards that one peer at a time claims and consumes.

Rules
-----
- Partition i of a run holds the shards from i * k to (i + 1) * k, the last one what is left;
  k = `partition_shards`. A claim, a span and a position of the ledger name a partition.
- A round's data has at most `PARTITIONS_PER_ROUND` partitions, so that one peer's claims fit an
  announcement and its spans a `Ready`, however long a round is and however small a shard.
- A corpus has at least `PARTITIONS_MIN` partitions, or one for each shard, however long a round
  is: each of so many peers finds one of its own.
- A part that the founder adds later (`protocol.data_parts`) has partitions of its own behind all
  others. So no partition ever changes, and the ledger, which names them, needs no word on parts.

Small models, whose rounds need a few shards, have partitions of one shard. The term is Kafka's: a
part of the data with one consumer and one committed position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from gossamer.protocol.manifest import Manifest
from gossamer.protocol.sync_modes import SYNC_MODES

PARTITIONS_PER_ROUND = 16
"""Partitions in the data of one round: `limits.CLAIMS_MAX` has room for fifteen rounds. Two rounds
are queued, one waits for its commit, and some more may be carried."""

PARTITIONS_MIN = 128
"""All partitions of a small corpus fit `limits.CLAIMS_MAX` if there are fewer than twice this
number."""

SHARED_ROUNDS_NAMED = 2
"""Rounds of data that a peer names where steps are shared: the newest round's, which is named for
the first time, and those of a round before that did not count."""


def shards_per_partition(manifest: Manifest) -> int:
    """Shards of one partition in this run; 1 or more."""
    data = manifest.data
    return partition_shards(round_tokens(manifest), data.num_shards, data.num_tokens)


def partition_shards(
    tokens_per_round: int, num_shards: int, num_tokens: int, num_before: int = 0
) -> int:
    """Shards of one partition, 1 or more. In whole numbers, so that all peers agree.

    Args:
        tokens_per_round: of `round_tokens`.
        num_shards: of the manifest's data or of a part that was added, all of about one size.
        num_tokens: of these shards.
        num_before: shards of the run before them.
    """
    wanted = -(-tokens_per_round * num_shards // (PARTITIONS_PER_ROUND * num_tokens))
    return max(1, min(wanted, (num_before + num_shards) // PARTITIONS_MIN))


def round_tokens(manifest: Manifest) -> int:
    """Tokens of data that one peer consumes in the longest round: each sequence has one token more
    than the model's context."""
    steps = manifest.outer.round_steps_max
    return steps * manifest.inner.sequences_per_step * (manifest.model.context + 1)


def named_tokens_max(manifest: Manifest) -> int:
    """Returns the most tokens of data that an honest peer goes on naming when a round is over.

    Where work is carried, its data are those of this round, of the carried rounds, and of the round
    in which these go stale. Shared steps carry none.
    """
    shares_steps = SYNC_MODES[manifest.sync].shares_steps
    num_rounds = SHARED_ROUNDS_NAMED if shares_steps else manifest.stale_rounds + 2
    return num_rounds * round_tokens(manifest)


class Partitions:
    """The partitions of one corpus. Others may be added behind them while the run goes on."""

    def __init__(self, shard_tokens: Sequence[int], shards_each: int) -> None:
        """
        Args:
            shard_tokens: tokens of each shard, of one epoch.
            shards_each: of `partition_shards`.
        """
        self._ends: list[int] = []
        self._firsts: list[int] = []
        """The first shard of each partition."""
        self.tokens: list[int] = []
        """Tokens of each partition in one epoch."""
        self.add(shard_tokens, shards_each)

    def add(self, shard_tokens: Sequence[int], shards_each: int) -> None:
        """Adds partitions of further shards. The partitions that there are stay as they are.

        Args:
            shard_tokens: tokens of each further shard, of one epoch.
            shards_each: of `partition_shards`.
        """
        num_before, base = self.num_shards, self._ends[-1] if self._ends else 0
        self._ends += [base + end for end in accumulate(shard_tokens)]
        for at in range(0, len(shard_tokens), shards_each):
            self._firsts.append(num_before + at)
            self.tokens.append(sum(shard_tokens[at : at + shards_each]))

    @property
    def num_shards(self) -> int:
        return len(self._ends)

    def __len__(self) -> int:
        return len(self.tokens)

    def shards(self, partition: int) -> range:
        """The shards of a partition."""
        following = partition + 1
        is_last = following == len(self._firsts)
        stop = self.num_shards if is_last else self._firsts[following]
        return range(self._firsts[partition], stop)

    def shard_tokens(self, shard: int) -> int:
        """Tokens of one shard."""
        return self._ends[shard] - self._begin(shard)

    def partition_of(self, shard: int) -> int:
        return bisect_right(self._firsts, shard) - 1

    def offset_of(self, shard: int) -> int:
        """Tokens of a shard's partition that lie before the shard."""
        return self._begin(shard) - self._begin(self.shards(self.partition_of(shard)).start)

    def shard_at(self, partition: int, offset: int) -> int:
        """The shard that holds token `offset` of a partition."""
        assert 0 <= offset < self.tokens[partition]
        shards = self.shards(partition)
        base = self._begin(shards.start)
        return next(shard for shard in shards if offset < self._ends[shard] - base)

    def shards_within(self, partition: int, num_tokens: int) -> int:
        """Returns the number of whole shards that the first `num_tokens` of a partition cover."""
        shards = self.shards(partition)
        base = self._begin(shards.start)
        return sum(1 for shard in shards if self._ends[shard] - base <= num_tokens)

    def _begin(self, shard: int) -> int:
        return self._ends[shard - 1] if shard else 0
