"""A node whose trainer draws the initial weights for a long time, or does not start, obeys its
owner all the same: in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from gossamer.node.base.pausing import LeavingError
from tests.node.whole_nodes.test_pauses import StoppableTrainer, phase_of, until_paused
from tests.support.node_world import World, simulate

if TYPE_CHECKING:
    from trio_typing import TaskStatus

DRAW_SECONDS = 600.0
"""A large model on a slow machine, or a device that fails again and again."""


class SlowDrawer(StoppableTrainer):
    """It draws for a long time, until it is stopped for the first time."""

    was_stopped = False

    async def genesis(self) -> bool:
        if not self.was_stopped:
            await trio.sleep(DRAW_SECONDS)
        return await super().genesis()

    async def suspend(self) -> None:
        self.was_stopped = True
        await super().suspend()


async def founder_that_draws(world: World, nursery: trio.Nursery) -> trio.Event:
    """Starts a. Returns what is set when it has left."""
    left = trio.Event()

    async def run(task_status: TaskStatus[None]) -> None:
        await world.run("a", (), SlowDrawer, task_status=task_status)
        left.set()

    await nursery.start(run)
    await world.until(lambda: phase_of(world) == "syncing", seconds=30)
    await trio.sleep(30)
    assert not world.participant("a").context.committed.is_loaded
    return left


def test_it_leaves_at_once_and_takes_no_order_to_stay(tmp_path: Path) -> None:
    world = World(tmp_path, seed=11)

    async def story(nursery: trio.Nursery) -> None:
        left = await founder_that_draws(world, nursery)
        node = world.nodes["a"]
        node.leave()
        for order in (node.resume, node.pause):
            with pytest.raises(LeavingError, match="nothing takes that back"):
                order()
        with trio.fail_after(10):
            await left.wait()

    simulate(world, story)


def test_it_frees_the_device_at_once_and_draws_later(tmp_path: Path) -> None:
    world = World(tmp_path, seed=12)

    async def story(nursery: trio.Nursery) -> None:
        await founder_that_draws(world, nursery)
        world.nodes["a"].pause()
        await until_paused(world, "user")
        world.nodes["a"].resume()
        await world.reach(2, "a")

    simulate(world, story)
