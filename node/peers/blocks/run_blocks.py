"""The blocks that a run's manifest names: data index, tokenizer, held-out shards, and in a run of
adapters the weights that stay as they are.

A node cannot take part without the data index, so these blocks are asked for until they are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.network.transport import Transport
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.peers.members.run_exchange import JoinError
from gossamer.node.storage.block_files import BlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import ShardIndex, decode_index
from gossamer.protocol.state.frozen_weights import decode_list

HELDOUT_SHARDS_MAX = 4
"""Held-out shards that every node fetches to evaluate on: some 256 thousand tokens."""

RETRY_SECONDS = 2.0
"""Pause between attempts to get blocks that no connected peer had."""

READS_MAX = 3
"""Times that a block is fetched and read. A disk that damages it each time is failing."""

log = structlog.get_logger("node")


class RunBlocks:
    """Fetches the run's own blocks, and keeps them in the store."""

    def __init__(
        self, manifest: Manifest, store: BlockStore, blocks: BlockService, transport: Transport
    ) -> None:
        self._data, self._model = manifest.data, manifest.model
        self._founder = manifest.founder
        self._store = store
        self._blocks = blocks
        self._transport = transport
        self._heldout: list[Digest] = []

    def pin(self) -> None:
        """Pins the blocks that the manifest names, whether they are here or still to come; those of
        the frozen weights if their list is here."""
        self._store.reserved_bytes = self._model.frozen_bytes
        self._store.pin("manifest", self._manifest_blocks())
        with suppress(BlockError, MalformedError):  # else `fetch_frozen` pins them
            self._store.pin("frozen", self._frozen_blocks())

    async def fetch_index(self) -> ShardIndex:
        """Waits until the data index and the tokenizer are here, and returns the index.

        Raises:
            JoinError: the index does not fit the manifest.
            BlockError: this disk damages it each time that it comes.

        Cancelled: blocks that have come so far stay in the store.
        """
        index = decode_index(await self._fetched_index())
        if len(index.shards) != self._data.num_shards:
            raise JoinError("the run's data index does not fit its manifest: it cannot be trained")
        self._heldout = [Digest(shard.digest) for shard in index.heldout[:HELDOUT_SHARDS_MAX]]
        return index

    async def fetch_frozen(self) -> None:
        """Waits until the weights that adapters leave as they are lie here and are whole, after
        `fetch_index`. Nothing in any other run.

        Raises:
            JoinError: their list does not fit the manifest.

        Cancelled: blocks that have come so far stay in the store.
        """
        try:
            digests = self._frozen_blocks()
        except (BlockError, MalformedError) as error:
            raise JoinError(f"the run's frozen weights do not fit its manifest: {error}") from error
        self._store.pin("frozen", digests)
        if self._store.missing(digests):
            log.info("fetching the frozen weights", size=format_bytes(self._model.frozen_bytes))
        await self._fetch(digests, "the frozen weights")

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
        """Digests of the data index and, where the run has them, of the tokenizer and of the list
        of frozen weights."""
        data = self._data
        digests = (data.index_digest, data.tokenizer_digest, data.frozen_digest or b"")
        return [Digest(digest) for digest in digests if digest]

    def _frozen_blocks(self) -> tuple[Digest, ...]:
        """Raises BlockError or MalformedError if their list is not here, or is none."""
        digest = self._data.frozen_digest
        return decode_list(self._store.get(Digest(digest)), self._model) if digest else ()

    async def _fetched_index(self) -> bytes:
        """Returns the block of the data index when all blocks that the manifest names are here.
        Raises BlockError after `READS_MAX` damaged ones."""
        digest, reads = Digest(self._data.index_digest), 0
        while True:
            await self._fetch(self._manifest_blocks(), "the run's data index")
            reads += 1
            try:
                return self._store.get(digest)
            except BlockError as error:
                if reads == READS_MAX:
                    raise
                log.warning("the run's data index is fetched again", error=str(error))

    async def _fetch(self, digests: Sequence[Digest], what: str) -> None:
        """Gets blocks from connected peers, however long it takes."""
        say, advice = log.warning, ""
        if self._transport.peer_id == self._founder:
            advice = (
                ": this node founded the run, and its disk has lost a part of the data. If no "
                "other node has it, found the run anew in another --state-dir"
            )
        while True:
            try:
                await self._blocks.fetch_checked(digests, self._transport.peers)
                return
            except (FetchError, DiskError) as error:
                say(f"{what} cannot be had yet{advice}", error=str(error))
                say = log.debug
                await trio.sleep(RETRY_SECONDS)
