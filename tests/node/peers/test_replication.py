"""Copies of the corpus: a node looks again only where something changed, and then it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gossamer.node.peers.blocks.replication import LOOK_SECONDS, keep_copies
from gossamer.node.storage.block_files import MissingBlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from tests.support.builders import peers

SHARDS = [number.to_bytes(2) * 50 for number in range(6)]
INDEX = ShardIndex(
    shards=tuple(ShardInfo(digest_of(shard), 50, len(shard)) for shard in SHARDS), heldout=()
)


class Others:
    """One other peer, which has every shard."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self.num_fetched = 0
        self.sources = ()

    def living(self) -> dict[PeerId, None]:
        return {PeerId("other"): None}

    async def fetch(self, digests: Sequence[Digest], _sources: object) -> None:
        await trio.lowlevel.checkpoint()
        for shard in SHARDS:
            if digest_of(shard) in digests:
                self._store.put(shard)
                self.num_fetched += 1


def test_a_copy_that_was_lost_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockStore(tmp_path / "blocks", 2**20)
    others: Any = Others(store)
    looks: list[int] = []
    missing = store.missing

    def noted(digests: Any) -> list[Digest]:
        looks.append(1)
        return missing(digests)

    monkeypatch.setattr(store, "missing", noted)

    async def looked() -> None:
        await trio.sleep(3 * LOOK_SECONDS)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            data = RunData(INDEX, 1)
            nursery.start_soon(keep_copies, data, store, others, others, PeerId("me"))
            await looked()
            assert others.num_fetched == store.num_pinned() == len(SHARDS)
            before = len(looks)
            await looked()
            assert len(looks) == before, "nothing changed"
            lost = digest_of(SHARDS[3])
            store.path(lost).unlink()
            with pytest.raises(MissingBlockError):
                store.get(lost)
            await looked()
            assert others.num_fetched == len(SHARDS) + 1
            assert store.has(lost)
            store.quota_bytes = 0  # the owner leaves no room for copies
            await looked()
            assert store.num_pinned() == 0
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("change", [BlockStore.evict, lambda store: store.discard("x")])
def test_blocks_that_come_and_go_are_counted(
    tmp_path: Path, change: Callable[[BlockStore], object]
) -> None:
    store = BlockStore(tmp_path / "blocks", 1000)
    seen = [store.num_changes]
    digest = store.put(bytes(100))
    seen.append(store.num_changes)
    store.pin("x", [digest])
    store.get(digest)
    assert store.num_changes == seen[-1]
    if change is BlockStore.evict:
        store.unpin("x")
        store.quota_bytes = 0
    change(store)
    assert not store.has(digest)
    assert seen[0] < seen[1] < store.num_changes


def test_names_without_standing_are_no_keepers(tmp_path: Path) -> None:
    """One stranger may have many names, and keeps nothing."""
    store = BlockStore(tmp_path / "blocks", 2**20)
    for shard in SHARDS:
        store.put(shard)
    strangers, members = peers(60)[10:], peers(2)
    others: Any = Others(store)

    async def kept(living: Sequence[PeerId]) -> int:
        others.living = lambda: dict.fromkeys(living)
        async with trio.open_nursery() as nursery:
            arguments = RunData(INDEX, 1), store, others, others, PeerId("me")
            nursery.start_soon(keep_copies, *arguments, members.__contains__)
            await trio.sleep(LOOK_SECONDS)
            nursery.cancel_scope.cancel()
        return store.num_pinned()

    async def main() -> None:
        assert await kept([*strangers, *members]) == len(SHARDS), "three members keep them all"
        assert await kept(strangers) < len(SHARDS), "nobody has standing in a run that begins"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
