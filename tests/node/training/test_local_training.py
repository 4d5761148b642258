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
from gossamer.protocol.ids import PeerId
from gossamer.trainer.ipc.messages import Finished
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

    async def train(self, number: int, *_arguments: object) -> Finished:
        return Finished(round=number, steps=0, tokens=0, spans=(), loss_mean=math.nan)


def trainings_of(world: World, trainer: QueueingTrainer) -> LocalTrainings:
    manifest = SimpleNamespace(
        outer=SimpleNamespace(inner_steps_of=lambda _: 20, first_inner_step_of=lambda _: 0),
        inner=SimpleNamespace(sequences_per_step=1),
        model=SimpleNamespace(context=SHARD_TOKENS - 1),
        rounds=SimpleNamespace(round_seconds=60.0),
    )
    return LocalTrainings(
        cast(Any, manifest),
        cast(Any, trainer),
        world.feed,
        cast(Any, None),
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
