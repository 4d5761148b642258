"""The blocks that a run's manifest names, on a disk that damages what has just come."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from gossamer.node.network.transport import Transport
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.peers.blocks.run_blocks import READS_MAX, RETRY_SECONDS, RunBlocks
from gossamer.node.storage.block_files import BlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.limits import MIB
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from tests.support.builders import manifest, peer
from tests.support.damage import damage

OTHER = peer(7)
"""No founder."""
INDEX = ShardIndex(shards=(ShardInfo(digest_of(b"shard"), 16, 64),), heldout=())


class DamagingDisk:
    """Blocks of peers that come to a disk, of which the first so many are damaged at once."""

    def __init__(self, store: BlockStore, num_damaged: int) -> None:
        self.store = store
        self.num_damaged = num_damaged
        self.num_fetched = 0

    async def fetch_checked(self, digests: list[Digest], _sources: object) -> None:
        if not self.store.missing(digests):
            return
        block = self.store.put(to_msgpack(INDEX))
        self.num_fetched += 1
        if self.num_fetched <= self.num_damaged:
            damage(self.store.path(block))


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path, 64 * MIB)


def blocks_of(store: BlockStore, disk: DamagingDisk, me: PeerId = OTHER) -> RunBlocks:
    example = manifest()
    data = msgspec.structs.replace(
        example.data, index_digest=digest_of(to_msgpack(INDEX)), num_shards=1
    )
    transport = cast(Transport, SimpleNamespace(peers=list, peer_id=me))
    run = msgspec.structs.replace(example, data=data)
    return RunBlocks(run, store, cast(BlockService, disk), transport)


def test_an_index_that_the_disk_damages_is_fetched_again(store: BlockStore) -> None:
    disk = DamagingDisk(store, READS_MAX - 1)
    assert trio.run(blocks_of(store, disk).fetch_index) == INDEX
    assert disk.num_fetched == READS_MAX


def test_a_disk_that_damages_the_index_each_time_is_named(store: BlockStore) -> None:
    disk = DamagingDisk(store, READS_MAX)
    with pytest.raises(BlockError, match="damaged"):
        trio.run(blocks_of(store, disk).fetch_index)
    assert disk.num_fetched == READS_MAX


class Nobody(DamagingDisk):
    """No peer has the blocks, until somebody comes with them after a while."""

    until_seconds = math.inf

    async def fetch_checked(self, digests: list[Digest], sources: object) -> None:
        if trio.current_time() < self.until_seconds:
            raise FetchError(digests[:1], 1, "nobody has it")
        await super().fetch_checked(digests, sources)


@pytest.mark.parametrize("is_founder", [True, False])
def test_a_founder_that_lost_its_blocks_hears_what_to_do(
    store: BlockStore, capsys: pytest.CaptureFixture[str], is_founder: bool
) -> None:
    me = PeerId(manifest().founder) if is_founder else OTHER
    nobody = Nobody(store, 0)

    async def main() -> None:
        nobody.until_seconds = trio.current_time() + 10 * RETRY_SECONDS
        assert await blocks_of(store, nobody, me).fetch_index() == INDEX

    trio.run(main, clock=MockClock(autojump_threshold=0.0))
    assert ("another --state-dir" in capsys.readouterr().out) is is_founder
