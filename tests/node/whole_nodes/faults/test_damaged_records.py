"""A node whose disk lost records of old rounds, alone and among others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from gossamer.node.runs.governance.rolling_back import RollbackDesk
from gossamer.node.runs.governance.signed_orders import OrderError, SignersRun
from gossamer.node.storage.block_files import path_of
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest
from tests.support.node_world import World, simulate
from tests.support.noted_offences import NotedOffences

ROUNDS = 12
LOST = 5


async def restart_without(world: World, nursery: trio.Nursery, name: str, *lost: int) -> None:
    """Kills a node and starts it again, when its disk has lost the records of some rounds."""
    await kill_and_damage(world, name, *lost)
    await nursery.start(world.run, name)


async def kill_and_damage(world: World, name: str, *lost: int) -> None:
    """Kills a node, whose disk then loses the records of some rounds. 0 stands for the newest."""
    world.crash(name)
    await trio.sleep(1.0)  # virtual: the old life lets its folder go
    chain_path = StateDir(world.root / name).chain_path
    newest = max(int(path.name[:10]) for path in chain_path.glob("0*"))
    for number in lost:
        for record in chain_path.glob(f"{number or newest:010d}-*"):
            record.write_bytes(b"")
    del world.nodes[name]


def gap_of(world: World, name: str) -> int | None:
    committed = world.participant(name).context.committed
    return committed.chain.gap_before(committed.head)


def head_of(world: World, name: str) -> Digest:
    return world.participant(name).context.committed.head


def is_at_work(world: World, name: str) -> bool:
    node = world.participant_or_none(name)
    return node is not None and node.context.committed.is_loaded and world.round(name) > 0


def test_a_founder_alone_goes_on_from_its_newest_round(tmp_path: Path) -> None:
    """With the newest record gone as well it began the run again from round 0."""
    world = World(tmp_path, seed=340)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(ROUNDS, "a")
        await restart_without(world, nursery, "a", LOST, 0)
        await world.until(lambda: is_at_work(world, "a"))
        assert world.round("a") >= ROUNDS - 1
        await world.reach(ROUNDS + 3, "a")
        assert gap_of(world, "a") == LOST
        assert not world.participant("a").context.work.status.dropped

    simulate(world, story)


def test_a_newcomer_waits_until_a_member_brings_the_record(tmp_path: Path) -> None:
    """It began a branch of its own at round 0 beside the founder's rounds."""
    world = World(tmp_path, seed=341)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(ROUNDS, "a", "b")
        world.crash("b")
        await trio.sleep(1.0)
        del world.nodes["b"]
        await restart_without(world, nursery, "a", LOST)
        await world.reach(ROUNDS + 2, "a")
        await nursery.start(world.run, "c", ["a"])
        await world.until(lambda: world.participant_or_none("c") is not None)
        await trio.sleep(60.0)
        newcomer = world.participant("c")
        assert not newcomer.context.committed.is_loaded
        assert newcomer.progress.problem is not None
        assert "lacks the record" in newcomer.progress.problem
        await nursery.start(world.run, "b", ["a"])
        await world.until(lambda: gap_of(world, "a") is None)
        await world.until(lambda: is_at_work(world, "c"))
        await world.reach(world.round("a") + 2, "a", "b", "c")
        world.assert_one_chain("a", "b", "c")
        assert newcomer.progress.problem is None

    simulate(world, story)


def test_two_members_bring_each_other_the_records_that_they_lost(
    tmp_path: Path, offences: NotedOffences
) -> None:
    """Neither knew the way to its head, so each took the other for a liar, and nobody could join
    any more."""
    world = World(tmp_path, seed=342)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(ROUNDS, "a", "b")
        await kill_and_damage(world, "b", LOST + 2, LOST + 4)
        await restart_without(world, nursery, "a", LOST, LOST + 3)
        await nursery.start(world.run, "b", ["a"])
        await world.until(lambda: is_at_work(world, "a") and is_at_work(world, "b"))
        await world.until(lambda: gap_of(world, "a") is gap_of(world, "b") is None)
        await nursery.start(world.run, "c", ["a"])
        await world.reach(ROUNDS + 3, "a", "b", "c")
        world.assert_one_chain("a", "b", "c")

    simulate(world, story)
    assert offences == []


def test_rounds_after_the_record_can_be_taken_back_and_none_before_it(tmp_path: Path) -> None:
    world = World(tmp_path, seed=342)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(ROUNDS, "a")
        await restart_without(world, nursery, "a", LOST)
        await world.until(lambda: is_at_work(world, "a"))
        manifest = world.nodes["a"].inputs.manifest
        desk = RollbackDesk(
            SignersRun(manifest, world.identity("a"), StateDir(world.root / "a")), 1 << 30
        )
        for number in (LOST - 1, LOST):
            with pytest.raises(OrderError, match=f"the record of round {LOST} is missing"):
                desk.plan(number)
        to_round = world.round("a") - 2
        plan = desk.plan(to_round)
        desk.roll_back(plan)
        chain = world.participant("a").context.committed.chain
        await world.until(
            lambda: Digest(plan.statement.undone) not in chain.pieces_to(head_of(world, "a"))[-1]
        )
        await world.reach(to_round + 4, "a")
        way = chain.pieces_to(head_of(world, "a"))[-1]
        assert Digest(plan.statement.parent) in way
        assert Digest(plan.statement.undone) not in way

    simulate(world, story)


def test_work_of_rounds_before_the_record_is_not_carried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a power cut the account of work may be older than the newest round. Rounds before a
    missing record counted as left, and their work was offered a second time."""
    world = World(tmp_path, seed=343)
    work, kept = StateDir(world.root / "a").root / "work", tmp_path / "kept"

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(ROUNDS - 4, "a")
        shutil.copytree(work, kept)
        await world.reach(ROUNDS, "a")
        world.crash("a")
        await trio.sleep(1.0)
        shutil.rmtree(work)
        kept.rename(work)
        await restart_without(world, nursery, "a", ROUNDS - 2)
        await world.reach(ROUNDS + 3, "a")
        assert gap_of(world, "a") == ROUNDS - 2

    simulate(world, story)
    told = capsys.readouterr().out
    assert "what the rounds since took is not known" in told
    assert "is carried again" not in told


def test_rounds_of_which_too_little_is_known_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An account of work that is damaged is put together from all rounds of the chain. There was a
    line for each whose averages are gone, and there are hundreds."""
    world = World(tmp_path, seed=344)
    state = StateDir(world.root / "a")

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(ROUNDS, "a")
        committed = world.participant("a").context.committed
        way = committed.chain.ancestors(committed.head, ROUNDS)[::-1][1:]
        headers = [committed.blocks.header(head) for head in way[:LOST]]
        world.crash("a")
        await trio.sleep(1.0)
        for header in headers:
            path_of(state.blocks_path, Digest(header.update_digest)).unlink()
        for file in (state.root / "work").rglob("*"):
            if file.is_file():
                file.write_bytes(b"x")
        await restart_without(world, nursery, "a")
        await world.reach(ROUNDS + 2, "a")

    capsys.readouterr()
    simulate(world, story)
    told = [line for line in capsys.readouterr().out.splitlines() if "took is not known" in line]
    assert len(told) == 1, told
    assert f"newest_round={LOST} num_rounds={LOST} oldest_round=1" in told[0]
