"""A node that fetches the model for a long time obeys its owner all the same: in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from gossamer.node.peers.blocks.block_exchange import BlockService
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.limits import BLOCK_BYTES_MAX
from tests.node.whole_nodes.test_pauses import StoppableTrainer, phase_of, until_paused
from tests.support.node_world import World, simulate

if TYPE_CHECKING:
    from trio_typing import TaskStatus

FETCH_SECONDS = 600.0
"""The time that each fetch of the newcomer takes: a large model on a slow line."""


async def newcomer_that_fetches(
    world: World, nursery: trio.Nursery, patch: pytest.MonkeyPatch
) -> trio.Event:
    """Starts b, which fetches the state of a. Returns what is set when b has left."""
    real = BlockService.fetch

    async def fetch(
        self: BlockService,
        digests: Iterable[Digest],
        sources: Callable[[], Sequence[PeerId]],
        *,
        passes: int | None = None,
        bytes_max: int = BLOCK_BYTES_MAX,
    ) -> None:
        wanted = [*digests]
        is_there = world.participant_or_none("b") is not None
        is_of_b = is_there and self is world.nodes["b"].first.blocks
        if is_of_b and self._store.missing(wanted):
            await trio.sleep(FETCH_SECONDS)
        await real(self, wanted, sources, passes=passes, bytes_max=bytes_max)

    patch.setattr(BlockService, "fetch", fetch)
    left = trio.Event()

    async def run_b(task_status: TaskStatus[None]) -> None:
        await world.run("b", ["a"], StoppableTrainer, task_status=task_status)
        left.set()

    await nursery.start(world.run, "a", (), StoppableTrainer)
    await world.reach(1, "a")
    world.nodes["a"].pause()
    await until_paused(world, "user")
    await nursery.start(run_b)
    await world.until(lambda: phase_of(world, "b") == "syncing", seconds=30)
    await trio.sleep(30)
    assert not world.participant("b").context.committed.is_loaded
    return left


def test_it_leaves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, seed=5)

    async def story(nursery: trio.Nursery) -> None:
        left = await newcomer_that_fetches(world, nursery, monkeypatch)
        world.nodes["b"].leave()
        with trio.fail_after(10):
            await left.wait()

    simulate(world, story)


def test_it_frees_the_device_at_once_and_fetches_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=6)

    async def story(nursery: trio.Nursery) -> None:
        await newcomer_that_fetches(world, nursery, monkeypatch)
        world.nodes["b"].pause()
        await until_paused(world, "user", "b")
        monkeypatch.undo()
        committed = world.participant("b").context.committed
        await world.until(lambda: committed.is_loaded, seconds=2 * FETCH_SECONDS)
        assert phase_of(world, "b") == "paused"
        before = world.round("a")
        for name in "ab":
            world.nodes[name].resume()
        await world.reach(before + 2, "a", "b")

    simulate(world, story)
