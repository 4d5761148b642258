"""The pace of shared steps, in virtual time: members that wait too little for each other's parts
would take empty steps for ever."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from tests.node.whole_nodes.modes.test_shared_steps import STEP_TOKENS, LongSteps
from tests.support.node_world import World, headers_of, simulate, tokens_of

STEPS = 8
"""Inner steps of a round in this world."""


@pytest.mark.parametrize("step_chunks", [1, pytest.param(3, marks=pytest.mark.long)])
def test_members_go_on_at_their_own_pace_when_the_fast_one_has_gone(
    tmp_path: Path, step_chunks: int
) -> None:
    """Both know only how fast the steps were with it."""
    world = World(
        tmp_path,
        seed=19,
        codec="distro",
        step_chunks=step_chunks,
        inner_steps=STEPS,
        wait_for_peers=2,
    )

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(partial(world.run, "a", trainer=LongSteps))
        await nursery.start(partial(world.run, "b", ["a"], trainer=LongSteps))
        await nursery.start(world.run, "c", ["a"])
        await world.reach(6, *"abc", seconds=300.0)
        world.crash("c")
        gone = world.round("a")
        await world.reach(gone + 6, *"ab", seconds=300.0)
        world.assert_one_chain(*"ab")
        for header in headers_of(world, "a")[-3:]:
            assert [tokens_of(world, header, name) for name in "ab"] == 2 * [STEPS * STEP_TOKENS]

    simulate(world, story)
