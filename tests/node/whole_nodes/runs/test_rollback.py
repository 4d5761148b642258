"""The founder takes rounds back: whole nodes in virtual time."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from gossamer.node.heads.rollbacks import ORDER_SECONDS, RollbackFiles
from gossamer.node.runs.governance import rolling_back
from gossamer.node.runs.governance.rolling_back import RollbackDesk
from gossamer.node.runs.governance.signed_orders import OrderError, SignersRun
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.accounting.work_records import ROLLED_BACK, STALE
from gossamer.protocol.ids import Digest
from gossamer.protocol.policy.auditing.poor_work import MARKS_MAX
from gossamer.protocol.policy.conduct.sit_out import SITS_OUT_ROUNDS
from gossamer.protocol.policy.heads.head_choice import UNDO_ROUNDS_MAX
from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import Rollback
from tests.support.balance import is_balanced
from tests.support.node_world import NOT_USED, SlowTrainer, World, simulate, start

CACHE_BYTES = 1 << 30

TOGETHER_SECONDS = 20.0
"""Time for all to go back and make a round, in virtual time: rounds take half a second."""

CHECKPOINTS_MADE = 3
"""Upper bound on the checkpoints that a run makes until a node sees an order on its disk, within 4
seconds. Each lets the oldest one go."""


def run_of(world: World, name: str = "a") -> RollbackDesk:
    """The run in a state directory, the founder's if no other is named."""
    run = SignersRun(
        world.nodes[name].inputs.manifest, world.identity(name), StateDir(world.root / name)
    )
    return RollbackDesk(run, CACHE_BYTES)


def files_of(world: World, name: str) -> RollbackFiles:
    manifest = world.nodes[name].inputs.manifest
    return RollbackFiles(world.root / name, manifest.run_id, RollbackSigners.of(manifest))


def roll_back(world: World, to_round: int, name: str = "a") -> Rollback:
    """Does what `gossamer rollback` does."""
    run = run_of(world, name)
    plan = run.plan(to_round)
    run.roll_back(plan)
    return plan.statement


def has_left(world: World, name: str, undone: bytes) -> bool:
    return Digest(undone) not in world.path(name)


def depth(world: World) -> int:
    """A round to go back to. The oldest whole states on the founder's disk go before it sees the
    order."""
    run = run_of(world)
    for number in range(world.round("a")):
        with contextlib.suppress(OrderError):
            run.plan(number)
            return number + CHECKPOINTS_MADE * run.manifest.rounds.checkpoint_rounds + 1
    raise AssertionError("the founder cannot go back to any round")


def test_all_go_back_and_on_from_there_and_so_do_newcomers_and_those_that_were_away(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, seed=90)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(24, *"abcd")
        reporter = world.nodes["a"].reporter
        assert reporter is not None
        assert reporter.status().rolled_back_to is None
        world.crash("d")
        await world.reach(world.round("a") + 2, *"abc")
        before = world.path("a")
        target = depth(world)
        assert len(before) - target >= 2
        statement = roll_back(world, target)
        assert statement.undone == before[target]
        await world.until(
            lambda: all(has_left(world, name, statement.undone) for name in "abc"),
            TOGETHER_SECONDS,
        )
        await world.until(
            lambda: all(world.round(name) > target + 2 for name in "abc"), TOGETHER_SECONDS
        )
        await world.come_together(*"abc", seconds=TOGETHER_SECONDS)
        assert world.path("a")[:target] == before[:target]
        for name in "abc":
            assert is_balanced(world.participant(name).context.work.account)
            assert world.participant(name).context.work.account.state.dropped.get(ROLLED_BACK)
        await nursery.start(world.run, "d", ["a"])
        await nursery.start(world.run, "e", ["b"])
        await world.until(lambda: world.participant_or_none("e") is not None)
        await world.reach(world.round("a") + 3, *"abcde")
        await world.come_together(*"abcde", seconds=TOGETHER_SECONDS)
        for name in "abcde":
            assert has_left(world, name, statement.undone)
            reporter = world.nodes[name].reporter
            assert reporter is not None
            assert reporter.status().rolled_back_to == target

    simulate(world, story)


def test_an_order_for_which_there_is_too_little_memory_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=98)

    def rebuild(*_: object) -> bool:
        raise MemoryError

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "a")
        await world.reach(3, "a")
        monkeypatch.setattr(rolling_back, "rebuild", rebuild)
        with pytest.raises(OrderError, match="too little memory is free"):
            run_of(world).plan(2)

    simulate(world, story)


def test_work_of_rounds_that_were_taken_back_is_none_that_came_too_late(tmp_path: Path) -> None:
    """An operator is told of stale work, which means a line that is too slow."""
    world = World(tmp_path, seed=97)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "a")
        await world.reach(1, "a")
        node = world.nodes["a"]
        await world.reach(node.inputs.manifest.stale_rounds + 12, "a")
        statement = roll_back(world, depth(world))
        await world.until(lambda: has_left(world, "a", statement.undone), TOGETHER_SECONDS)
        await world.reach(statement.round + 2, "a")
        assert node.participant is not None
        dropped = node.participant.context.work.account.state.dropped
        assert dropped.keys() == {ROLLED_BACK}
        sample = node.first.metrics.registry.get_sample_value
        name = "gossamer_tokens_dropped_total"
        assert sample(name, {"reason": STALE}) == 0
        assert sample(name, {"reason": ROLLED_BACK}) == dropped[ROLLED_BACK] > 0

    simulate(world, story)


def test_a_rollback_goes_deeper_than_a_fork_and_outlives_its_founder(tmp_path: Path) -> None:
    """All nodes are killed after it, and the founder stays away."""
    world = World(tmp_path, seed=91)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(UNDO_ROUNDS_MAX + 6, *"abc")
        target = depth(world)
        statement = roll_back(world, target)
        await world.until(
            lambda: all(has_left(world, name, statement.undone) for name in "abc"),
            TOGETHER_SECONDS,
        )
        await world.until(lambda: all(files_of(world, name).names() for name in "abc"), 5.0)
        for name in "abc":
            world.crash(name)
        await trio.sleep(1.0)
        await nursery.start(world.run, "b")
        await nursery.start(world.run, "c", ["b"])
        await world.until(lambda: world.participant_or_none("c") is not None)
        await world.until(lambda: all(world.round(name) for name in "bc"))
        for name in "bc":
            assert has_left(world, name, statement.undone), "it began with a void round again"
        await world.reach(max(map(world.round, "bc")) + 3, *"bc")
        for name in "bc":
            assert has_left(world, name, statement.undone)
            assert list(world.participant(name).context.rollbacks) == [statement]

    simulate(world, story)


@pytest.mark.long
@pytest.mark.parametrize("dies", [False, True])
def test_an_order_that_the_founders_node_cannot_follow_is_told_to_nobody(
    tmp_path: Path, *, dies: bool
) -> None:
    """Also if the node dies while it tries. Long rounds: the nodes do few while it tries."""
    world = World(tmp_path, seed=92)

    async def story(nursery: trio.Nursery) -> None:
        for name in "abc":
            await nursery.start(world.run, name, [] if name == "a" else ["a"], SlowTrainer)
        await world.reach(34, *"abc", seconds=300.0)
        first, second = world.path("a")[:2]
        order = Rollback(second, first, 1)  # no disk has the state after round 1 any more
        identity, run_id = world.identity("a"), world.nodes["a"].inputs.manifest.run_id
        files = files_of(world, "a")
        files.write(seal(order, identity.peer_id, run_id, identity.sign))
        await world.until(lambda: len(list(world.participant("a").context.rollbacks)) == 1, 5.0)
        if dies:
            world.crash("a")
            await trio.sleep(1.0)
            await nursery.start(world.run, "a", ["b"], SlowTrainer)
            await world.until(lambda: world.participant_or_none("a") is not None)
            assert len(list(world.participant("a").context.rollbacks)) == 1
        await world.until(
            lambda: len(list(world.participant("a").context.rollbacks)) == 0, 2 * ORDER_SECONDS
        )
        reporter = world.nodes["a"].reporter
        assert reporter is not None
        assert "could not go back" in str(reporter.status().rollback_withdrawn)
        assert not files.names()
        await world.reach(world.round("b") + 3, *"abc")
        await world.come_together(*"abc", seconds=TOGETHER_SECONDS)
        assert world.path("a")[:2] == [first, second]
        for name in "bc":
            assert len(list(world.participant(name).context.rollbacks)) == 0

    simulate(world, story)


def test_a_founder_on_a_metered_line_takes_rounds_back_from_its_own_disk(tmp_path: Path) -> None:
    is_metered = False
    use = replace(NOT_USED, is_metered=lambda: is_metered)
    world = World(tmp_path, seed=95, use=use, inner_steps=40)

    async def story(nursery: trio.Nursery) -> None:
        nonlocal is_metered
        await nursery.start(world.run, "a")
        world.use = NOT_USED
        await nursery.start(world.run, "b", ["a"])
        await world.reach(4, *"ab", seconds=300.0)
        is_metered = True
        paused = world.participant("a").progress
        await world.until(lambda: paused.paused_reason == "metered")
        statement = roll_back(world, world.round("a") - 1)
        await world.until(
            lambda: all(has_left(world, name, statement.undone) for name in "ab"), TOGETHER_SECONDS
        )
        assert paused.paused_reason == "metered"
        at = world.round("a")
        assert at == statement.round
        await world.reach(at + 3, "b", seconds=300.0)
        assert world.round("a") == at, "it fetched rounds over the metered line"
        assert list(world.participant("a").context.rollbacks) == [statement]

    simulate(world, story)


def test_a_member_that_sat_out_does_so_no_longer_because_rounds_are_taken_back(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, seed=95)
    out = world.identity("d").peer_id

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(24, *"abcd")
        admissions = [world.participant(name).context.swarm.admission for name in "abc"]
        for name, admission in zip("abc", admissions, strict=True):
            for _ in range(MARKS_MAX):
                admission.partners.found_poor(out, world.round(name))
            assert admission.partners.sits_out(out)
        before, target = world.round("a"), depth(world)
        statement = roll_back(world, target)
        await world.until(
            lambda: all(has_left(world, name, statement.undone) for name in "abc"),
            TOGETHER_SECONDS,
        )
        await world.reach(target + SITS_OUT_ROUNDS + 1, *"abc")
        assert world.round("a") < before, "it would be back by now however that is counted"
        assert not any(admission.partners.sits_out(out) for admission in admissions)

    simulate(world, story)


def test_only_the_founder_takes_rounds_back(tmp_path: Path) -> None:
    world = World(tmp_path, seed=93)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(8, *"abc")
        undone = world.path("a")[5]
        order = Rollback(undone, world.path("a")[4], 5)
        world.participant("b").context.swarm.gossip.say(order)
        await world.reach(world.round("a") + 4, *"ac")
        for name in "ac":
            assert not has_left(world, name, undone)
            assert len(list(world.participant(name).context.rollbacks)) == 0
        with pytest.raises(OrderError, match="only the founder"):
            run_of(world, "b")

    simulate(world, story)


def test_more_than_half_of_the_keepers_take_rounds_back_while_the_founder_is_away(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, seed=94, keepers="bcd")

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abce")
        await world.reach(24, *"abce")
        world.crash("a")
        await world.reach(world.round("b") + 2, *"bce")
        target = world.round("b") - 2  # it stays on the disks while the second keeper decides
        assert run_of(world, "b").plan(target).missing == 1
        statement = roll_back(world, target, "b")
        await world.until(lambda: bool(files_of(world, "c").names()), 5.0)
        await world.reach(world.round("b") + 2, *"bce")
        for name in "bce":
            assert not has_left(world, name, statement.undone), "one of three keepers is no quorum"
            reporter = world.nodes[name].reporter
            assert reporter is not None
            proposal = reporter.status().rollback_proposal
            assert proposal is not None
            assert f"all rounds after {target}" in proposal
        with pytest.raises(OrderError, match="more than half of the keepers"):
            run_of(world, "e")
        assert run_of(world, "c").plan(target).missing == 0
        assert roll_back(world, target, "c") == statement
        await world.until(
            lambda: all(has_left(world, name, statement.undone) for name in "bce"),
            TOGETHER_SECONDS,
        )
        await nursery.start(world.run, "a", ["b"])
        await world.until(lambda: world.participant_or_none("a") is not None)
        await world.reach(world.round("b") + 3, *"abce")
        await world.come_together(*"abce", seconds=TOGETHER_SECONDS)
        for name in "abce":
            assert has_left(world, name, statement.undone)
            assert list(world.participant(name).context.rollbacks) == [statement]

    simulate(world, story)
