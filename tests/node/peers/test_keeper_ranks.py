"""The shards of which a node is a keeper: as `keepers` says, at the price of the peers that
changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
import trio
import trio.abc
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.node.peers.blocks import replication
from gossamer.node.peers.blocks.replication import HASHES_PER_SLICE, KeeperRanks
from gossamer.protocol.accounting import ledger
from gossamer.protocol.accounting.ledger import keeper_rank
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.shard_index import ShardIndex, ShardInfo

ME = PeerId("me")
PEERS = [PeerId(f"peer {number}") for number in range(12)]
COPIES = 3


def keepers(shard: int, peers: Collection[PeerId], num_copies: int) -> list[PeerId]:
    """The peers that keep a copy of a shard for everybody, with all ranks computed anew."""
    return sorted(peers, key=lambda peer: keeper_rank(shard, peer))[:num_copies]


class Hashes:
    """Counts the ranks that are computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(replication, "keeper_rank", self._rank)

    def _rank(self, shard: int, peer: PeerId) -> bytes:
        self.count += 1
        return keeper_rank(shard, peer)

    async def taken_by(self, update: Callable[[], object]) -> int:
        before = self.count
        await update()  # type: ignore[misc]
        return self.count - before


@settings(max_examples=40)
@given(st.lists(st.sets(st.sampled_from(PEERS)), max_size=6), st.integers(1, 60))
def test_a_node_keeps_what_the_rule_says(worlds: list[set[PeerId]], num_shards: int) -> None:
    async def main() -> None:
        ranks = KeeperRanks(ME, num_shards, COPIES)
        for living in worlds:
            await ranks.update(living)
            peers = [ME, *sorted(living)]
            expected = [n for n in range(num_shards) if ME in keepers(n, peers, COPIES)]
            assert ranks.shards() == expected

    trio.run(main)


def test_added_shards_have_keepers_by_their_own_numbers() -> None:
    first, added = KeeperRanks(ME, 40, COPIES), KeeperRanks(ME, 25, COPIES, 40)
    whole = KeeperRanks(ME, 65, COPIES)

    async def main() -> None:
        for ranks in (first, added, whole):
            await ranks.update(PEERS)
        assert [*first.shards(), *added.shards()] == whole.shards()
        assert added.shards()

    trio.run(main)


def test_only_what_changed_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes, num_shards = Hashes(monkeypatch), 1000
    ranks = KeeperRanks(ME, num_shards, COPIES)

    async def main() -> None:
        first = await hashes.taken_by(lambda: ranks.update(PEERS[:8]))
        assert first == num_shards * 9, "each of the eight, and this node"
        assert await hashes.taken_by(lambda: ranks.update(PEERS[:8])) == 0
        assert await hashes.taken_by(lambda: ranks.update(PEERS[:9])) == num_shards
        assert await hashes.taken_by(lambda: ranks.update(PEERS[1:9])) == 0
        assert await hashes.taken_by(lambda: ranks.update([])) == 0
        assert ranks.shards() == list(range(num_shards))

    trio.run(main)


def test_a_look_hashes_nothing_with_32_768_shards_and_64_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All peers of all shards are hashed once; a look at the same peers costs no hash."""
    hashed, num_shards = 0, 32_768

    def rank(shard: int, peer: PeerId) -> bytes:
        nonlocal hashed
        hashed += 1
        return (shard * 40_503 + hash(peer) % 65_536 & 0xFFFFFFFF).to_bytes(4)

    monkeypatch.setattr(replication, "keeper_rank", rank)
    living = [PeerId(f"peer {number}") for number in range(64)]
    ranks = KeeperRanks(ME, num_shards, COPIES)

    async def main() -> None:
        nonlocal hashed
        await ranks.update(living)
        assert hashed == 65 * num_shards
        hashed = 0
        for _ in range(10):
            await ranks.update(living)
            ranks.shards()
        assert hashed == 0
        await ranks.update(living[1:])
        assert hashed == 0
        await ranks.update([*living[1:], PeerId("newcomer")])
        assert hashed == num_shards

    trio.run(main)


def test_a_cancelled_update_is_gone_on_with() -> None:
    num_shards = 4 * HASHES_PER_SLICE
    ranks = KeeperRanks(ME, num_shards, COPIES)

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ranks.update, PEERS)
                for _ in range(30):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        await ranks.update(PEERS)
        peers = [ME, *PEERS]
        expected = [n for n in range(num_shards) if ME in keepers(n, peers, COPIES)]
        assert ranks.shards() == expected

    trio.run(main)


class HashesPerTurn(trio.abc.Instrument):
    """Counts the digests that ranks take, and the most between two turns of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most_in_a_turn = self._before = 0
        monkeypatch.setattr(ledger, "digest_of", self._digest_of)

    def _digest_of(self, *parts: bytes) -> Digest:
        self.count += 1
        return digest_of(*parts)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._before = self.count

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most_in_a_turn = max(self.most_in_a_turn, self.count - self._before)


class Others:
    """The swarm and the disk of a node that has every shard."""

    quota_bytes = 2**40
    num_changes = 0

    def __init__(self) -> None:
        self.peers = PEERS[:8]
        self.pinned: list[bytes] = []

    def living(self) -> dict[PeerId, None]:
        return dict.fromkeys(self.peers)

    def has(self, _digest: bytes) -> bool:
        return True

    def missing(self, _digests: Iterable[bytes]) -> list[bytes]:
        return []

    def cached_bytes(self) -> int:
        return 0

    def pin(self, _name: str, digests: Iterable[bytes]) -> None:
        self.pinned = list(digests)


def test_keeping_copies_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes, others = HashesPerTurn(monkeypatch), Others()
    infos = tuple(ShardInfo(digest_of(n.to_bytes(2)), 100, 100) for n in range(1500))
    data = RunData(ShardIndex(shards=infos, heldout=()), 1)
    parts: Any = others

    def expected() -> list[bytes]:
        peers = [ME, *others.peers]
        return [info.digest for n, info in enumerate(infos) if ME in keepers(n, peers, COPIES)]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replication.keep_copies, data, parts, parts, parts, ME)
            await trio.sleep(1)
            assert hashes.most_in_a_turn <= HASHES_PER_SLICE
            before = hashes.count
            await trio.sleep(60)
            assert hashes.count == before, "no peer came or went"
            others.peers = PEERS[1:9]
            await trio.sleep(60)
            assert hashes.count == before + len(infos)
            assert others.pinned == expected()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[hashes])
