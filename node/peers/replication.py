"""Keeping the corpus alive without its founder.

Besides the shards that it trains on, every node keeps those that it is a *keeper* of: for each
shard the first `COPIES` living peers by rank, of those that take part in the rounds. So any peer
may go for good, the founder too, and the data stays with the swarm. Copies are fetched a few at a
time, and only into the part of the cache that they may use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.peers.block_exchange import BlockService, FetchError
from gossamer.node.peers.keeper_ranks import KeeperRanks
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.blocks import BlockStore
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
            wanted = _wanted(mine, missing, store)
            # No other peer may have it: neither the cache's limit nor a full disk may evict it.
            store.pin(_PIN, [*_kept(mine, missing, store), *wanted])
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


def _kept(
    mine: Sequence[ShardInfo], missing: Collection[Digest], store: BlockStore
) -> list[Digest]:
    """Those of my shards that are here, as far as copies may fill the cache."""
    room = CACHE_SHARE * store.quota_bytes
    kept: list[Digest] = []
    for info in mine:
        if info.digest in missing:
            continue
        room -= info.num_bytes
        if room < 0:
            break
        kept.append(Digest(info.digest))
    return kept


def _wanted(
    mine: Sequence[ShardInfo], missing: Collection[Digest], store: BlockStore
) -> list[Digest]:
    """Those of my shards that are to be fetched, as far as they fit."""
    room = CACHE_SHARE * store.quota_bytes - store.cached_bytes()
    wanted: list[Digest] = []
    for info in mine:
        if info.digest not in missing:
            continue
        room -= info.num_bytes
        if room < 0:
            break
        wanted.append(Digest(info.digest))
    return wanted
