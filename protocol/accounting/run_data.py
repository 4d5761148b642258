"""The shards of a run as this node knows them, and their partitions.

They begin with those of the manifest. Parts that the founder adds come behind them, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.protocol import limits
from gossamer.protocol.accounting.partitions import (
    Partitions,
    partition_shards,
    round_tokens,
    shards_per_partition,
)
from gossamer.protocol.data_parts import DataPart, PartList
from gossamer.protocol.errors import OversizedError
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import ShardIndex, ShardInfo


class RunData:
    """All shards of one run that this node knows of. It only grows."""

    def __init__(self, index: ShardIndex, shards_each: int) -> None:
        """
        Args:
            index: of the manifest.
            shards_each: shards of one partition of it.
        """
        self.shards: list[ShardInfo] = list(index.shards)
        self.heldout: tuple[ShardInfo, ...] = index.heldout
        self._num_first = len(self.shards)
        self.partitions = Partitions([shard.num_tokens for shard in self.shards], shards_each)
        self.num_tokens = sum(self.partitions.tokens)
        self.num_bytes = sum(shard.num_bytes for shard in self.shards)
        """Compressed bytes of all shards."""
        self.parts = PartList(parts=())
        """The parts that were added so far."""
        self.expected_tokens = self.num_tokens
        """Tokens that there are once the founder has added all, as it estimates."""

    @classmethod
    def of(cls, manifest: Manifest, index: ShardIndex) -> RunData:
        """Returns the data that the manifest names."""
        return cls(index, 1 if manifest.data.own else shards_per_partition(manifest))

    def add(self, part: DataPart, shards: Sequence[ShardInfo], shards_each: int) -> None:
        """Adds the shards of a part.

        Raises:
            OversizedError: the run would have more than `limits.SHARDS_MAX` shards.
        """
        if len(self.shards) + len(self.heldout) + len(shards) > limits.SHARDS_MAX:
            raise OversizedError(f"data of more than {limits.SHARDS_MAX} shards")
        self.partitions.add([shard.num_tokens for shard in shards], shards_each)
        self.shards += shards
        self.num_tokens += part.num_tokens
        self.num_bytes += sum(shard.num_bytes for shard in shards)
        self.parts = PartList(parts=(*self.parts.parts, part))
        self.expected_tokens = max(self.expected_tokens, self.num_tokens)

    def shards_to_keep(self) -> list[ShardInfo]:
        """Returns all shards in the order in which the swarm's copies number them. A shard keeps
        its number when others are added."""
        num_first = self._num_first
        return [*self.shards[:num_first], *self.heldout, *self.shards[num_first:]]

    def shards_each(self, manifest: Manifest, part: DataPart) -> int:
        """Returns the shards of one partition of the part that comes next."""
        return partition_shards(
            round_tokens(manifest), part.num_shards, part.num_tokens, len(self.shards)
        )
