"""Swarms whose members check each other's signed records: they learn, agree and survive faults as
those that trust each other do."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.support.node_world import World, simulate


@pytest.mark.parametrize(
    ("codec", "fragments", "displacement", "overlap"),
    [
        ("fp32", 1, 0.0, False),
        ("int8", 1, 1.4, True),
        ("int4", 2, 0.0, False),
        ("sparse", 1, 0.0, True),
    ],
)
def test_all_members_reach_the_same_states(
    tmp_path: Path, codec: str, fragments: int, displacement: float, overlap: bool
) -> None:
    world = World(
        tmp_path,
        seed=31,
        codec=codec,
        trust="open",
        fragments=fragments,
        displacement=displacement,
        overlap=overlap,
    )

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(8, *"abc")
        world.assert_one_chain(*"abc")
        for name in "abc":
            registry = world.nodes[name].metrics.registry
            for reason in ("forged", "malformed"):
                count = registry.get_sample_value("gossamer_offences_total", {"reason": reason})
                assert not count

    simulate(world, story)


def test_a_member_that_dies_and_a_newcomer_that_replays(tmp_path: Path) -> None:
    """The newcomer computes the averages of earlier rounds from their records."""
    world = World(tmp_path, seed=32, codec="int8", trust="open", checkpoint_rounds=50)

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


def test_a_fresh_run_with_a_probation_goes_on_and_a_newcomer_computes_the_same(
    tmp_path: Path,
) -> None:
    """In its first rounds no peer is established; c dies, and d replays those rounds."""
    world = World(tmp_path, seed=33, codec="int8", trust="open", checkpoint_rounds=50, probation=4)

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
