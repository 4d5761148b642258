"""Which shards a node claims, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio
import trio.testing

from gossamer.node.rounds.data_feed import DataFeed
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from gossamer.protocol.wire.statements import Span

SHARD_TOKENS = 100
OTHER = PeerId("other")


class AllShards:
    """Store and fetching of a node that has every shard."""

    def pin(self, name: str, digests: Sequence[bytes]) -> None:
        pass

    def path(self, digest: bytes) -> Path:
        return Path(digest.hex())

    async def fetch_checked(self, *_arguments: object, **_options: object) -> None:
        await trio.lowlevel.checkpoint()


class World:
    """A feed, the ledger and the claims of others around it, and what it queued."""

    def __init__(self, num_shards: int) -> None:
        self.ledger = Ledger()
        self.others: dict[PeerId, tuple[int, ...]] = {}
        self.queued: list[tuple[int, int]] = []
        """Shards in the order in which they were queued, and from which offset."""
        infos = [ShardInfo(digest_of(bytes([n])), SHARD_TOKENS, 1) for n in range(num_shards)]
        shards: Any = AllShards()
        self.feed = DataFeed(
            PeerId("me"),
            ShardIndex(shards=tuple(infos), heldout=()),
            shards,
            shards,
            sources=list,
            others_claims=lambda: self.others,
            ledger=lambda: self.ledger,
            on_claims=lambda: None,
        )

    async def _queue(self, shard: int, _path: str, start: int, stop: int) -> None:
        assert stop == SHARD_TOKENS
        self.queued.append((shard, start))

    async def next_shard(self) -> tuple[int, int]:
        """The shard that is queued next, and from which offset."""
        before = len(self.queued)
        self.feed.want(1)
        await trio.testing.wait_all_tasks_blocked()
        (new,) = self.queued[before:]
        return new

    def train(self, shard: int, start: int, stop: int) -> Span:
        (span,) = self.feed.consumed([(shard, start, stop)])
        return span

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.feed.run, self._queue)
                await story()
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_shard_is_claimed_until_its_end_is_committed() -> None:
    """Between the last step on it and the commit others would take it up where the chain is."""
    world = World(2)

    async def story() -> None:
        shard, start = await world.next_shard()
        assert world.feed.claims == (shard,)
        assert world.train(shard, start, SHARD_TOKENS) == Span(shard, 0, SHARD_TOKENS)
        assert shard in world.feed.claims
        other, _ = await world.next_shard()
        assert other != shard, "it must not be trained on again meanwhile"
        assert set(world.feed.claims) == {shard, other}
        world.ledger = Ledger(((shard, SHARD_TOKENS),))
        assert world.feed.claims == (other,)

    world.run(story)


def test_a_shard_whose_work_was_dropped_is_for_whoever_wants_it() -> None:
    world = World(1)

    async def story() -> None:
        shard, start = await world.next_shard()
        world.train(shard, start, SHARD_TOKENS)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.queued) == 1, "it is not committed"
        world.feed.forget_progress()
        assert world.feed.claims == ()
        await trio.sleep(10)
        assert world.queued[1:] == [(shard, 0)]

    world.run(story)


def test_shards_of_carried_work_are_claimed_where_it_left_off() -> None:
    world = World(4)
    world.ledger = Ledger(((0, 10), (1, 60), (3, 10)))
    world.others = {OTHER: (3,)}

    async def story() -> None:
        world.feed.carry(
            [
                Span(0, 10, 30), Span(0, 30, 50),  # goes on where the chain is
                Span(1, 20, 50),  # consumed by others meanwhile
                Span(2, 0, SHARD_TOKENS),  # trained to its end
                Span(3, 10, 20),  # taken up by somebody else
            ]
        )  # fmt: skip
        assert set(world.feed.claims) == {0, 2}
        assert await world.next_shard() == (0, 50)
        assert world.train(0, 50, 90) == Span(0, 50, 90)

    world.run(story)


def test_carried_work_behind_a_gap_is_not_gone_on_with() -> None:
    """The chain would never count what follows it."""
    world = World(1)

    async def story() -> None:
        world.feed.carry([Span(0, 20, 50)])
        assert world.feed.claims == ()
        assert await world.next_shard() == (0, 0)

    world.run(story)


def test_where_the_chain_stands() -> None:
    world = World(2)
    world.ledger = Ledger(((0, 2 * SHARD_TOKENS + 5), (1, SHARD_TOKENS + 30)))
    progress = world.feed.epoch_progress()
    assert (progress.epoch, progress.shards_consumed, progress.num_shards) == (1, 1, 2)
    assert (progress.tokens_consumed, progress.num_tokens) == (SHARD_TOKENS + 30, 2 * SHARD_TOKENS)
