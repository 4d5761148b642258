"""A node that has heard of rounds that it cannot have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from tests.support.node_world import NumbersTrainer, World, simulate

pytestmark = pytest.mark.usefixtures("quiet")


class LongSteps(NumbersTrainer):
    """A step takes longer than a node waits before it tries again to reach a head."""

    step_seconds = 5.0


def test_a_node_that_is_alone_with_the_records_of_rounds_that_it_lacks_trains_on(
    tmp_path: Path,
) -> None:
    """The others went on while it was away, and are gone. Each try to reach their head ends its
    training, so a node that tries again and again never trains."""
    world = World(tmp_path, seed=5, look_seconds=0.1)

    async def story(nursery: trio.Nursery) -> None:
        for name in "abc":
            await nursery.start(world.run, name, [] if name == "a" else ["a"])
        await world.reach(5, *"abc")
        await world.until(lambda: world.all_shards_are_with("b"))
        left_at = world.round("a")
        world.crash("a")
        await world.reach(world.round("b") + 6, *"bc")
        for name in "bc":
            world.crash(name)
        chains = {name: tmp_path / name / "chain" for name in "ab"}
        for record in chains["b"].iterdir():
            if record.is_file() and not (chains["a"] / record.name).exists():
                shutil.copy(record, chains["a"])
        await nursery.start(world.run, "a", [], LongSteps)
        await world.reach(left_at + 3, "a", seconds=120.0)

        await nursery.start(world.run, "b", ["a"])
        await world.until(lambda: world.participant_or_none("b") is not None)
        await world.come_together("a", "b", seconds=120.0)

    simulate(world, story)
