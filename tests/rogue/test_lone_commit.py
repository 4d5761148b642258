"""A member that calls all the others removed and signs their round alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.network.transport import TransportError
from tests.rogue.attacks_averages import member_that_commits_alone
from tests.rogue.rogue import rogue_among
from tests.rogue.test_catalogue import count
from tests.support.measured import measured
from tests.support.node_world import World, simulate

NAMES = "abc"


def forged_after(root: Path, accusers: int) -> list[float]:
    """Offences of the kind "forged" that each of three nodes has counted."""
    world = World(root, seed=37, accusers=accusers)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        for name in NAMES[1:]:
            await nursery.start(world.run, name, ["a"])
        await world.reach(4, *NAMES)
        async with rogue_among(world, NAMES, b"lone") as (rogue, victims):
            before = world.path("a")
            with suppress(TransportError):  # banned meanwhile
                await member_that_commits_alone(rogue, victims)
        await world.reach(world.round("a") + 2, *NAMES)
        world.assert_one_chain(*NAMES)
        assert world.path("a")[: len(before)] == before

    simulate(world, story)
    return [count(world, name, "offences", "forged") for name in NAMES]


@pytest.mark.parametrize("accusers", [1, 2])
def test_its_record_is_no_proof_where_two_accusers_are_needed(
    tmp_path: Path, accusers: int
) -> None:
    forged = forged_after(tmp_path, accusers)
    measured(f"{accusers} accusers: {forged} records refused as forged")
    assert all(forged) == (accusers == 2), forged
    assert accusers == 2 or not any(forged)
