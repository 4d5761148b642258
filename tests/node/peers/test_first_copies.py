"""A founder lets go of a shard when two other keepers have it, and asks only where it has to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
import trio.testing

from gossamer.node.peers.blocks.first_copies import SHARDS_PER_LOOK, FirstCopies
from gossamer.node.peers.blocks.replication import COPIES, LOOK_SECONDS
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.accounting.ledger import keeper_rank
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.data_parts import DataPart
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from tests.support.builders import peers

SHARDS = [number.to_bytes(2) * 50 for number in range(2 * SHARDS_PER_LOOK)]
INFOS = [ShardInfo(digest_of(shard), 50, len(shard)) for shard in SHARDS]
NUM_BYTES = sum(map(len, SHARDS))
OTHERS = peers(7)


class Founder:
    """A node that has all shards of the first part."""

    def __init__(self, folder: Path) -> None:
        self.store = BlockStore(folder, 2 * NUM_BYTES)
        for shard in SHARDS:
            self.store.put(shard)
        self.data = RunData(ShardIndex(shards=tuple(INFOS), heldout=()), 1)
        self.have: set[PeerId] = set()
        """Others that have all shards."""
        self.asked: list[tuple[PeerId, Digest]] = []
        self.copies = FirstCopies(self.data, self.store, self._is_at, lambda: OTHERS)
        self.copies.note_added()

    async def _is_at(self, peer: PeerId, digest: Digest) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked.append((peer, digest))
        return peer in self.have

    @property
    def num_held(self) -> int:
        return self.store.num_pinned()


def live(founder: Founder, story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(founder.copies.run)
            await story()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def looks(count: int) -> None:
    await trio.sleep((count + 0.5) * LOOK_SECONDS)


def test_nobody_is_asked_while_there_is_room(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    founder.have = set(OTHERS)

    async def story() -> None:
        await looks(3)
        assert not founder.asked
        founder.copies.needed_bytes = NUM_BYTES
        await looks(3)
        assert founder.copies.has_room
        assert 0 < founder.num_held < len(SHARDS), "only what had to go is let go"

    live(founder, story)


def test_a_shard_is_held_until_two_of_its_keepers_have_it(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    founder.store.quota_bytes = 0

    async def story() -> None:
        await looks(2)
        for number, info in enumerate(INFOS):
            keepers = [
                peer
                for _, peer in sorted((keeper_rank(number, peer), peer) for peer in OTHERS)[:COPIES]
            ]
            assert [peer for peer, about in founder.asked if about == info.digest] == keepers
        founder.have = {OTHERS[0]}
        await looks(4)
        assert founder.num_held == len(SHARDS)
        founder.have = set(OTHERS)
        await looks(2)
        assert founder.num_held == 0

    live(founder, story)


def test_what_is_added_is_held_and_what_is_not_here_is_not(tmp_path: Path) -> None:
    founder = Founder(tmp_path)
    new, elsewhere = b"new" * 50, b"elsewhere" * 50
    founder.store.pin("new", [founder.store.put(new)])
    infos = [ShardInfo(digest_of(each), 50, len(each)) for each in (new, elsewhere)]
    founder.data.add(DataPart(digest_of(b"index"), 2, 100), infos, 1)
    founder.copies.note_added()
    founder.store.unpin("new")
    assert founder.num_held == len(SHARDS) + 1
    founder.store.quota_bytes = 0
    founder.store.evict()
    assert founder.store.has(digest_of(new))
    founder.store.put(elsewhere)
    assert founder.num_held == len(SHARDS) + 1, "a copy of another's is no first copy"
