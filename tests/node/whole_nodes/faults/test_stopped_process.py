"""A process that was stopped goes on with the others, whole nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.rounds.round_driver import HEARING_SECONDS, RoundDriver
from gossamer.protocol.wire.statements import Roster, Signed, Statement
from tests.node.whole_nodes.stopped_process import stopped
from tests.support.node_world import STEP_SECONDS, NumbersTrainer, World, newest_header, simulate

STOPPED_SECONDS = 4.5
"""Longer than a round waits for a peer (3 s), and less than a member may be silent."""


class LaterTrainer(NumbersTrainer):
    step_seconds = 1.5 * STEP_SECONDS


def noted_rosters(monkeypatch: pytest.MonkeyPatch) -> list[Roster]:
    """The rosters that nodes publish from now on; grows."""
    noted: list[Roster] = []
    publish = RoundDriver.publish

    def note(driver: RoundDriver, signed: Signed, statement: Statement) -> None:
        if isinstance(statement, Roster):
            noted.append(statement)
        publish(driver, signed, statement)

    monkeypatch.setattr(RoundDriver, "publish", note)
    return noted


@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_was_stopped_while_it_waited_does_not_go_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The other one has asked it into a ring meanwhile, and waits for it."""
    world = World(tmp_path, seed)
    rosters = noted_rosters(monkeypatch)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"], LaterTrainer)
        await world.reach(4, "a", "b")
        before = world.round("a")

        def waits() -> bool:
            return (
                world.round("a") > before and world.participant("a").progress.phase == "averaging"
            )

        await world.until(waits)
        number = world.round("a")
        rosters.clear()
        with stopped(world, "a"):
            await trio.sleep(STOPPED_SECONDS)
            assert world.round("b") == number
        with trio.fail_after(HEARING_SECONDS):
            await world.reach(number + 1, "a", "b")
        of_round = [len(each.members) for each in rosters if each.round == number + 1]
        assert set(of_round) == {2}
        assert len(newest_header(world, "b").members) == 2
        world.assert_one_chain("a", "b")

    simulate(world, story)


def test_a_node_whose_peers_died_while_it_was_stopped_goes_on_alone(tmp_path: Path) -> None:
    world = World(tmp_path, seed=5)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        nursery.start_soon(world.run, "b", ["a"], LaterTrainer)
        await world.until(lambda: world.participant_or_none("b") is not None)
        await world.reach(4, "a", "b")
        before = world.round("a")
        with stopped(world, "a"):
            await trio.sleep(STOPPED_SECONDS)
            world.crash("b")
            await trio.sleep(STOPPED_SECONDS)
        await world.reach(before + 3, "a", seconds=2 * world.gather_seconds)

    simulate(world, story)
