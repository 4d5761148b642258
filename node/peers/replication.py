"""Keeping the corpus alive without its founder.

Besides the shards that it trains on, every node keeps those that it is a *keeper* of: for each
shard the first `COPIES` living peers by rank. So any peer may go for good, the founder too, and the
data stays with the swarm. Copies are fetched a few at a time, and only into the part of the cache
that they may use.
"""

from __future__ import annotations

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.peers.block_exchange import BlockService, FetchError
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.accounting.ledger import keepers
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.shard_index import ShardIndex

COPIES = 3
"""Two peers may vanish at the same moment before a shard is lost."""

CACHE_SHARE = 0.8
"""Part of the cache that copies may fill; the rest is for the shards of one's own training."""

LOOK_SECONDS = 5.0

BATCH_SHARDS = 8
"""Shards in one fetch: it opens streams once, and a change of keepers waits for it."""

_PIN = "copies"

log = structlog.get_logger("data")


async def keep_copies(
    index: ShardIndex, store: BlockStore, blocks: BlockService, swarm: Swarm, me: PeerId
) -> None:
    """Keeps what this node is a keeper of, and fetches what it lacks of that, until cancelled."""
    while True:
        # Nobody else may have it: neither the cache's limit nor a full disk may evict it.
        store.pin(_PIN, _kept(index, store, swarm, me))
        wanted = _wanted(index, store, swarm, me)
        if not wanted or not swarm.living():
            await trio.sleep(LOOK_SECONDS)
            continue
        try:
            await blocks.fetch(wanted, swarm.sources)
        except (FetchError, DiskError) as error:
            log.debug("copies could not be fetched", error=str(error))
            await trio.sleep(LOOK_SECONDS)


def _kept(index: ShardIndex, store: BlockStore, swarm: Swarm, me: PeerId) -> list[Digest]:
    """The shards here that this node is a keeper of, as far as copies may fill the cache."""
    room = CACHE_SHARE * store.quota_bytes
    peers = [me, *swarm.living()]
    kept: list[Digest] = []
    for shard, info in enumerate((*index.shards, *index.heldout)):
        digest = Digest(info.digest)
        if store.has(digest) and me in keepers(shard, peers, COPIES):
            room -= info.num_bytes
            if room < 0:
                break
            kept.append(digest)
    return kept


def _wanted(index: ShardIndex, store: BlockStore, swarm: Swarm, me: PeerId) -> list[Digest]:
    room = CACHE_SHARE * store.quota_bytes - store.used_bytes()
    peers = [me, *swarm.living()]
    wanted: list[Digest] = []
    for shard, info in enumerate((*index.shards, *index.heldout)):
        digest = Digest(info.digest)
        if store.has(digest) or me not in keepers(shard, peers, COPIES):
            continue
        room -= info.num_bytes
        if room < 0 or len(wanted) == BATCH_SHARDS:
            break
        wanted.append(digest)
    return wanted
