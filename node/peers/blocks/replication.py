"""Keeping the corpus alive without its founder.

Besides the shards that it trains on, every node keeps those that it is a *keeper* of: for each
shard the first `COPIES` living peers by rank, of those that take part in the rounds. So any peer
may go for good, the founder too, and the data stays with the swarm. Copies are fetched a few at a
time, and only into the part of the cache that they may use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import structlog
import trio
from numpy.typing import NDArray

from gossamer.node.base.disk_health import DiskError
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.accounting.ledger import keeper_rank
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.shard_index import ShardInfo

COPIES = 3
"""Two peers may vanish at the same moment before a shard is lost."""

CACHE_SHARE = 0.8
"""Part of the cache that copies may fill; the rest is for the shards of one's own training."""

LOOK_SECONDS = 5.0
"""Interval of the looks while no copy is wanted."""

ALONE_SECONDS = 0.5
"""The same while this node knows no other: what only the first one has is copied at once."""

BATCH_SHARDS = 8
"""Shards in one fetch: it opens streams once, and a change of keepers waits for it."""

HASHES_PER_SLICE = 512
"""Ranks that are computed at a time: about a millisecond of the event loop."""

_PIN = "copies"

log = structlog.get_logger("data")


async def keep_copies(
    data: RunData,
    store: BlockStore,
    blocks: BlockService,
    swarm: Swarm,
    me: PeerId,
    has_standing: Callable[[PeerId], bool] = lambda _peer: True,
) -> None:
    """Keeps what this node is a keeper of, and fetches what it lacks of that, until cancelled.

    Args:
        has_standing: whether a peer takes part in the newest rounds. Others are no keepers, unless
            there are no such peers yet: many names of one stranger would keep nothing.
    """
    ranks: list[KeeperRanks] = []
    num_ranked = 0
    wanted: list[Digest] = []
    seen: _Seen | None = None
    while True:
        shards = data.shards_to_keep()
        if len(shards) > num_ranked:
            ranks.append(KeeperRanks(me, len(shards) - num_ranked, COPIES, num_ranked))
            num_ranked = len(shards)
        living = frozenset(swarm.living())
        keepers = frozenset(filter(has_standing, living)) or living
        for part in ranks:
            await part.update(keepers)
        now = _Seen(keepers, num_ranked, store.num_changes, store.cached_bytes(), store.quota_bytes)
        if now != seen:
            mine = [shards[number] for part in ranks for number in part.shards()]
            missing = frozenset(store.missing(Digest(info.digest) for info in mine))
            room = CACHE_SHARE * store.quota_bytes
            kept = _fitting((info for info in mine if info.digest not in missing), room)
            room -= store.cached_bytes()
            wanted = _fitting((info for info in mine if info.digest in missing), room)
            # No other peer may have it: neither the cache's limit nor a full disk may evict it.
            store.pin(_PIN, [*kept, *wanted])
            seen = now
        if not wanted or not living:
            await trio.sleep(LOOK_SECONDS if living else ALONE_SECONDS)
            continue
        for batch in batches(wanted, BATCH_SHARDS):
            try:
                await blocks.fetch(batch, swarm.sources)
            except (FetchError, DiskError) as error:
                log.debug("copies could not be fetched", error=str(error))
                await trio.sleep(LOOK_SECONDS)
                break
            if living != frozenset(swarm.living()):
                break


class _Seen(NamedTuple):
    """All that decides which copies are kept and wanted: most looks find that nothing changed."""

    keepers: frozenset[PeerId]
    num_shards: int
    num_changes: int
    """Of the store, see `BlockStore.num_changes`."""
    cached_bytes: int
    quota_bytes: int


def batches(digests: Sequence[Digest], size: int) -> Iterator[Sequence[Digest]]:
    for first in range(0, len(digests), size):
        yield digests[first : first + size]


def _fitting(shards: Iterable[ShardInfo], room: float) -> list[Digest]:
    """The first of some shards, as many as fit into so many bytes."""
    fitting: list[Digest] = []
    for info in shards:
        room -= info.num_bytes
        if room < 0:
            break
        fitting.append(Digest(info.digest))
    return fitting


class KeeperRanks:
    """Counts, for each shard, the living peers that rank before this node.

    A node is a keeper of a shard if fewer than so many of these have a lower rank for it than the
    node itself (rendezvous hashing, Thaler and Ravishankar 1998; `keeper_rank`). A peer that comes
    takes one hash for each shard, one that goes takes none, and all others stay as they are.

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
