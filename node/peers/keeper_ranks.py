"""The shards of which this node is a keeper, kept up to date as peers come and go.

A node is a keeper of a shard if fewer than so many living peers have a lower rank for it than the
node itself (rendezvous hashing, Thaler and Ravishankar 1998; `keeper_rank`). So it is enough to
count these peers for each shard. A peer that comes takes one hash for each shard, one that goes
takes none, and all others stay as they are. Hashes are computed in slices, between which the event
loop runs other tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import trio
from numpy.typing import NDArray

from gossamer.protocol.accounting.ledger import keeper_rank
from gossamer.protocol.ids import PeerId

HASHES_PER_SLICE = 512
"""Ranks that are computed at a time: about a millisecond of the event loop."""


class KeeperRanks:
    """Counts, for each shard, the living peers that rank before this node.

    Memory: 4 KiB a peer and 40 bytes a shard, with `limits.SHARDS_MAX` shards 4 MB and 4 KiB for
    each of at most `limits.MEMBERS_MAX` peers.
    """

    def __init__(self, me: PeerId, num_shards: int, num_copies: int, first_shard: int = 0) -> None:
        """
        Args:
            num_copies: keepers of each shard.
            first_shard: number of the first of these shards.
        """
        self._me = me
        self._first_shard = first_shard
        self._num_shards = num_shards
        self._num_copies = num_copies
        self._mine: list[bytes] = []
        self._before_me: dict[PeerId, NDArray[np.uint8]] = {}
        """A bit for each shard, set where the peer ranks before this node; by peer."""
        self._num_before_me = np.zeros(num_shards, np.int16)
        self._shards: list[int] | None = None
        """What `shards` returned, until a count changes."""

    async def update(self, living: Collection[PeerId]) -> None:
        """Counts these other peers, and no more those that are not among them.

        Cancelled: the counts are those of some of the peers; the next call goes on from there.
        """
        await trio.lowlevel.checkpoint()
        for peer in sorted(self._before_me.keys() - set(living)):
            self._shards = None
            self._num_before_me -= self._flags(self._before_me.pop(peer))
        if len(self._mine) < self._num_shards:
            self._mine = await self._ranks(self._me)
        for peer in sorted(set(living) - self._before_me.keys() - {self._me}):
            ranks = await self._ranks(peer)
            before = [rank < mine for rank, mine in zip(ranks, self._mine, strict=True)]
            self._before_me[peer] = np.packbits(np.array(before, np.bool_))
            self._shards = None
            self._num_before_me += self._flags(self._before_me[peer])

    def shards(self) -> Sequence[int]:
        """The shards that this node is a keeper of, in order."""
        if self._shards is None:
            places = np.flatnonzero(self._num_before_me < self._num_copies)
            self._shards = [self._first_shard + int(place) for place in places]
        return self._shards

    def _flags(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.unpackbits(bits, count=self._num_shards)

    async def _ranks(self, peer: PeerId) -> list[bytes]:
        """Computes the ranks of one peer for all shards."""
        ranks: list[bytes] = []
        for first in range(0, self._num_shards, HASHES_PER_SLICE):
            slice_end = min(first + HASHES_PER_SLICE, self._num_shards)
            numbers = range(self._first_shard + first, self._first_shard + slice_end)
            ranks += [keeper_rank(number, peer) for number in numbers]
            await trio.lowlevel.checkpoint()
        return ranks
