"""A swarm that falls apart and becomes one again, with real nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import trio
from node_world import World, simulate


def test_a_branch_that_wins_need_not_be_longer(tmp_path: Path) -> None:
    """Both sides of a split have done as many rounds; the head rule picks one all the same."""
    world = World(tmp_path, seed=30)
    names = ("a", "b")
    link = [world.identity(name).peer_id for name in names]

    async def pause_at(goal: int, name: str) -> None:
        await world.reach(goal, name)
        world.participant(name).pause()
        await world.until(lambda: world.participant(name).progress.phase == "paused")

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(3, *names)
        await world.until(lambda: world.all_shards_are_with("b"))
        world.network.cut(*link)
        goal = max(map(world.round, names)) + 5
        async with trio.open_nursery() as both:
            for name in names:
                both.start_soon(pause_at, goal, name)
        heads = {world.path(name)[-1] for name in names}
        assert len(heads) == 2
        assert world.round("a") == world.round("b")
        world.network.heal(*link)
        await world.until(lambda: world.path("a") == world.path("b"))
        assert world.path("a")[-1] in heads

    simulate(world, story)
