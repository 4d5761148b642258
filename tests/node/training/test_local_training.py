"""The training of a round, and the trainer's queue around it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.accounting.ledger import claim_rank
from gossamer.protocol.accounting.partitions import SHARED_ROUNDS_NAMED
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import Begin, Finished
from tests.node.training.test_data_feed import SHARD_TOKENS, World

SHARDS_PER_PARTITION = 16
TURNS = 60
"""The feed queues some twenty shards, and each takes a turn of the event loop, or two."""


class QueueingTrainer:
    """What the messages to a trainer make of its queue. Each is written before its sender waits."""

    def __init__(self) -> None:
        self.queued: list[tuple[int, int]] = []

    async def queue(self, shard: int, _path: str, start: int, _stop: int) -> None:
        self.queued.append((shard, start))
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def forget(self) -> None:
        self.queued.clear()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def train(self, begin: Begin) -> Finished:
        return Finished(round=begin.round, steps=0, tokens=0, spans=(), loss=math.nan)


class NamingWork:
    """The data that the account names."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.account = SimpleNamespace(state=self)

    def forget_data(self) -> None:
        self.spans.clear()


def trainings_of(
    world: World, trainer: QueueingTrainer, work: NamingWork | None = None
) -> LocalTrainings:
    manifest = SimpleNamespace(
        sync="distro",
        outer=SimpleNamespace(
            inner_steps_of=lambda _: 20, first_inner_step_of=lambda _: 0, round_steps_max=1
        ),
        inner=SimpleNamespace(sequences_per_step=1),
        model=SimpleNamespace(context=SHARD_TOKENS - 1),
        rounds=SimpleNamespace(round_seconds=60.0),
    )
    return LocalTrainings(
        cast(Any, manifest),
        cast(Any, trainer),
        world.feed,
        cast(Any, work),
        cast(Any, SimpleNamespace()),
        cast(Any, SimpleNamespace(notify=lambda: None)),
        cast(Any, None),
        cast(Any, SimpleNamespace(of_round=lambda _: None)),
    )


async def lose_a_claim(world: World, trainings: LocalTrainings) -> None:
    """Another peer turns out to hold the first partition, with a lower rank."""
    first = world.feed.claims[0]
    peers = (PeerId(f"other {number}") for number in range(1000))
    lower = claim_rank(first, world.me)
    world.others[next(peer for peer in peers if claim_rank(first, peer) < lower)] = (first,)
    await trainings.begin(1, "base").run()


async def return_data(_world: World, trainings: LocalTrainings) -> None:
    await trainings.return_data()


@pytest.mark.parametrize("empty_the_queue", [lose_a_claim, return_data])
def test_nothing_is_queued_twice_when_the_queue_is_emptied(
    empty_the_queue: Callable[[World, LocalTrainings], Awaitable[None]],
) -> None:
    """The feed may be queueing at the same time: its next shard comes behind the message that
    empties the queue, and is not queued once more."""
    for num_turns in range(1, TURNS):
        world, trainer = World(64, SHARDS_PER_PARTITION), QueueingTrainer()
        trainings = trainings_of(world, trainer)

        async def story(
            world: World = world,
            trainings: LocalTrainings = trainings,
            num_turns: int = num_turns,
        ) -> None:
            world.feed.want(10 * SHARD_TOKENS)
            while not world.feed.claims:
                await trio.lowlevel.checkpoint()
            for _ in range(num_turns):
                await trio.lowlevel.checkpoint()
            await empty_the_queue(world, trainings)
            await trio.testing.wait_all_tasks_blocked()

        world._queue = trainer.queue  # type: ignore[method-assign, assignment]
        world.run(story)
        twice = [shard for shard, number in Counter(trainer.queued).items() if number > 1]
        assert not twice, f"after {num_turns} turns"
        assert trainer.queued, "the queue is filled anew"


def test_data_that_are_not_named_are_trained_on_again() -> None:
    """The ledger would count nothing behind them."""
    world, trainer, work = World(1), QueueingTrainer(), NamingWork()
    trainings = trainings_of(world, trainer, work)

    async def story() -> None:
        assert await world.next_shard() == (0, 0)
        work.spans.append(world.train(0, 0, 40))
        await trainings.return_uncounted_data()
        assert world.train(0, 40, 60) == Span(0, 40, 60), "all of it is named"
        await trainings.return_uncounted_data()
        assert await world.next_shard() == (0, 40)
        assert world.train(0, 40, 60) == Span(0, 40, 60)
        assert work.spans == [Span(0, 0, 40)]

    world.run(story)


def test_data_that_rounds_do_not_count_are_named_for_so_long() -> None:
    world, trainer, work = World(8), QueueingTrainer(), NamingWork()
    trainings = trainings_of(world, trainer, work)
    world.others = {PeerId("other"): (99,)}

    async def story() -> None:
        for number in range(1, 4):
            shard, start = await world.next_shard()
            work.spans.append(world.train(shard, start, SHARD_TOKENS))
            named = list(work.spans)
            await trainings.return_uncounted_data()
            assert work.spans == (named if number <= SHARED_ROUNDS_NAMED else [])
        await trio.testing.wait_all_tasks_blocked()
        assert world.feed.claims
        assert {span.partition for span in named}.isdisjoint(world.feed.claims)

    world.run(story)
