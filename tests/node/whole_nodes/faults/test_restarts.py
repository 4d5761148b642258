"""What a node keeps over a restart besides its state: the pause, and the curve of losses."""

from __future__ import annotations

from pathlib import Path

import trio

from gossamer.node.telemetry.status import Status
from tests.support.node_world import NumbersTrainer, World, simulate


def status_of(world: World, name: str) -> Status:
    reporter = world.nodes[name].reporter
    assert reporter is not None
    return reporter.status()


def phase_of(world: World, name: str) -> str:
    participant = world.participant_or_none(name)
    return "" if participant is None else participant.progress.phase


async def start_again(world: World, nursery: trio.Nursery) -> None:
    await trio.sleep(1.0)  # virtual: the old life lets its folder go
    del world.nodes["a"]
    await nursery.start(world.run, "a")


def test_a_pause_holds_over_restarts_until_it_is_resumed(tmp_path: Path) -> None:
    world = World(tmp_path, seed=1)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(3, "a")
        world.nodes["a"].pause()
        await world.until(lambda: phase_of(world, "a") == "paused")
        for _ in range(2):
            world.crash("a")
            await start_again(world, nursery)
            await world.until(lambda: phase_of(world, "a") == "paused")
            held = world.round("a")
            await trio.sleep(60)
            assert world.round("a") == held
            assert status_of(world, "a").paused_reason == "user"
        world.nodes["a"].resume()
        await world.reach(held + 2, "a")
        world.crash("a")
        await start_again(world, nursery)
        await world.reach(held + 4, "a")

    simulate(world, story)


class SuspendableTrainer(NumbersTrainer):
    """It is down from `suspend` to `resume`, as the real one is."""

    async def suspend(self) -> None:
        await super().suspend()
        self.is_up = False

    def resume(self) -> None:
        self.is_up = True


def test_a_node_is_resumed_while_it_still_joins(tmp_path: Path) -> None:
    """Its trainer was suspended at the start, before the node came to its pause."""
    world = World(tmp_path, seed=8)
    (tmp_path / "a").mkdir()

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), SuspendableTrainer)
        await world.reach(2, "a")
        world.crash("a")
        await trio.sleep(1.0)
        (tmp_path / "a" / "paused").touch()
        del world.nodes["a"]
        await nursery.start(world.run, "a", (), SuspendableTrainer)
        world.nodes["a"].resume()
        await world.reach(4, "a")

    simulate(world, story)


def test_metrics_name_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, seed=6)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        node = world.nodes["a"]
        run = {"run": f"numbers {node.inputs.manifest.run_id.hex()[:8]}"}
        assert node.first.metrics.registry.get_sample_value("gossamer_run_info", run) == 1

    simulate(world, story)


def test_disk_use_is_that_of_the_whole_directory(tmp_path: Path) -> None:
    """The quota limits the blocks; the metric of them measures the same."""
    world = World(tmp_path, seed=7)

    def files(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(3, "a")
        world.nodes["a"].pause()
        await world.until(lambda: phase_of(world, "a") == "paused")
        (tmp_path / "a" / "trainer" / "optimizer").write_bytes(bytes(50_000))
        await trio.sleep(60)
        node, root = world.nodes["a"], tmp_path / "a"

        def metric(kind: str) -> float | None:
            return node.first.metrics.registry.get_sample_value(
                "gossamer_disk_used_bytes", {"kind": kind}
            )

        assert metric("blocks") == files(root / "blocks")
        assert metric("other") == files(root) - files(root / "blocks")
        assert 0 < (metric("pinned") or 0) <= files(root / "blocks")
        assert node.reporter is not None
        assert node.reporter.status().disk_used_bytes == files(root)

    simulate(world, story)


def test_a_paused_node_without_a_state_draws_none_until_it_is_resumed(tmp_path: Path) -> None:
    """Its trainer does not run, and the initial weights need the device."""
    world = World(tmp_path, seed=2)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "paused").touch()

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.until(lambda: phase_of(world, "a") == "paused")
        await trio.sleep(60)
        assert not world.participant("a").context.committed.is_loaded
        world.nodes["a"].resume()
        await world.reach(2, "a")

    simulate(world, story)


def test_a_node_that_was_started_paused_leaves_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, seed=3)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "paused").touch()

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.until(lambda: phase_of(world, "a") == "paused")
        world.nodes["a"].leave()
        await world.until(lambda: phase_of(world, "a") == "leaving")

    simulate(world, story)


def test_the_curve_and_the_heldout_loss_survive_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, seed=4)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.until(lambda: world.round("a") >= 40, seconds=600)
        await world.until(lambda: status_of(world, "a").heldout_loss is not None)
        world.nodes["a"].leave()
        await world.until(lambda: phase_of(world, "a") == "leaving")
        await trio.sleep(5)
        before = status_of(world, "a")
        assert len(before.loss_history) > 20
        await start_again(world, nursery)
        await world.until(lambda: phase_of(world, "a") not in ("", "joining"))
        after = status_of(world, "a")
        rounds = [point.round for point in after.loss_history]
        assert after.loss_history[: len(before.loss_history)] == before.loss_history
        assert rounds == sorted(set(rounds))
        assert after.heldout_loss is not None

    simulate(world, story)


def test_a_kill_costs_at_most_the_newest_part_of_the_curve(tmp_path: Path) -> None:
    world = World(tmp_path, seed=5)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.until(lambda: world.round("a") >= 80, seconds=600)
        before = status_of(world, "a").loss_history
        world.crash("a")
        await start_again(world, nursery)
        await world.until(lambda: phase_of(world, "a") not in ("", "joining"))
        after = status_of(world, "a").loss_history
        assert len(after) > len(before) / 2
        assert after[: len(before)] == before[: len(after)]

    simulate(world, story)
