"""A node alone trains rounds of many shards, and hardly waits for data."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.support.node_world import (
    FastTrainer,
    World,
    assert_account_is_true,
    assert_every_token_counted_once,
    headers_of,
    settled,
    simulate,
)

INNER_STEPS = 1200
"""75 shards of 512 tokens: 38,400 tokens in steps of 32."""

WAITING_FRACTION_MAX = 0.02


def waited_seconds(world: World, name: str) -> float:
    counter = world.nodes[name].first.metrics.trainer_waiting_seconds
    return float(counter._value.get())


@pytest.mark.parametrize(
    "num_shards",
    [
        pytest.param(600, id="eight rounds of data"),
        pytest.param(75, id="one round of data"),
        pytest.param(40, id="half a round of data"),
        pytest.param(1, id="one shard"),
    ],
)
def test_a_node_alone_always_has_data(num_shards: int, tmp_path: Path) -> None:
    world = World(tmp_path, seed=3, num_shards=num_shards, inner_steps=INNER_STEPS)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", [], FastTrainer)
        await world.reach(1, "a")
        began = trio.current_time()
        await world.reach(5, "a", seconds=400.0)
        await settled(world, "a")
        elapsed = trio.current_time() - began
        headers = headers_of(world, "a")[1:]
        assert [header.tokens for header in headers] == [32 * INNER_STEPS] * len(headers)
        assert waited_seconds(world, "a") < WAITING_FRACTION_MAX * elapsed
        assert_account_is_true(world, "a")
        assert_every_token_counted_once(headers_of(world, "a"))

    simulate(world, story)
