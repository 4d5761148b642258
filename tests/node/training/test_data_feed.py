"""The shards that a node claims, and the time for which it claims them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gossamer.node.peers.blocks.block_exchange import FetchError
from gossamer.node.training.data_feed import LOOK_SHARE, LOST_MIN, DataFeed
from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger, apply_spans, claim_rank
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from gossamer.protocol.wire.statements import Span

SHARD_TOKENS = 100
OTHER = PeerId("other")


class AllShards:
    """Store and fetching of a node that has every shard."""

    quota_bytes = 2**40

    def __init__(self) -> None:
        self.is_slow = False
        """Whether shards come with `come` alone."""
        self.come = trio.Event()

    def missing(self, digests: Sequence[Digest]) -> list[Digest]:
        return []

    def pin(self, name: str, digests: Sequence[bytes]) -> None:
        pass

    def path(self, digest: bytes) -> Path:
        return Path(digest.hex())

    async def fetch_checked(self, *_arguments: object, **_options: object) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_slow:
            await self.come.wait()


class FewShards(AllShards):
    """Store of a node that has some shards, where no peer has any other one."""

    num_changes = 1

    def __init__(self, *here: Digest) -> None:
        super().__init__()
        self._here = {*here}
        self.num_questions = 0

    def has(self, digest: Digest) -> bool:
        self.num_questions += 1
        return digest in self._here

    def missing(self, digests: Sequence[Digest]) -> list[Digest]:
        return [digest for digest in digests if digest not in self._here]

    async def fetch_checked(self, *arguments: Any, **_options: object) -> None:
        await trio.lowlevel.checkpoint()
        if missing := self.missing(arguments[0]):
            raise FetchError(missing, len(arguments[0]), "nobody has them")


class World:
    """A feed, the ledger and the claims of others around it, and what it queued."""

    me = PeerId("me")

    def __init__(self, num_shards: int, shards_per_partition: int = 1) -> None:
        self.ledger = Ledger()
        self.others: dict[PeerId, tuple[int, ...]] = {}
        self.strangers: dict[PeerId, tuple[int, ...]] = {}
        """Peers of which this one has only heard."""
        self.queued: list[tuple[int, int]] = []
        """Shards in the order in which they were queued, and from which offset."""
        self.num_announced = 0
        infos = [ShardInfo(digest_of(n.to_bytes(2)), SHARD_TOKENS, 1) for n in range(num_shards)]
        self.shards = AllShards()
        index = ShardIndex(shards=tuple(infos), heldout=())
        self.data = RunData(index, shards_per_partition)
        self.begin(self.shards)

    def begin(self, store: Any) -> None:
        """Makes the feed. `store`: also what fetches."""
        me: Any = self
        self.feed = DataFeed(self.data, store, store, me, me)

    def sources(self) -> list[PeerId]:
        return []

    def claims(self) -> dict[PeerId, Collection[int]]:
        return dict(self.others)

    def claims_heard_of(self) -> dict[PeerId, Collection[int]]:
        return {**self.others, **self.strangers}

    def announce_soon(self) -> None:
        self.num_announced += 1

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

    def run(
        self, story: Callable[[], Awaitable[None]], clock: trio.testing.MockClock | None = None
    ) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.feed.run, self._queue)
                await story()
                nursery.cancel_scope.cancel()

        trio.run(main, clock=clock or trio.testing.MockClock(autojump_threshold=0))


def test_a_shard_is_claimed_until_its_end_is_committed() -> None:
    """Without the claim other peers would train on the shard between the last step on it and the
    commit, from the position in the chain."""
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


def test_a_shard_whose_work_was_dropped_is_free() -> None:
    world = World(2)

    async def story() -> None:
        shard, start = await world.next_shard()
        world.train(shard, start, SHARD_TOKENS)
        other, _ = await world.next_shard()
        assert set(world.feed.claims) == {shard, other}, "it is not committed"
        world.feed.forget_progress()
        assert world.feed.claims == (other,)
        await trio.testing.wait_all_tasks_blocked()
        assert world.queued[2:] == [(other, 0)]
        assert world.train(other, 0, SHARD_TOKENS) == Span(other, 0, SHARD_TOKENS)
        assert await world.next_shard() == (shard, 0)
        assert world.train(shard, 0, SHARD_TOKENS) == Span(shard, 0, SHARD_TOKENS)

    world.run(story)


def test_where_nothing_else_is_free_the_next_epoch_begins_before_the_commit() -> None:
    world = World(2)
    others = [PeerId(f"other {number}") for number in range(20)]
    world.others = {min(others, key=lambda peer: claim_rank(1, peer)): (1,)}

    async def story() -> None:
        mine, start = await world.next_shard()
        assert (mine, start) == (0, 0)
        assert world.train(mine, 0, SHARD_TOKENS) == Span(mine, 0, SHARD_TOKENS)
        assert await world.next_shard() == (mine, 0)
        assert world.train(mine, 0, 60) == Span(mine, SHARD_TOKENS, SHARD_TOKENS + 60)
        assert world.feed.claims == (mine,)
        assert world.feed.problem is None
        world.ledger = Ledger(((mine, SHARD_TOKENS),))
        assert world.feed.claims == (mine,), "60 tokens of it are not committed"

    world.run(story)


def test_two_rounds_are_queued_although_the_corpus_is_smaller() -> None:
    """The tokens of two rounds have the positions of one epoch after the other."""
    world = World(6, shards_per_partition=2)

    async def story() -> None:
        world.feed.want(5 * SHARD_TOKENS)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.queued) == 10
        assert sorted(shard for shard, _ in world.queued[:6]) == list(range(6))
        assert len(set(world.feed.claims)) == len(world.feed.claims) == 3
        spans = world.feed.consumed([(shard, 0, SHARD_TOKENS) for shard, _ in world.queued])
        ledger = apply_spans(Ledger(), spans)
        assert sum(position for _, position in ledger.positions) == 10 * SHARD_TOKENS
        assert {position // (2 * SHARD_TOKENS) for _, position in ledger.positions} == {1, 2}

    world.run(story)


def test_a_partition_is_consumed_from_where_the_chain_stands() -> None:
    world = World(6, shards_per_partition=3)
    world.ledger = Ledger(((0, 3 * SHARD_TOKENS), (1, SHARD_TOKENS + 30)))

    async def story() -> None:
        assert await world.next_shard() == (4, 30)
        assert world.train(4, 30, SHARD_TOKENS) == Span(1, SHARD_TOKENS + 30, 2 * SHARD_TOKENS)
        assert await world.next_shard() == (5, 0)
        assert world.train(5, 0, SHARD_TOKENS) == Span(1, 2 * SHARD_TOKENS, 3 * SHARD_TOKENS)
        assert world.feed.claims == (1,), "it is not committed"
        world.ledger = Ledger(((0, 3 * SHARD_TOKENS), (1, 3 * SHARD_TOKENS)))
        assert not world.feed.claims
        progress = world.feed.epoch_progress()
        assert (progress.epoch, progress.shards_consumed, progress.num_shards) == (1, 0, 6)

    world.run(story)


def test_claims_change_together() -> None:
    """Each new claim is announced to the whole swarm."""
    world = World(200)

    async def story() -> None:
        world.feed.want(50 * SHARD_TOKENS)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.queued) == 100
        assert world.num_announced == 1
        world.feed.consumed([(shard, 0, SHARD_TOKENS) for shard, _ in world.queued[:50]])
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.queued) == 150
        assert world.num_announced == 2, "shards at their end are claimed until the commit"

    world.run(story)


def test_that_others_hold_all_data_is_said_where_they_do() -> None:
    world = World(1)
    others = [PeerId(f"other {number}") for number in range(20)]
    first = min(others, key=lambda peer: claim_rank(0, peer))
    assert claim_rank(0, first) < claim_rank(0, PeerId("me"))
    world.others = {first: (0,)}

    async def story() -> None:
        world.feed.want(1)
        await trio.sleep(1)
        assert world.feed.problem == "all shards are claimed by others"
        assert world.feed.claims == ()

    world.run(story)


def test_that_an_announcement_is_full_is_not_said_to_be_others_doing() -> None:
    world = World(limits.CLAIMS_MAX + 40)

    async def story() -> None:
        world.feed.want((limits.CLAIMS_MAX + 40) * SHARD_TOKENS)
        await trio.sleep(1)
        assert len(world.queued) == len(world.feed.claims) == limits.CLAIMS_MAX
        assert "others" not in str(world.feed.problem)
        assert f"holds {limits.CLAIMS_MAX} partitions" in str(world.feed.problem)

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
                Span(3, 10, 20),  # taken up by another peer
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


def test_data_that_no_round_counts_are_left_to_others_until_the_ledger_has_them() -> None:
    world = World(2)
    world.others = {OTHER: (5,)}

    async def story() -> None:
        first, start = await world.next_shard()
        span = world.train(first, start, 40)
        world.feed.leave([span])
        world.feed.forget_progress()
        second, _ = await world.next_shard()
        assert second != first
        assert world.feed.claims == (second,)
        world.train(second, 0, SHARD_TOKENS)
        assert await world.next_shard() == (first, 0), "nothing else is free"
        world.feed.leave([Span(first, 0, 1)])
        world.feed.forget_progress()
        world.ledger = Ledger(((first, 10), (second, SHARD_TOKENS)))
        assert await world.next_shard() == (first, 10)

    world.run(story)


def test_a_node_without_others_leaves_no_data_to_them() -> None:
    world = World(2)
    world.ledger = Ledger(((0, SHARD_TOKENS + 1), (1, 1)))

    async def story() -> None:
        assert await world.next_shard() == (1, 1)
        world.feed.leave([world.train(1, 1, 40)])
        world.feed.forget_progress()
        assert await world.next_shard() == (1, 1)

    world.run(story)


def test_a_gap_is_where_data_was_trained_on_that_nobody_names() -> None:
    world = World(2)

    async def story() -> None:
        shard, _ = await world.next_shard()
        assert not world.feed.has_gap([])
        world.train(shard, 0, 40)
        world.train(shard, 40, 60)
        assert not world.feed.has_gap([Span(shard, 40, 60), Span(shard, 0, 40)])
        assert world.feed.has_gap([Span(shard, 0, 40)])
        assert world.feed.has_gap([Span(shard, 40, 60)])
        world.ledger = Ledger(((shard, 40),))
        assert not world.feed.has_gap([Span(shard, 30, 60)])
        world.ledger = Ledger(((shard, 60),))
        assert not world.feed.has_gap([])

    world.run(story)


def test_where_the_chain_stands() -> None:
    world = World(2)
    world.ledger = Ledger(((0, 2 * SHARD_TOKENS + 5), (1, SHARD_TOKENS + 30)))
    progress = world.feed.epoch_progress()
    assert (progress.epoch, progress.shards_consumed, progress.num_shards) == (1, 1, 2)
    assert (progress.tokens_consumed, progress.num_tokens) == (SHARD_TOKENS + 30, 2 * SHARD_TOKENS)


@pytest.mark.parametrize("is_held", [False, True])
def test_a_node_trains_on_what_it_has_where_most_of_the_corpus_is_lost(*, is_held: bool) -> None:
    """The founder's node died before others had its data. One partition is here, and consumed. If
    another member holds it, this node leaves it to that one."""
    world = World(400)
    here = 7
    few = FewShards(digest_of(here.to_bytes(2)))
    world.begin(few)
    world.ledger = Ledger(((here, SHARD_TOKENS),))
    if is_held:
        world.others = {rival(here, is_before=False): (here,)}

    async def story() -> None:
        world.feed.want(1)
        await trio.sleep(10)
        if is_held:
            assert here not in world.feed.claims
        else:
            assert world.queued == [(here, 0)]
            assert world.feed.claims == (here,)
            assert world.train(here, 0, 60) == Span(here, SHARD_TOKENS, SHARD_TOKENS + 60)

    world.run(story)


def test_a_corpus_that_is_lost_is_looked_through_once_as_long_as_nothing_comes() -> None:
    """With 32,000 shards a look through all of them takes 40 ms, and there are five a second."""
    num_shards = 400
    world = World(num_shards)
    few = FewShards()
    world.begin(few)
    asked: list[int] = []

    async def story() -> None:
        world.feed.want(1)
        await trio.sleep(10)
        asked.append(few.num_questions)
        few.num_changes += 1
        await trio.sleep(10)
        asked.append(few.num_questions)

    world.run(story)
    assert asked == [num_shards, 2 * num_shards]


def test_looks_for_data_take_a_small_part_of_the_time() -> None:
    """The more partitions there are the longer one takes."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    look_seconds, num_looks = 0.1, 0

    class Slow(FewShards):
        @property
        def num_changes(self) -> int:  # type: ignore[override]
            nonlocal num_looks
            num_looks += 1
            clock.jump(look_seconds)
            return 1

    world = World(400)
    few = Slow()
    world.begin(few)

    async def story() -> None:
        world.feed.want(1)
        await trio.sleep(100)

    world.run(story, clock)
    assert 10 <= num_looks <= 100 * LOOK_SHARE / look_seconds + LOST_MIN


def rival(partition: int, *, is_before: bool) -> PeerId:
    """A peer that keeps a partition against this node, or does not."""
    mine = claim_rank(partition, World.me)
    peers = (PeerId(f"rival {number}") for number in range(100))
    return next(peer for peer in peers if (claim_rank(partition, peer) < mine) is is_before)


@pytest.mark.parametrize("is_before", [False, True])
def test_of_two_newcomers_that_claim_the_same_at_one_moment_one_gives_it_up_at_once(
    *, is_before: bool
) -> None:
    """Both go for the partition that somebody left half done. Until the next round began both
    trained on it, and it counts once."""
    world = World(4)
    world.ledger = Ledger(((2, SHARD_TOKENS // 2),))
    begun, shards = 2, world.shards

    async def story() -> None:
        shards.is_slow = True
        world.feed.want(1)
        await trio.testing.wait_all_tasks_blocked()
        assert world.feed.claims == (begun,)
        world.others = {rival(begun, is_before=is_before): (begun,)}
        shards.come.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (begun in world.feed.claims) is not is_before
        assert world.feed.claims, "there are others"
        assert [shard == begun for shard, _ in world.queued] == [not is_before]

    world.run(story)


def test_a_newcomer_leaves_to_one_that_it_has_only_heard_of_what_that_would_keep() -> None:
    """Both would begin with the partition that somebody left half done, and neither is connected to
    the other when it chooses: both trained on it, and it counted once."""
    begun = 2
    for is_before in (False, True):
        world = World(4)
        world.ledger = Ledger(((begun, SHARD_TOKENS // 2),))
        world.strangers = {rival(begun, is_before=is_before): ()}

        async def story(world: World = world, *, is_before: bool = is_before) -> None:
            shard, _ = await world.next_shard()
            assert (shard == begun) is not is_before

        world.run(story)


def test_data_that_are_queued_already_are_not_given_up_between_rounds() -> None:
    """The trainer has their tokens: `give_up_lost_claims` is for these."""
    world = World(4)

    async def story() -> None:
        shard, _ = await world.next_shard()
        world.others = {rival(shard, is_before=True): (shard,)}
        world.train(shard, 0, 10)
        world.feed.want(2 * SHARD_TOKENS)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.queued) > 1
        assert shard in world.feed.claims
        assert world.feed.give_up_lost_claims()
        assert shard not in world.feed.claims

    world.run(story)
