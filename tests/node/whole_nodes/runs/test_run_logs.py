"""The log of a run by whole nodes: every round and sampled steps, also over a restart."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import trio

from gossamer.node.app.reporting.run_logs import log_name
from tests.node.whole_nodes.faults.test_restarts import start_again, status_of
from tests.support.node_world import World, simulate


@pytest.fixture(autouse=True)
def tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard is not installed: pip install '.[tensorboard]'")


def run_a_restart(world: World) -> list[int]:
    """Runs a node in two lives; returns the rounds that it had reached at the end of each."""
    reached: list[int] = []

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(5, "a")
        reached.append(world.round("a"))
        world.crash("a")
        await start_again(world, nursery)
        await world.reach(reached[0] + 4, "a")
        reached.append(world.round("a"))
        status = status_of(world, "a")
        assert status.bits_per_byte is not None
        assert status.heldout_bits_per_byte is not None
        assert status.step_times is not None

    simulate(world, story)
    return reached


def curves_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(each.step, each.value) for each in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_a_restart_goes_on_with_the_same_curves(tmp_path: Path) -> None:
    world = World(tmp_path, seed=1, settings={"log_to": ("tensorboard",)})
    _, last = run_a_restart(world)
    (folder,) = (tmp_path / "a" / "logs" / "tensorboard").iterdir()
    assert len(list(folder.iterdir())) == 2, "a file for each life"
    curves = curves_of(folder)
    rounds = [number for number, _ in curves["round/loss"]]
    assert set(rounds) >= set(range(1, last)), "every round is there"
    assert {
        "round/bits_per_byte", "round/heldout_loss", "round/heldout_bits_per_byte",
        "round/bytes_sent", "round/seconds", "round/tokens_per_second", "round/swarm_tokens",
        "step/loss", "step/bits_per_byte", "step/gradient_norm", "step/learning_rate",
        "step/round", "step/tokens_per_second", "step/forward_seconds", "step/backward_seconds",
        "step/optimizer_seconds", "step/data_seconds", "step/handover_seconds",
    } <= set(curves)  # fmt: skip
    assert "step/mfu" not in curves, "not known here"
    assert 0 < len(curves["step/loss"]) < len(rounds) * 4, "inner steps are sampled"
    assert dict(curves["round/bits_per_byte"])[3] == pytest.approx(0.7213, abs=1e-3)


def test_nodes_that_share_a_folder_have_logs_of_their_own(tmp_path: Path) -> None:
    shared = tmp_path / "curves"
    world = World(
        tmp_path, seed=2, settings={"log_to": ("tensorboard",), "log_folder": str(shared)}
    )

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ("a",))
        await world.reach(world.round("a") + 6, "a", "b")

    simulate(world, story)
    assert len(list((shared / "tensorboard").iterdir())) == 2
    assert not (tmp_path / "a" / "logs").exists()


def test_the_name_of_a_log_fits_a_file_and_holds_no_character_of_others() -> None:
    assert log_name("../My run\n", "ab" * 32, "12D3KooWabcdefgh") == "My-run-abababab-abcdefgh"
    assert log_name("木", "ab" * 32, "12D3KooWabcdefgh") == "abababab-abcdefgh"
    assert len(log_name("x" * 500, "ab" * 32, "12D3KooWabcdefgh")) <= 64
