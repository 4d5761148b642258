"""Whole nodes in a run whose oldest headers are gone: those that join it, come back, or start
again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.heads import checkpoint_keeper
from gossamer.node.runs.results.credit import read_credits
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest
from gossamer.protocol.policy.heads import chain_checkpoint
from gossamer.protocol.policy.heads.chain_summary import CHECKPOINT_PERIOD
from gossamer.protocol.standing import STANDING_ROUNDS
from tests.support.node_world import World, simulate

KEPT_ROUNDS = 96
"""Instead of 1,024."""

LOOK_SECONDS = 4.0
"""Instead of thirty."""

PRUNED_SECONDS = 600.0
"""Virtual time for 350 rounds, and for two looks of the keeper."""


@pytest.fixture(autouse=True)
def _few_headers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_checkpoint, "KEPT_ROUNDS", KEPT_ROUNDS)
    monkeypatch.setattr(checkpoint_keeper, "LOOK_SECONDS", LOOK_SECONDS)


def start_round(world: World, name: str) -> int:
    start = world.participant(name).context.committed.chain.start
    return 0 if start is None else start.round


def state_of(world: World, name: str) -> tuple[Digest, bytes]:
    committed = world.participant(name).context.committed
    return committed.head, committed.parameters.tobytes() + committed.momentum.tobytes()


def num_with_stake(world: World, name: str) -> int:
    context = world.participant(name).context
    return len(context.choice.stakes_at(context.committed.head))


async def meet(world: World, *names: str) -> None:
    """Waits until all have the same head, and checks that they have the same state there."""

    def heads() -> set[Digest]:
        return {world.participant(name).context.committed.head for name in names}

    await world.until(lambda: len(heads()) == 1, 60.0)
    assert len({state_of(world, name) for name in names}) == 1


def assert_old_headers_are_gone(world: World, name: str) -> None:
    chain = world.participant(name).context.committed.chain
    first = CHECKPOINT_PERIOD - STANDING_ROUNDS
    assert chain.entry(chain.root).round == first
    files = [path.name for path in StateDir(world.root / name).chain_path.iterdir()]
    rounds = [int(file.split("-")[0]) for file in files if "-" in file]
    assert min(rounds) == first + 1


@pytest.mark.long
def test_nodes_join_come_back_and_start_again_without_the_old_headers(tmp_path: Path) -> None:
    world = World(tmp_path, seed=86)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "c", ["a"])
        await world.reach(1, "a", "c")
        await world.until(lambda: num_with_stake(world, "a") == 2)
        world.crash("c")
        await world.until(lambda: start_round(world, "a") > 0, PRUNED_SECONDS)
        assert_old_headers_are_gone(world, "a")

        await nursery.start(world.run, "b", ["a"])  # a newcomer
        await nursery.start(world.run, "c", ["a"])  # it was away
        await world.reach(world.round("a") + 8, "a", "b", "c")
        await meet(world, "a", "b", "c")
        await trio.sleep(2 * LOOK_SECONDS)
        for name in "bc":
            assert_old_headers_are_gone(world, name)

        world.crash("b")
        await world.reach(world.round("a") + 2, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(world.round("a") + 4, "a", "b")
        await meet(world, "a", "b")

    simulate(world, story)
    for name in "abc":
        StateDir(tmp_path / name).write_manifest(world.signed)
    credits = [read_credits(StateDir(tmp_path / name)) for name in "abc"]
    for each in credits:
        assert each.missing_rounds == 0
        assert sum(row.tokens for row in each.rows) == each.tokens_total
        assert {
            row.first_round for row in each.rows if row.peer_id == world.identity("a").peer_id
        } == {1}
