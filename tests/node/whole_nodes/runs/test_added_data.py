"""The founder adds data to a run that goes on: whole nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import trio

from gossamer.protocol.ids import Digest
from gossamer.protocol.shard_index import ShardInfo
from tests.support.added_data import PART_SHARDS, add_part, data_of
from tests.support.node_world import (
    SHARD_TOKENS,
    World,
    assert_every_token_counted_once,
    headers_of,
    simulate,
    start,
)

FIRST_SHARDS = 24
PATIENCE_SECONDS = 120.0


def num_shards(world: World, name: str) -> int:
    data = data_of(world, name)
    return 0 if data is None else len(data.shards)


def consumed_from(world: World, first: int) -> bool:
    return any(
        span.partition >= first for header in headers_of(world, "b") for span in header.spans
    )


def is_in_no_ring(world: World, name: str) -> bool:
    """Returns whether a crash of a node takes no part of its work out of a round. Of a member that
    dies in a ring only the chunks count to which it has added its part, but all of its data."""
    driver = world.participant(name).rounds._running
    return driver is None or driver.machine.ring is None


def test_data_that_are_added_are_trained_on_by_all_and_outlive_the_founder(tmp_path: Path) -> None:
    world = World(tmp_path, seed=31, num_shards=FIRST_SHARDS, data_grow=True)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(2, *"ab")
        # Two newcomers at one moment may claim the same data, which then counts once.
        await nursery.start(world.run, "c", ["a"])
        await world.reach(world.round("a") + 1, *"abc")
        assert add_part(world, "a")
        grown = FIRST_SHARDS + PART_SHARDS
        await world.until(
            lambda: all(num_shards(world, name) == grown for name in "abc"), PATIENCE_SECONDS
        )
        await world.until(lambda: consumed_from(world, FIRST_SHARDS), PATIENCE_SECONDS, 0.5)
        await world.until(lambda: is_in_no_ring(world, "c"), PATIENCE_SECONDS)
        world.crash("c")
        assert add_part(world, "a")
        grown += PART_SHARDS
        await world.until(lambda: num_shards(world, "b") == grown, PATIENCE_SECONDS)
        copied = world.nodes["b"].inputs.store
        await world.until(
            lambda: not copied.missing(Digest(shard.digest) for shard in all_shards(world, "b")),
            PATIENCE_SECONDS,
        )
        await world.until(lambda: is_in_no_ring(world, "a"), PATIENCE_SECONDS)
        world.crash("a")
        await nursery.start(world.run, "c", ["b"])  # it was away
        await nursery.start(world.run, "d", ["b"])  # it is new, and never met the founder
        await world.until(
            lambda: all(num_shards(world, name) == grown for name in "bcd"), PATIENCE_SECONDS
        )
        await world.reach(world.round("b") + 3, *"bcd")
        world.assert_one_chain(*"bcd")
        assert_every_token_counted_once(headers_of(world, "b"))
        assert {shard.num_tokens for shard in all_shards(world, "d")} == {SHARD_TOKENS}
        mine, theirs = data_of(world, "b"), data_of(world, "d")
        assert mine is not None
        assert theirs is not None
        assert len(mine.parts.parts) == 2
        assert theirs.parts == mine.parts

    simulate(world, story)


def all_shards(world: World, name: str) -> list[ShardInfo]:
    data = data_of(world, name)
    assert data is not None
    return data.shards
