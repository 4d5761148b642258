"""A swarm that falls apart and becomes one again, with real nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.support.node_world import World, headers_of, simulate, start, tokens_of

LINE = 4_500.0
"""Bytes a second: a round's averages take 5 s, and one peer alone makes the next round in 4."""


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


@pytest.mark.long
def test_one_that_is_ahead_waits_for_the_many_that_lost_to_it(tmp_path: Path) -> None:
    """They leave their branch and fetch its rounds over its line. Else it would run away from them
    for as long as they follow. Its first rounds end before they are connected again. The many have
    no stake where the branches part: they had joined, and had done no round with it yet."""
    world = World(tmp_path, seed=33, inner_steps=40, gather_seconds=20.0)
    one, others = "a", "bcd"
    ids = {name: world.identity(name).peer_id for name in "abcd"}

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(1, *ids)
        await world.until(lambda: world.all_shards_are_with(*others))
        assert all(len(header.members) == 1 for header in headers_of(world, one))
        for other in others:
            world.network.cut(ids[one], ids[other])
            world.network.link(ids[one], ids[other]).bytes_per_second = LINE
        await world.reach(max(map(world.round, others)) + 1, *others)
        for other in others:
            world.participant(other).pause()
        await world.reach(world.round("b") + 12, one, seconds=300.0)
        for other in others:
            world.participant(other).resume()
            world.network.heal(ids[one], ids[other])
        healed = world.round(one)

        def num_in_newest() -> int:
            header = headers_of(world, one)[-1]
            return sum(tokens_of(world, header, name) > 0 for name in ids)

        # Some of its rounds pass while its line carries the records of both chains. If it did not
        # wait then, the others would never be in a round: they fetch one in 5 s.
        while num_in_newest() < 3:
            assert world.round(one) < healed + 12
            await world.reach(world.round(one) + 1, one)

    simulate(world, story)


async def split_and_heal(world: World, nursery: trio.Nursery) -> tuple[int, int]:
    """Two halves go on for three rounds; the newest rounds at the healing and with one head."""
    names = ("a", "b", "c", "d")
    pairs = [
        (world.identity(one).peer_id, world.identity(other).peer_id)
        for one in names[:2]
        for other in names[2:]
    ]
    await start(world, nursery, "abcd")
    await world.reach(3, *names)
    for pair in pairs:
        world.network.cut(*pair)
    await world.reach(max(map(world.round, names)) + 3, *names, seconds=600.0)
    assert not world.is_one_chain("a", "c")
    for pair in pairs:
        world.network.heal(*pair)
    healed = max(map(world.round, names))
    await world.until(lambda: len({world.path(name)[-1] for name in names}) == 1)
    return healed, max(map(world.round, names))


@pytest.mark.long
def test_two_halves_have_one_head_within_two_rounds_of_healing(tmp_path: Path) -> None:
    world = World(tmp_path, seed=31, inner_steps=100)

    async def story(nursery: trio.Nursery) -> None:
        healed, together = await split_and_heal(world, nursery)
        assert together <= healed + 2

    simulate(world, story)


@pytest.mark.long
def test_the_half_that_is_behind_yields_in_the_middle_of_its_ring(tmp_path: Path) -> None:
    """Each half of a run with shared steps is in a ring all the time, which would make it the
    heavier one: if it waited for that, they would be together a round later at best."""
    world = World(tmp_path, seed=31, inner_steps=50, codec="distro")

    async def story(nursery: trio.Nursery) -> None:
        healed, together = await split_and_heal(world, nursery)
        assert together == healed

    simulate(world, story)
