"""What holds up rounds, and how many there are all the same."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.network.transport import TransportError
from gossamer.protocol.rounds.gathering import WAITS_MAX
from tests.rogue.attacks_claims import (
    RINGS_SECONDS,
    identities_that_list_each_other,
    ring_that_comes_and_goes,
    rings_one_after_the_other,
)
from tests.rogue.catalogue import Attack
from tests.rogue.rogue import rogue_among
from tests.support.measured import measured
from tests.support.node_world import World, simulate, start

pytestmark = pytest.mark.usefixtures("quiet")


def rounds_under(attack: Attack, root: Path, names: str, repeats: int = 1) -> int:
    """The rounds that honest nodes commit while an attack lasts."""
    world = World(root, seed=3)
    num_rounds = 0

    async def story(nursery: trio.Nursery) -> None:
        nonlocal num_rounds
        await start(world, nursery, names)
        await world.reach(4, *names)
        async with rogue_among(world, names, b"rogue that holds up") as (rogue, victims):
            began = world.round("a")
            for _ in range(repeats):
                with suppress(TransportError):
                    await attack(rogue, victims)
            num_rounds = world.round("a") - began
            measured(f"{attack.__name__}, {len(names)} honest: {num_rounds} rounds")
        world.assert_one_chain(*names)

    simulate(world, story)
    return num_rounds


@pytest.mark.parametrize("names", ["a", "abc"])
def test_identities_that_list_each_other_hold_up_no_round(tmp_path: Path, names: str) -> None:
    assert rounds_under(identities_that_list_each_other, tmp_path, names) > RINGS_SECONDS / 2


def test_a_member_that_replaces_its_rings_holds_up_few_rounds(tmp_path: Path) -> None:
    assert rounds_under(rings_one_after_the_other, tmp_path, "abc", repeats=3) > RINGS_SECONDS


def test_a_ring_that_comes_and_goes_holds_up_a_round_for_two_waits_at_most(tmp_path: Path) -> None:
    """A wait is of 3 s. The others gather for as long before the first one, and then make their
    ring for an attempt that is theirs."""
    waits_seconds = (WAITS_MAX + 1) * World.gather_seconds
    rounds = rounds_under(ring_that_comes_and_goes, tmp_path, "abc")
    assert rounds >= RINGS_SECONDS / (waits_seconds + 2.0)
