"""Swarms whose members check each other's signed records: they learn, agree and survive faults as
those that trust each other do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from gossamer.protocol.state.chain import credits_of
from tests.support.node_world import NumbersTrainer, World, headers_of, simulate


@pytest.mark.long
@pytest.mark.parametrize(
    ("codec", "settings"),
    [
        ("fp32", {}),
        ("int8", {"displacement": 1.4, "overlap": True}),
        ("int4", {"fragments": 2}),
        ("sparse", {"overlap": True}),
        ("distro", {}),
        ("distro", {"step_chunks": 3}),
    ],
    ids=["fp32", "int8", "int4", "sparse", "distro", "distro in chunks"],
)
def test_all_members_reach_the_same_states(
    tmp_path: Path, codec: str, settings: dict[str, Any]
) -> None:
    world = World(tmp_path, seed=31, codec=codec, trust="open", **settings)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(8, *"abc")
        world.assert_one_chain(*"abc")
        for name in "abc":
            registry = world.nodes[name].first.metrics.registry
            for reason in ("forged", "malformed"):
                count = registry.get_sample_value("gossamer_offences_total", {"reason": reason})
                assert not count

    simulate(world, story)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["int8", "distro"])
def test_a_member_that_dies_and_a_newcomer_that_replays(tmp_path: Path, codec: str) -> None:
    """The newcomer computes the averages of earlier rounds from their records."""
    world = World(tmp_path, seed=32, codec=codec, trust="open", checkpoint_rounds=50)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(4, *"abc")
        world.crash("c")
        await world.reach(world.round("a") + 3, "a", "b")
        await nursery.start(world.run, "d", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(world.round("a") + 3, *"abcd")
        world.assert_one_chain(*"abcd")

    simulate(world, story)


class Slow(NumbersTrainer):
    """It is late for some of the shared steps, and abstains in them."""

    step_seconds = 0.6


@pytest.mark.long
@pytest.mark.parametrize("step_chunks", [1, 3])
def test_a_newcomer_replays_steps_in_which_a_member_abstains(
    tmp_path: Path, step_chunks: int
) -> None:
    world = World(
        tmp_path,
        seed=34,
        codec="distro",
        trust="open",
        checkpoint_rounds=50,
        step_chunks=step_chunks,
    )

    def has_abstained() -> bool:
        """Whether a round took some of the slow node's steps, and not all."""
        of_nodes = [
            [credits_of(header).get(world.identity(name).peer_id, 0) for name in "bc"]
            for header in headers_of(world, "a")
        ]
        return any(0 < slow < other for other, slow in of_nodes)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"], Slow)
        await world.reach(1, *"abc")
        await world.until(has_abstained, seconds=120.0)
        await nursery.start(world.run, "d", ["a"])
        await world.reach(world.round("a") + 2, *"abd")
        world.assert_one_chain(*"abd")
        assert not any(count_of(world, name) for name in "abcd")

    def count_of(world: World, name: str) -> float:
        registry = world.nodes[name].first.metrics.registry
        labels = ({"reason": reason} for reason in ("unproven", "malformed", "forged"))
        name = "gossamer_offences_total"
        return sum(registry.get_sample_value(name, each) or 0.0 for each in labels)

    simulate(world, story)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["int8", "distro"])
def test_a_fresh_run_with_a_probation_goes_on_and_a_newcomer_computes_the_same(
    tmp_path: Path, codec: str
) -> None:
    """In its first rounds no peer is established; c dies, and d replays those rounds."""
    world = World(tmp_path, seed=33, codec=codec, trust="open", checkpoint_rounds=50, probation=4)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(6, *"abc")
        world.crash("c")
        await nursery.start(world.run, "d", ["a"])
        await world.reach(world.round("a") + 7, *"abd")
        world.assert_one_chain(*"abd")

    simulate(world, story)
