"""A node whose disk damaged blocks: what is damaged is fetched again, and no peer is blamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from gossamer.node.heads.avoided_heads import AVOID_SECONDS
from gossamer.node.peers.chain.chain_sync import ChainSync, DamagedHereError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state import retention
from gossamer.node.storage.state.state_blocks import DamagedBlocksError
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.rounds.inventory import Payload
from tests.support.damage import damage, damaged
from tests.support.node_world import World, simulate
from tests.support.noted_offences import NotedOffences

CHECKPOINT_ROUNDS = 12
ROUNDS = 2 * CHECKPOINT_ROUNDS + 1
"""The second checkpoint lies just behind the node, and the averages before the first one are kept
nowhere any more."""


def damage_all(state_dir: StateDir) -> int:
    """Damages each block, and returns the number of blocks."""
    blocks = [path for path in state_dir.blocks_path.rglob("*") if len(path.name) == 64]
    for block in blocks:
        damage(block)
    return len(blocks)


def is_with_others(world: World) -> bool:
    """Returns whether the node is further than it was, and on the others' chain."""
    node = world.participant_or_none("b")
    if node is None or not node.context.committed.is_loaded:
        return False
    return world.round("b") > ROUNDS and world.is_one_chain("a", "b")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(retention, "CHECKPOINT_SECONDS", 0.0)
    return World(tmp_path, seed=330, checkpoint_rounds=CHECKPOINT_ROUNDS)


async def damage_while_away(
    world: World, nursery: trio.Nursery, while_away: Callable[[], None] = lambda: None
) -> None:
    """Two nodes work together, and one of them is killed and finds damaged blocks."""
    await nursery.start(world.run, "a")
    await nursery.start(world.run, "b", ["a"])
    await world.reach(ROUNDS, "a", "b")
    world.assert_one_chain("a", "b")
    world.crash("b")
    await trio.sleep(1.0)  # virtual: the old life lets its folder go
    assert damage_all(StateDir(world.root / "b")) > ROUNDS
    del world.nodes["b"]
    while_away()
    await nursery.start(world.run, "b", ["a"])


def test_all_that_is_damaged_is_fetched_at_once(world: World, offences: NotedOffences) -> None:
    """Each block that was found damaged was once a failed way to the swarm's head: the head was
    avoided for a while, its holder was blamed, and the node trained on alone from an old state."""

    async def story(nursery: trio.Nursery) -> None:
        await damage_while_away(world, nursery)
        await world.until(lambda: is_with_others(world))
        assert world.round("a") < 3 * CHECKPOINT_ROUNDS, "a checkpoint came that was not damaged"
        await world.reach(world.round("a") + 2, "a", "b")
        world.assert_one_chain("a", "b")

    simulate(world, story)
    assert offences == []


def test_a_disk_that_damages_what_is_fetched_is_no_fault_of_a_peer(
    world: World, offences: NotedOffences, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dying = False
    num_damaged = 0
    write_file = BlockStore._write_file
    of_data = {digest_of(block) for block in world._blocks}  # without the index a node ends

    def damaging(self: BlockStore, target: Path, digest: Digest, data: Payload) -> None:
        nonlocal num_damaged
        is_of_b = self.root == StateDir(world.root / "b").blocks_path
        if is_dying and is_of_b and digest not in of_data:
            data = damaged(data)
            num_damaged += 1
        write_file(self, target, digest, data)

    monkeypatch.setattr(BlockStore, "_write_file", damaging)

    def dies() -> None:
        nonlocal is_dying
        is_dying = True

    async def story(nursery: trio.Nursery) -> None:
        nonlocal is_dying
        await damage_while_away(world, nursery, dies)
        await world.until(lambda: num_damaged > CHECKPOINT_ROUNDS)
        assert not is_with_others(world)
        is_dying = False
        await world.until(lambda: is_with_others(world), 2 * AVOID_SECONDS)
        world.assert_one_chain("a", "b")

    simulate(world, story)
    assert offences == []


def test_blocks_that_are_fetched_ahead_blame_nobody_for_the_damage_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=331)

    async def damaged_here(self: ChainSync, *_: object) -> None:
        raise DamagedBlocksError("a block was damaged on disk")

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        context = world.participant("a").context
        monkeypatch.setattr(ChainSync, "_over_damage", damaged_here)
        with pytest.raises(DamagedHereError):
            await context.chain_sync.fetch(context.committed.head, tuple)

    simulate(world, story)
