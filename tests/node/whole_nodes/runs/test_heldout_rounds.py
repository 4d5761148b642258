"""A held-out loss is shown with the round of the state that it is of: whole nodes in virtual
time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import structlog
import trio
from msgspec.structs import replace

from gossamer.node.base.terminal.text_table import Look
from gossamer.node.commands.views.status_view import status_lines
from gossamer.node.rounds.finish import TRAINER_SECONDS
from gossamer.node.storage.owner_files import LossFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.loss_history import Heldout
from gossamer.node.telemetry.status import Status
from gossamer.trainer.ipc import messages
from tests.node.whole_nodes.runs.test_finished_run import (
    END_SECONDS,
    LAST,
    StoppedTrainer,
    finish,
    phase,
)
from tests.node.whole_nodes.runs.test_rollback import has_left, roll_back
from tests.support.node_world import STEP_SECONDS, NumbersTrainer, World, simulate, start

LATER = 1000
START_SECONDS = 20.0
assert START_SECONDS < TRAINER_SECONDS


def status_of(world: World, name: str) -> Status:
    reporter = world.nodes[name].reporter
    assert reporter is not None
    return reporter.status()


def loss_of(world: World, name: str) -> float:
    """What a `NumbersTrainer` says of the committed state."""
    parameters = world.participant(name).context.committed.parameters
    return float(np.square(parameters, dtype=np.float64).mean())


class SlowlyStarting(NumbersTrainer):
    """Its process takes a while to start."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._since_seconds = trio.current_time()

    @property
    def is_up(self) -> bool:  # type: ignore[override]
        return trio.current_time() >= self._since_seconds + START_SECONDS


class ToldRounds(NumbersTrainer):
    """The mean loss of a round's steps is the round's number."""

    async def train(self, begin: messages.Begin) -> messages.Finished:
        finished = await super().train(begin)
        return replace(finished, loss=float(begin.round)) if finished.tokens else finished


@pytest.mark.parametrize(
    ("codec", "overlap", "fragments"),
    [("fp32", False, 1), ("int4", True, 1), ("fp32", True, 2), ("distro", False, 1)],
)
def test_each_loss_is_that_of_the_state_after_its_round(
    tmp_path: Path, codec: str, overlap: bool, fragments: int
) -> None:
    """With overlap a state is evaluated when the next round is at work already."""
    world = World(
        tmp_path, seed=31, codec=codec, overlap=overlap, fragments=fragments, last_round=LAST,
        wait_for_peers=1, latency_seconds=2 * STEP_SECONDS,
    )  # fmt: skip

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), ToldRounds)
        await nursery.start(world.run, "b", ["a"], ToldRounds)
        losses: dict[int, float] = {}

        def is_over() -> bool:
            if world.participant_or_none("a") is not None:
                losses[world.round("a")] = loss_of(world, "a")
            return phase(world, "a") == "finished"

        await world.until(is_over, END_SECONDS, look_seconds=0.001)
        status = status_of(world, "a")
        points = [each for each in status.loss_history if each.heldout_loss is not None]
        assert len(points) > LAST // 2
        for point in points:
            assert point.heldout_loss == pytest.approx(losses[point.round], rel=1e-6), point.round
        assert (status.heldout_round, status.heldout_loss) == (LAST, points[-1].heldout_loss)
        if codec != "distro":
            trained = [(each.round, each.loss) for each in status.loss_history if each.loss]
            assert trained == [(number, number) for number in range(1, LAST + 1)]

    simulate(world, story)


def test_a_node_that_was_paused_at_the_end_shows_the_round_of_its_own_last_loss(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, seed=32, last_round=LAST, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "a")
        await nursery.start(world.run, "b", ["a"], StoppedTrainer)
        await world.reach(3, *"ab")
        world.nodes["b"].pause()
        await world.until(lambda: phase(world, "b") == "paused")
        before = status_of(world, "b")
        assert before.heldout_loss is not None
        with structlog.testing.capture_logs() as lines:
            await finish(world, *"ab")
        status = status_of(world, "b")
        assert status.round == LAST
        assert (status.heldout_loss, status.heldout_round) == (
            before.heldout_loss, before.heldout_round
        )  # fmt: skip
        assert before.heldout_round is not None
        assert before.heldout_round <= before.round < LAST
        shown = "\n".join(status_lines(status, Look()))
        assert f"{before.heldout_loss:.4f} held-out (of round {before.heldout_round})" in shown
        of_others = "\n".join(status_lines(status_of(world, "a"), Look()))
        assert "held-out (of" not in of_others
        told = [line for line in lines if line["event"].startswith("the run is finished")]
        losses = [line.get("heldout_loss") for line in told]
        assert sorted(losses, key=str) == [round(loss_of(world, "a"), 4), None]

    simulate(world, story)


def test_a_node_whose_trainer_starts_at_the_end_waits_for_it_and_evaluates(tmp_path: Path) -> None:
    world = World(tmp_path, seed=33, last_round=LAST, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(3, *"ab")
        world.crash("b")
        await trio.sleep(1.0)
        await nursery.start(world.run, "b", ["a"], SlowlyStarting)
        await finish(world, *"ab")
        status = status_of(world, "b")
        assert (status.round, status.heldout_round) == (LAST, LAST)
        assert status.heldout_loss == status_of(world, "a").heldout_loss

    simulate(world, story)


def test_a_loss_of_a_state_that_a_power_cut_took_is_not_shown(tmp_path: Path) -> None:
    world = World(tmp_path, seed=35)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "a")
        await world.reach(5, "a")
        world.crash("a")
        await trio.sleep(1.0)
        run_id = world.nodes["a"].inputs.manifest.run_id
        file = LossFile(StateDir(world.root / "a").losses_path, run_id)
        file.save((), 1, Heldout(LATER, 2.5))
        await nursery.start(world.run, "a", (), SlowlyStarting)
        await world.until(lambda: phase(world, "a") == "syncing")
        await trio.sleep(START_SECONDS / 2)
        status = status_of(world, "a")
        assert 0 < status.round < LATER
        assert (status.heldout_loss, status.heldout_round) == (None, None)

    simulate(world, story)


def test_a_loss_of_a_round_that_was_taken_back_is_not_shown(tmp_path: Path) -> None:
    world = World(tmp_path, seed=34)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(12, *"ab")
        world.nodes["b"].pause()
        await world.until(lambda: phase(world, "b") == "paused")
        before = status_of(world, "b")
        assert before.heldout_round is not None
        statement = roll_back(world, before.heldout_round - 4)
        await world.until(lambda: has_left(world, "b", statement.undone), END_SECONDS)
        await trio.sleep(0.1)
        status = status_of(world, "b")
        assert status.round >= statement.round
        assert (status.heldout_loss, status.heldout_round) == (None, None)
        assert [point.round for point in status.loss_history][-1] <= statement.round
        await trio.sleep(20)
        gauge = world.nodes["b"].first.metrics.registry.get_sample_value("gossamer_heldout_loss")
        assert gauge != gauge, "NaN"

    simulate(world, story)
