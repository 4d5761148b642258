"""Fresh identities of one hostile owner, more than there are honest members."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.rogue.test_influence import SOUND, Negative, largest_parameter
from tests.support.measured import measured
from tests.support.node_world import World, newest_header, simulate, start, tokens_of

pytestmark = pytest.mark.usefixtures("quiet")

HONEST, SYBILS = "abc", "defg"
PROBATION = 16
ROUNDS = 8
"""With the identities in the ring, fewer than the probation has."""


def largest_after(root: Path, probation: int) -> float:
    """The largest magnitude of a parameter after some rounds of three and four, in which the four
    send -10 times their work. The three have worked together for the length of a probation."""
    world = World(root, seed=41, codec="int8", trust="open", probation=probation)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, HONEST)
        await world.reach(PROBATION + 4, *HONEST)
        for name in SYBILS:
            await nursery.start(world.run, name, ["a"], Negative)
        await world.until(
            lambda: all(tokens_of(world, newest_header(world, "a"), name) for name in SYBILS)
        )
        await world.reach(world.round("a") + ROUNDS, *HONEST)
        world.assert_one_chain(*HONEST)

    simulate(world, story)
    largest = largest_parameter(world, HONEST)
    measured(f"probation of {probation} rounds: largest parameter {largest:.3g}")
    return largest


@pytest.mark.long
def test_fresh_identities_carry_no_average_away_before_they_have_worked(tmp_path: Path) -> None:
    assert largest_after(tmp_path / "with", PROBATION) < SOUND
    assert largest_after(tmp_path / "without", 0) > 2 * SOUND, "the attack did not take place"
