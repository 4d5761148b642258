"""A run ends: whole nodes in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.runs.governance.rolling_back import RollbackDesk
from gossamer.node.runs.governance.signed_orders import SignersRun
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest
from tests.support.balance import is_balanced
from tests.support.node_world import NumbersTrainer, World, headers_of, simulate, start

LAST = 9
END_SECONDS = 120.0
"""Time for a run to end, in virtual time: rounds take half a second."""


def phase(world: World, name: str) -> str:
    participant = world.participant_or_none(name)
    return participant.progress.phase if participant is not None else ""


async def finish(world: World, *names: str) -> None:
    await world.until(lambda: all(phase(world, name) == "finished" for name in names), END_SECONDS)


def assert_final(world: World, *names: str) -> None:
    """All have the same state, of the last round, as a whole on their disks."""
    assert [world.round(name) for name in names] == [LAST] * len(names)
    world.assert_one_chain(*names)
    assert len({world.path(name)[-1] for name in names}) == 1
    for name in names:
        committed = world.participant(name).context.committed
        assert committed.checkpoint_round == LAST
        assert committed.blocks.has_state(committed.head)


class StoppedTrainer(NumbersTrainer):
    """Counts how often it was stopped and started again."""

    suspended = 0
    resumed = 0

    async def suspend(self) -> None:
        await super().suspend()
        self.is_up = False
        self.suspended += 1

    def resume(self) -> None:
        self.is_up = True
        self.resumed += 1


MODES: Sequence[tuple[str, bool, int]] = [
    ("fp32", False, 1), ("int4", True, 1), ("fp32", False, 2), ("fp32", True, 2),
    ("sparse", False, 1), ("distro", False, 1),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "overlap", "fragments"), MODES)
def test_all_end_with_the_same_state_and_train_no_more(
    tmp_path: Path, codec: str, overlap: bool, fragments: int
) -> None:
    world = World(
        tmp_path, seed=3, codec=codec, overlap=overlap, fragments=fragments, last_round=LAST,
        wait_for_peers=2,
    )  # fmt: skip

    async def story(nursery: trio.Nursery) -> None:
        for name in "abc":
            await nursery.start(world.run, name, ["a"][: name != "a"], StoppedTrainer)
        await finish(world, *"abc")
        assert_final(world, *"abc")
        assert sum(len(header.members) for header in headers_of(world, "a")) > LAST
        trained = [world.participant(name).context.work.status.trained for name in "abc"]
        manifest = world.nodes["a"].inputs.manifest
        step_tokens = manifest.inner.sequences_per_step * manifest.model.context
        planned = manifest.inner.total_steps * step_tokens
        await trio.sleep(60)
        assert_final(world, *"abc")
        for name, before in zip("abc", trained, strict=True):
            context = world.participant(name).context
            assert context.work.status.trained == before
            assert before <= planned, "trained ahead for a round that there is not"
            assert is_balanced(context.work.account)
            assert isinstance(context.trainer, StoppedTrainer)
            assert (context.trainer.suspended, context.trainer.resumed) == (1, 0)
        assert phase(world, "b") == "finished"
        assert world.participant("b").progress.heldout_loss_of(LAST) is not None

    simulate(world, story)


def test_one_that_was_away_and_a_newcomer_get_the_final_state(tmp_path: Path) -> None:
    world = World(tmp_path, seed=4, last_round=LAST, checkpoint_rounds=50)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(3, *"abc")
        world.crash("c")
        await finish(world, *"ab")
        await trio.sleep(600)
        await nursery.start(world.run, "c", ["a"])
        await nursery.start(world.run, "d", ["b"])
        await finish(world, *"abcd")
        assert_final(world, *"abcd")
        store = BlockStore(StateDir(world.root / "d").blocks_path, 1 << 30)
        averages = [Digest(header.update_digest) for header in headers_of(world, "d")]
        assert not any(map(store.has, averages)), "the newcomer has replayed rounds"

    simulate(world, story)


@pytest.mark.parametrize("seed", range(4))
def test_a_member_that_dies_in_the_last_ring_comes_back_for_the_final_state(
    tmp_path: Path, seed: int
) -> None:
    world = World(tmp_path, seed=50 + seed, last_round=LAST)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")

        def is_in_last_ring() -> bool:
            participant = world.participant_or_none("c")
            return (
                participant is not None
                and world.round("c") == LAST - 1
                and len(participant.rounds.ring) > 1
            )

        await world.until(is_in_last_ring, END_SECONDS)
        world.crash("c")
        await finish(world, *"ab")
        await nursery.start(world.run, "c", ["a"])
        await finish(world, *"abc")
        assert_final(world, *"abc")

    simulate(world, story)


def test_nodes_leave_when_their_time_is_over_and_a_restart_serves_again(tmp_path: Path) -> None:
    world = World(tmp_path, seed=5, last_round=LAST, serve_after="10m")
    left: dict[str, float] = {}

    async def story(nursery: trio.Nursery) -> None:
        async def live(name: str, seeds: Sequence[str]) -> None:
            await world.run(name, seeds)
            left[name] = trio.current_time()

        nursery.start_soon(live, "a", [])
        await world.until(lambda: "a" in world.nodes)
        nursery.start_soon(live, "b", ["a"])
        await world.until(lambda: world.participant_or_none("b") is not None)
        await finish(world, *"ab")
        since = trio.current_time()
        await world.until(lambda: len(left) == 2, 1000.0, look_seconds=1.0)
        assert all(595 < seconds - since < 620 for seconds in left.values()), left
        assert all(world.participant(name).is_finished for name in "ab")
        left.clear()
        nursery.start_soon(live, "a", [])
        await world.until(lambda: phase(world, "a") == "finished")
        since = trio.current_time()
        await world.until(lambda: "a" in left, 1000.0, look_seconds=1.0)
        assert 595 < left["a"] - since < 620

    simulate(world, story)


def test_nodes_that_serve_no_time_wait_for_the_slowest_member(tmp_path: Path) -> None:
    world = World(tmp_path, seed=6, last_round=LAST, serve_after="0", latency_seconds=0.2)
    finals: dict[str, int] = {}

    async def story(nursery: trio.Nursery) -> None:
        async def live(name: str, seeds: Sequence[str]) -> None:
            await world.run(name, seeds)
            finals[name] = world.round(name)

        nursery.start_soon(live, "a", [])
        await world.until(lambda: "a" in world.nodes)
        for name in "bcd":
            nursery.start_soon(live, name, ["a"])
        await world.until(lambda: len(finals) == 4, END_SECONDS)
        assert finals == dict.fromkeys("abcd", LAST)
        assert len({world.path(name)[-1] for name in "abcd"}) == 1

    simulate(world, story)


def test_a_paused_node_is_finished_with_the_others(tmp_path: Path) -> None:
    world = World(tmp_path, seed=7, last_round=LAST)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(3, *"abc")
        world.participant("c").pause()
        await finish(world, *"abc")
        assert_final(world, *"abc")

    simulate(world, story)


def test_rounds_that_are_taken_back_are_trained_again(tmp_path: Path) -> None:
    world = World(tmp_path, seed=8, last_round=LAST)

    async def story(nursery: trio.Nursery) -> None:
        for name in "abc":
            await nursery.start(world.run, name, ["a"][: name != "a"], StoppedTrainer)
        await finish(world, *"abc")
        before = world.path("a")
        state_dir = StateDir(world.root / "a")
        manifest, identity = world.nodes["a"].inputs.manifest, world.identity("a")
        run = RollbackDesk(SignersRun(manifest, identity, state_dir), 1 << 30)
        target = max(entry.round for entry in world.participant("a").context.committed.checkpoints
                     if entry.round < LAST)  # fmt: skip
        run.roll_back(run.plan(target))
        await world.until(
            lambda: all(before[-1] not in world.path(name) for name in "abc"), END_SECONDS
        )
        await finish(world, *"abc")
        assert_final(world, *"abc")
        assert world.path("a")[:target] == before[:target]
        assert world.path("a")[-1] != before[-1]

    simulate(world, story)


def test_a_node_that_only_serves_takes_any_limit_of_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rounds are over, so that none of them lasts longer by it."""
    world = World(tmp_path, seed=5, last_round=LAST)
    slow = {"upload": "0.5"}

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(3, *"ab")
        first = world.nodes["a"].first
        fast = replace(first.hardware.capacity(), tokens_per_second=1e6)
        monkeypatch.setattr(first.hardware, "capacity", lambda: fast)
        with pytest.raises(ConfigError, match="too few"):
            await first.limits.change(slow)
        await finish(world, *"ab")
        assert await first.limits.change(slow) == ""
        assert first.limits.settings.up_limit == ("0.5",)

    simulate(world, story)
