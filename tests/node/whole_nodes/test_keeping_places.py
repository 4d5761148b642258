"""What whole nodes say of each other where connections are too many: who is known, who has worked.

The rules are in `node/network/places.py`, with tests of their own.
"""

from __future__ import annotations

from pathlib import Path

import trio

from tests.support.memory_peer import MemoryPeer
from tests.support.node_world import World, credited, simulate


def _transport(world: World, name: str) -> MemoryPeer:
    transport = world.network.get(world.identity(name).peer_id)
    assert transport is not None
    return transport


def test_an_announcement_is_no_standing_and_a_round_is(tmp_path: Path) -> None:
    world = World(tmp_path, seed=141)
    idle, nobody = world.identity("c").peer_id, world.identity("nobody").peer_id

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(3, "a", "b")
        await nursery.start(world.run, "c", ["a"])
        await world.until(lambda: world.participant_or_none("c") is not None)
        world.participant("c").pause()
        here = _transport(world, "a")
        await world.until(lambda: here.is_known(idle))
        assert here.has_standing(world.identity("b").peer_id)
        assert not here.has_standing(idle)
        assert not here.is_expected(idle)
        assert not here.is_known(nobody)
        world.participant("c").resume()
        await world.until(lambda: credited(world, "c") > 0)
        await world.reach(world.round("c") + 1, "a")
        assert here.has_standing(idle)

    simulate(world, story)


def test_a_stranger_of_a_run_with_a_list_has_no_standing(tmp_path: Path) -> None:
    world = World(tmp_path, seed=142, allowed=("a", "b"))
    stranger = world.identity("stranger").peer_id

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.until(lambda: world.participant_or_none("a") is not None)
        here = _transport(world, "a")
        assert here.has_standing(world.identity("b").peer_id)
        assert not here.has_standing(stranger)
        assert not here.is_expected(stranger)

    simulate(world, story)


def test_a_member_by_invitation_has_standing_by_its_work(tmp_path: Path) -> None:
    world = World(tmp_path, seed=143, is_by_invitation=True, allowed=("b",))

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.until(lambda: world.participant_or_none("a") is not None)
        here, other = _transport(world, "a"), world.identity("b").peer_id
        assert not here.has_standing(other)
        assert here.is_expected(other)
        await nursery.start(world.run, "b", ["a"])
        await world.reach(1, "b")
        await world.until(lambda: credited(world, "b") > 0)
        await world.reach(world.round("b") + 1, "a")
        assert here.has_standing(other)

    simulate(world, story)
