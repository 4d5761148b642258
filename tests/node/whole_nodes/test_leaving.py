"""A node that leaves hands its newest round over, whole nodes in virtual time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from gossamer.node.machine.machine_use import MachineUse
from gossamer.node.rounds.farewell import HAND_OVER_SECONDS
from gossamer.node.rounds.turn import POLL_SECONDS
from gossamer.protocol.ids import Digest
from tests.support.node_world import NOT_USED, World, simulate

SILENT_SECONDS = 5.0
"""Long enough for a last round alone, and for leaving after it."""
ROUND_SECONDS_MAX = 1.5
"""The rest of a training of 0.4 s, the ring and the next look at what there is to do."""


async def start_both(
    world: World, nursery: trio.Nursery, use_of_other: MachineUse = NOT_USED
) -> trio.Event:
    """Starts the other, a, and the node that is to leave, b, and returns when both take part.

    Returns:
        An event that is set when b has left.
    """
    world.use = use_of_other
    await nursery.start(world.run, "a")
    world.use = NOT_USED
    left = trio.Event()

    async def run_leaver() -> None:
        await world.run("b", ["a"])
        left.set()

    nursery.start_soon(run_leaver)
    await world.until(lambda: world.participant_or_none("b") is not None)
    await world.reach(4, "a", "b")
    return left


async def until_paused(world: World, name: str) -> None:
    await world.until(lambda: world.participant(name).progress.phase == "paused", seconds=30)


def head_of(world: World, name: str) -> Digest:
    return world.participant(name).context.committed.head


@pytest.mark.parametrize("comes_back", [True, False])
def test_the_newest_round_does_not_go_with_a_node_that_leaves(
    tmp_path: Path, comes_back: bool
) -> None:
    """The other trains nothing, so each round is the leaver's alone. It hears nothing for a while
    when the leaver commits its last one."""
    world = World(tmp_path, seed=21)

    async def story(nursery: trio.Nursery) -> None:
        left = await start_both(world, nursery)
        world.participant("a").pause()
        await until_paused(world, "a")
        await world.reach(world.round("b") + 2, "a", "b")
        peers = world.identity("a").peer_id, world.identity("b").peer_id
        world.network.cut(*peers)
        leaves_seconds = trio.current_time()
        world.nodes["b"].leave()
        await trio.sleep(SILENT_SECONDS)
        assert world.round("b") > world.round("a"), "it committed nothing that the other lacks"
        assert not left.is_set()
        if comes_back:
            world.network.heal(*peers)
        with trio.fail_at(leaves_seconds + HAND_OVER_SECONDS):
            await left.wait()
        assert (head_of(world, "a") == head_of(world, "b")) == comes_back

    simulate(world, story)


def test_a_node_that_leaves_does_not_stay_for_peers_that_have_its_round(tmp_path: Path) -> None:
    world = World(tmp_path, seed=22)

    async def story(nursery: trio.Nursery) -> None:
        left = await start_both(world, nursery)
        world.nodes["b"].leave()
        with trio.fail_after(ROUND_SECONDS_MAX + POLL_SECONDS):
            await left.wait()
        world.assert_one_chain("a", "b")

    simulate(world, story)


def test_a_node_that_leaves_does_not_stay_for_ever(tmp_path: Path) -> None:
    """The other lives and stays connected, but its line is metered: it fetches no round."""
    world = World(tmp_path, seed=23)
    is_metered = False

    async def story(nursery: trio.Nursery) -> None:
        nonlocal is_metered
        use = replace(NOT_USED, is_metered=lambda: is_metered)
        left = await start_both(world, nursery, use)
        is_metered = True
        await until_paused(world, "a")
        await world.reach(world.round("a") + 2, "b")
        world.nodes["b"].leave()
        leaves_seconds = trio.current_time()
        with trio.fail_after(ROUND_SECONDS_MAX + HAND_OVER_SECONDS + POLL_SECONDS):
            await left.wait()
        assert trio.current_time() > leaves_seconds + HAND_OVER_SECONDS
        assert world.round("b") > world.round("a")

    simulate(world, story)
