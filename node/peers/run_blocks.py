"""The blocks that a run's manifest names: data index, tokenizer and held-out shards.

A node cannot take part without the data index, so these blocks are asked for until they are here.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.network.transport import Transport
from gossamer.node.peers.block_exchange import BlockService, FetchError
from gossamer.node.peers.run_exchange import JoinError
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import DataConfig
from gossamer.protocol.shard_index import ShardIndex, decode_index

HELDOUT_SHARDS_MAX = 4
"""Held-out shards that every node fetches to evaluate on: some 256 thousand tokens."""

RETRY_SECONDS = 2.0
"""Pause between attempts to get blocks that no connected peer had."""

log = structlog.get_logger("node")


class RunBlocks:
    """Fetches the run's own blocks, and keeps them in the store."""

    def __init__(
        self, data: DataConfig, store: BlockStore, blocks: BlockService, transport: Transport
    ) -> None:
        self._data = data
        self._store = store
        self._blocks = blocks
        self._transport = transport
        self._heldout: list[Digest] = []

    def pin(self) -> None:
        """Pins the data index and the tokenizer, whether they are here or still to come."""
        self._store.pin("manifest", self._manifest_blocks())

    async def fetch_index(self) -> ShardIndex:
        """Waits until the data index and the tokenizer are here, and returns the index.

        Raises:
            JoinError: the index does not fit the manifest.

        Cancelled: blocks that have come so far stay in the store.
        """
        await self._fetch(self._manifest_blocks(), "the run's data index")
        index = decode_index(self._store.get(Digest(self._data.index_digest)))
        if len(index.shards) != self._data.num_shards:
            raise JoinError("the run's data index does not fit its manifest: it cannot be trained")
        self._heldout = [Digest(shard.digest) for shard in index.heldout[:HELDOUT_SHARDS_MAX]]
        return index

    def tokenizer_file(self) -> bytes:
        """Returns the block of the tokenizer, after `fetch_index`; nothing for plain bytes.

        Raises:
            BlockError: the disk lost it.
        """
        digest = self._data.tokenizer_digest
        return self._store.get(Digest(digest)) if digest else b""

    async def fetch_heldout(self) -> None:
        """Waits until the held-out shards are here, after `fetch_index`."""
        self._store.pin("heldout", self._heldout)
        await self._fetch(self._heldout, "held-out text")

    def heldout_paths(self) -> list[str]:
        """Returns the files of the held-out shards, or none while a shard is missing."""
        if self._store.missing(self._heldout):
            return []
        return [str(self._store.path(digest)) for digest in self._heldout]

    def _manifest_blocks(self) -> list[Digest]:
        """Digests of the data index and, if the run has one, the tokenizer."""
        digests = (self._data.index_digest, self._data.tokenizer_digest)
        return [Digest(digest) for digest in digests if digest]

    async def _fetch(self, digests: Sequence[Digest], what: str) -> None:
        """Gets blocks from connected peers, however long it takes."""
        say = log.warning
        while True:
            try:
                await self._blocks.fetch_checked(digests, self._transport.peers)
                return
            except (FetchError, DiskError) as error:
                say(f"{what} cannot be had yet", error=str(error))
                say = log.debug
                await trio.sleep(RETRY_SECONDS)
