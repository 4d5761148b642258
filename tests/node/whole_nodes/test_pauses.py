"""When a node trains: its owner's hours and orders, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import trio

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.machine.machine_use import Idle, MachineUse
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.telemetry.status import PauseStatus, Status
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL
from tests.support.node_world import (
    STEP_SECONDS,
    NumbersTrainer,
    World,
    headers_of,
    simulate,
    tokens_of,
)

if TYPE_CHECKING:
    from trio_typing import TaskStatus

# The virtual clock begins on 14 November 2023 at 22:13:20 UTC.


def status_of(world: World, name: str = "a") -> Status:
    reporter = world.nodes[name].reporter
    assert reporter is not None
    return reporter.status()


def phase_of(world: World, name: str = "a") -> str:
    participant = world.participant_or_none(name)
    return "" if participant is None else participant.progress.phase


async def until_paused(world: World, reason: str, name: str = "a") -> Status:
    await world.until(
        lambda: (
            phase_of(world, name) == "paused" and status_of(world, name).paused_reason == reason
        ),
        seconds=30,
    )
    return status_of(world, name)


async def start_again(world: World, nursery: trio.Nursery) -> None:
    world.crash("a")
    await trio.sleep(1.0)  # virtual: the old life lets its folder go
    del world.nodes["a"]
    await nursery.start(world.run, "a", (), StoppableTrainer)


class StoppableTrainer(NumbersTrainer):
    """It is down from `suspend` to `resume`, as the real one is, and counts what it does."""

    num_starts = 0

    async def suspend(self) -> None:
        await super().suspend()
        self.is_up = False

    def resume(self) -> None:
        self.is_up = True
        type(self).num_starts += 1


class FewRounds(StoppableTrainer):
    """For stories in which time counts, and rounds do not."""

    step_seconds = 10 * STEP_SECONDS


def test_the_schedule_is_changed_on_the_running_node(tmp_path: Path) -> None:
    world = World(tmp_path, seed=1, settings={"work_hours": "22:00-23:00"})

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(2, "a")
        node = world.nodes["a"]
        with pytest.raises(ConfigError, match="write them as 22:00-07:00"):
            await node.set_limits({"work_hours": "never", "on_battery": "on"})
        await node.set_limits({"work_hours": "01:00-02:00"})
        status = await until_paused(world, "schedule")
        assert status.resumes_at == "2023-11-15T01:00:00+00:00"
        rule = next(each for each in status.schedule if each.name == "work_hours")
        assert (rule.text, rule.source) == ("01:00-02:00", "schedule set")
        await node.set_limits({"work_hours": "default"})
        await world.reach(world.round("a") + 2, "a")
        assert {each.source for each in status_of(world).schedule} == {"settings"}

    simulate(world, story)


def test_a_node_trains_within_its_hours_only(tmp_path: Path) -> None:
    world = World(tmp_path, seed=1, settings={"work_hours": "22:00-22:14, 22:20-23:00"})

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(2, "a")
        assert status_of(world).pauses == ()
        await trio.sleep(60)
        status = await until_paused(world, "schedule")
        assert status.resumes_at == "2023-11-14T22:20:00+00:00"
        assert status.pauses == (
            PauseStatus(reason="schedule", resumes_at="2023-11-14T22:20:00+00:00"),
        )
        held = world.round("a")
        await trio.sleep(300)
        assert world.round("a") == held
        await world.reach(held + 2, "a")
        assert status_of(world).pauses == ()
        assert status_of(world).resumes_at is None

    simulate(world, story)


def test_a_node_that_starts_outside_of_its_hours_waits_for_them(tmp_path: Path) -> None:
    """Nothing takes the device before they begin, and nobody has to resume."""
    world = World(tmp_path, seed=2, settings={"work_hours": "22:20-23:00"})

    async def story(nursery: trio.Nursery) -> None:
        StoppableTrainer.num_starts = 0
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await until_paused(world, "schedule")
        await trio.sleep(300)
        assert StoppableTrainer.num_starts == 0
        assert not world.participant("a").context.committed.is_loaded
        await trio.sleep(100)
        await world.reach(2, "a")

    simulate(world, story)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_node_finishes_its_round_and_leaves(tmp_path: Path, overlap: bool) -> None:
    world = World(tmp_path, seed=15, overlap=overlap)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        left = trio.Event()

        async def run_b(task_status: TaskStatus[None]) -> None:
            await world.run("b", ["a"], task_status=task_status)
            left.set()

        await nursery.start(run_b)
        await world.reach(3, "a", "b")
        await world.until(lambda: phase_of(world, "b") == "training", seconds=30)
        b = world.participant("b")
        # The newest order counts.
        b.finish()
        assert status_of(world, "b").leaves_after_round
        b.resume()
        last = world.round("b") + 2
        await world.reach(last, "b")
        await world.until(lambda: phase_of(world, "b") == "training", seconds=30)
        b.finish()
        number = world.round("b") + 1
        with trio.fail_after(60):
            await left.wait()
        (header,) = (each for each in headers_of(world, "b") if each.round == number)
        assert tokens_of(world, header, "b") > 0
        assert world.round("b") == number
        assert b.context.work.status.carried == 0

    simulate(world, story)


def test_a_node_that_is_leaving_says_so_at_once(tmp_path: Path) -> None:
    """Its round goes on for up to 20 s, and then the disk may take a while."""
    world = World(tmp_path, seed=16)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        await world.until(lambda: phase_of(world) == "training", seconds=30)
        node = world.nodes["a"]
        node.pause()
        await until_paused(world, "user")
        node.leave()
        status = status_of(world)
        assert (status.phase, status.paused_reason, status.pauses) == ("leaving", None, ())
        assert node.reporter is not None
        assert node.reporter.line().startswith("leaving, round ")

    simulate(world, story)


def test_a_pause_that_ends_by_itself_takes_back_no_order_to_finish(tmp_path: Path) -> None:
    world = World(tmp_path, seed=17, inner_steps=400)

    async def story(nursery: trio.Nursery) -> None:
        left = trio.Event()

        async def run_a(task_status: TaskStatus[None]) -> None:
            await world.run("a", (), task_status=task_status)
            left.set()

        await nursery.start(run_a)
        await world.reach(1, "a")
        progress = world.participant("a").progress
        await world.until(lambda: 0 < progress.inner_step < 100)
        node, before = world.nodes["a"], world.round("a")
        node.pause(5, after_round=True)
        assert await node.order_kept() == ""
        node.finish()
        with trio.fail_after(100):
            await left.wait()
        assert world.round("a") == before + 1

    simulate(world, story)


def test_a_node_that_does_not_train_has_nothing_to_finish(tmp_path: Path) -> None:
    world = World(tmp_path, seed=16)

    async def story(nursery: trio.Nursery) -> None:
        left = trio.Event()

        async def run_a(task_status: TaskStatus[None]) -> None:
            await world.run("a", (), StoppableTrainer, task_status=task_status)
            left.set()

        await nursery.start(run_a)
        await world.reach(1, "a")
        world.nodes["a"].pause()
        await until_paused(world, "user")
        world.nodes["a"].finish()
        with trio.fail_after(10):
            await left.wait()

    simulate(world, story)


def test_the_owners_pause_and_the_hours_end_each_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path, seed=3, settings={"work_hours": "22:00-22:14, 22:20-23:00"})

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(1, "a")
        world.nodes["a"].pause()
        await until_paused(world, "user")
        await trio.sleep(60)
        status = status_of(world)
        assert [pause.reason for pause in status.pauses] == ["user", "schedule"]
        assert (status.paused_reason, status.resumes_at) == ("user", None)
        # Resuming does not overrule the hours, and does not start the trainer.
        StoppableTrainer.num_starts = 0
        world.nodes["a"].resume()
        status = await until_paused(world, "schedule")
        held = world.round("a")
        await trio.sleep(60)
        assert world.round("a") == held
        assert StoppableTrainer.num_starts == 0
        # The hours do not overrule the owner.
        world.nodes["a"].pause()
        await until_paused(world, "user")
        await trio.sleep(600)
        assert [pause.reason for pause in status_of(world).pauses] == ["user"]
        assert world.round("a") == held
        await start_again(world, nursery)
        await until_paused(world, "user")
        world.nodes["a"].resume()
        await world.reach(held + 2, "a")

    simulate(world, story)


def test_a_clock_that_is_set_counts_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, seed=4, settings={"work_hours": "22:00-23:00"})

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(1, "a")
        world.clock_ahead_seconds = 3600
        status = await until_paused(world, "schedule")
        assert status.resumes_at == "2023-11-15T22:00:00+00:00"
        world.clock_ahead_seconds = 0
        await world.until(lambda: status_of(world).pauses == (), seconds=6)
        await world.reach(world.round("a") + 2, "a")

    simulate(world, story)


def test_a_pause_for_some_time_ends_by_itself_also_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, seed=5)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(1, "a")
        world.nodes["a"].pause(600)
        status = await until_paused(world, "user")
        assert (status.resumes_at or "").startswith("2023-11-14T22:2")
        held = world.round("a")
        await trio.sleep(300)
        await start_again(world, nursery)
        again = await until_paused(world, "user")
        assert again.resumes_at == status.resumes_at
        await trio.sleep(280)
        assert world.round("a") == held
        assert (tmp_path / "a" / "paused").exists()
        await trio.sleep(30)
        await world.reach(held + 2, "a")
        assert status_of(world).pauses == ()
        assert not (tmp_path / "a" / "paused").exists()
        # The end of a pause may come while no node runs.
        world.nodes["a"].pause(60)
        held = (await until_paused(world, "user")).round
        world.clock_ahead_seconds = 61
        await start_again(world, nursery)
        await world.reach(held + 2, "a")

    simulate(world, story)


def test_setting_the_clock_makes_no_pause_longer(tmp_path: Path) -> None:
    world = World(tmp_path, seed=6)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(1, "a")
        world.nodes["a"].pause(600)
        held = (await until_paused(world, "user")).round
        world.clock_ahead_seconds = -86_400
        await trio.sleep(300)
        assert world.round("a") == held
        await trio.sleep(310)
        await world.reach(held + 2, "a")
        # The machine sleeps: the clock on the wall goes on, that of the process does not.
        world.nodes["a"].pause(600)
        held = (await until_paused(world, "user")).round
        world.clock_ahead_seconds += 700
        await trio.sleep(6)
        await world.reach(held + 2, "a")

    simulate(world, story)


def test_an_order_of_the_owner_replaces_the_one_before(tmp_path: Path) -> None:
    """The end of the earlier pause does not end the later one."""
    world = World(tmp_path, seed=7)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(1, "a")
        world.nodes["a"].pause(60)
        held = (await until_paused(world, "user")).round
        await trio.sleep(30)
        world.nodes["a"].pause()
        await trio.sleep(120)
        assert (phase_of(world), world.round("a")) == ("paused", held)
        assert status_of(world).resumes_at is None

    simulate(world, story)


def test_a_pause_after_the_round_lets_it_end(tmp_path: Path) -> None:
    world = World(tmp_path, seed=8, inner_steps=400)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(1, "a")
        progress = world.participant("a").progress
        await world.until(lambda: 0 < progress.inner_step < 200)
        world.nodes["a"].pause(after_round=True)
        await world.until(lambda: status_of(world).pauses != ())
        status = status_of(world)
        assert (status.phase, status.paused_reason) == ("training", None)
        assert status.pauses == (PauseStatus(reason="user", after_round=True),)
        before = world.round("a")
        await world.until(lambda: phase_of(world) == "paused", seconds=600)
        assert world.round("a") == before + 1
        last = progress.last_round
        assert last is not None
        assert last.outcome == "committed"
        assert status_of(world).work is not None
        await trio.sleep(60)
        assert world.round("a") == before + 1
        world.nodes["a"].resume()
        await world.reach(before + 2, "a")
        # A round that ended with the process is over, too.
        await world.until(lambda: 0 < progress.inner_step < 200)
        world.nodes["a"].pause(after_round=True)
        await world.until(lambda: (tmp_path / "a" / "paused").exists())
        await start_again(world, nursery)
        assert (await until_paused(world, "user")).round == before + 2

    simulate(world, story)


LONG_IDLE = Idle(1e6, "test")


@dataclass
class Machine:
    """What its owner does with it, as a test says. None for a reader that fails."""

    is_on_battery: bool | None = False
    programs: tuple[str, ...] | None = ()
    idle: Idle | None = LONG_IDLE
    sees: bool = True
    is_metered: bool | None = False
    num_looks: int = 0

    @property
    def use(self) -> MachineUse:
        return MachineUse(
            self._battery,
            self._programs,
            lambda: self.idle,
            lambda: self.sees,
            is_metered=lambda: self.is_metered,
        )

    def _battery(self) -> bool | None:
        if self.is_on_battery is None:
            raise OSError("a file of the kernel is damaged")
        return self.is_on_battery

    def _programs(self, names: Sequence[str]) -> tuple[str, ...]:
        self.num_looks += 1
        if self.programs is None:
            raise psutil.AccessDenied(1)
        return tuple(name for name in self.programs if name in names)


IN_USE: dict[str, int | tuple[str, ...]] = {"pause_for": ("blender",), "only_when_idle": 300}


def test_a_machine_that_is_used_is_its_owners(tmp_path: Path) -> None:
    machine = Machine()
    world = World(tmp_path, seed=9, settings=IN_USE, use=machine.use)

    async def held_and_free(reason: str, text: str) -> None:
        status = await until_paused(world, reason)
        assert status.pauses == (PauseStatus(reason=reason, text=text),)
        assert status.resumes_at is None
        held = world.round("a")
        await trio.sleep(60)
        assert world.round("a") == held

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(1, "a")
        machine.is_on_battery = True
        await held_and_free("battery", "the machine runs on its battery")
        machine.is_on_battery, machine.programs = False, ("blender", "firefox")
        await held_and_free("process", "blender runs")
        machine.programs, machine.idle = (), Idle(3, "test")
        await held_and_free("idle", "somebody uses the machine")
        machine.idle = Idle(300, "test")
        await world.reach(world.round("a") + 2, "a")

    simulate(world, story)


def test_the_processes_are_listed_every_five_seconds(tmp_path: Path) -> None:
    machine = Machine()
    world = World(tmp_path, seed=10, settings=IN_USE, use=machine.use)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), FewRounds)
        await world.reach(1, "a")
        machine.num_looks = 0
        await trio.sleep(100)
        assert 19 <= machine.num_looks <= 21

    simulate(world, story)


def test_readers_that_fail_stop_nothing_and_are_told_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(is_on_battery=None, programs=None, idle=None)
    world = World(tmp_path, seed=11, settings=IN_USE, use=machine.use)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), FewRounds)
        await world.reach(1, "a")
        await trio.sleep(60)
        assert status_of(world).pauses == ()
        # They answer again, and count again.
        machine.programs = ("blender",)
        await until_paused(world, "process")

    simulate(world, story)
    printed = capsys.readouterr().out
    assert "programs of other users are hidden" not in printed
    for setting in ("on_battery", "pause_for", "only_when_idle"):
        assert printed.count(f"{setting} may have no effect on this machine") == 1


def test_programs_that_are_hidden_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the node's own user may be visible all the same, and count."""
    machine = Machine(sees=False)
    world = World(tmp_path, seed=12, settings=IN_USE, use=machine.use)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), StoppableTrainer)
        await world.reach(1, "a")
        machine.programs = ("blender",)
        await until_paused(world, "process")

    simulate(world, story)
    assert capsys.readouterr().out.count("programs of other users are hidden") == 1


class SlowToStop(StoppableTrainer):
    """It takes the owner's device for a while after it was told to stop."""

    async def suspend(self) -> None:
        self.is_up = False
        await trio.sleep(12)


def test_a_cause_that_comes_back_while_the_trainer_stops_is_obeyed(tmp_path: Path) -> None:
    """The trainer that was started in between stops, too."""
    machine = Machine()
    world = World(tmp_path, seed=13, use=machine.use)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), SlowToStop)
        await world.reach(1, "a")
        trainer = world.participant("a").context.trainer
        machine.is_on_battery = True
        await world.until(lambda: not trainer.is_up, seconds=30)
        machine.is_on_battery = False
        await world.until(lambda: trainer.is_up, seconds=6)
        machine.is_on_battery = True
        await until_paused(world, "battery")
        await trio.sleep(30)
        assert phase_of(world) == "paused"
        assert not trainer.is_up

    simulate(world, story)


def test_a_metered_line_moves_no_model(tmp_path: Path) -> None:
    """Other pauses follow the run. This one lets it go on, and catches up when it is over."""
    machine = Machine()
    world = World(tmp_path, seed=14, look_seconds=0.05)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        world.use = machine.use
        await nursery.start(world.run, "b", ["a"], StoppableTrainer)
        await world.reach(2, "a", "b")
        machine.is_metered = True
        status = await until_paused(world, "metered", "b")
        assert status.pauses == (PauseStatus(reason="metered", text="the line is metered"),)
        transport = world.participant("b").context.transport
        moved, held = transport.traffic().get(BLOCKS_PROTOCOL), world.round("b")
        await world.reach(held + 5, "a")
        await trio.sleep(30)
        assert transport.traffic().get(BLOCKS_PROTOCOL) == moved
        assert world.round("b") == held
        machine.is_metered = False
        await world.until(
            lambda: tokens_of(world, headers_of(world, "b")[-1], "b") > 0, seconds=120
        )

    simulate(world, story)


def test_a_metered_line_moves_no_block_and_carries_no_connection(tmp_path: Path) -> None:
    """A newcomer asks for a block that the node has, and gets it when the pause is over."""
    machine = Machine()
    world = World(tmp_path, seed=15, look_seconds=0.05)
    store = BlockStore(tmp_path / "newcomer", 2**20)
    wanted = [Digest(decode_manifest(world.signed.manifest).data.index_digest)]

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        world.use = machine.use
        await nursery.start(world.run, "b", ["a"], StoppableTrainer)
        await world.reach(2, "a", "b")
        member, peer = world.identity("a").peer_id, world.identity("b").peer_id
        transport = world.network.get(peer)
        assert transport is not None
        async with world.network.transport(world.identity("newcomer")) as newcomer:
            service = BlockService(newcomer, store)
            await newcomer.connect_any(peer, world.network.addresses_of(peer))
            machine.is_metered = True
            await until_paused(world, "metered", "b")
            moved = transport.traffic().get(BLOCKS_PROTOCOL)
            with pytest.raises(FetchError, match="none of them sent these"):
                await service.fetch(wanted, lambda: [peer], passes=1)
            assert store.missing(wanted) == wanted
            blocks = world.nodes["b"].first.blocks
            with pytest.raises(FetchError, match="this node's line is metered"):
                await blocks.fetch([digest_of(b"any block")], lambda: [member])
            assert transport.traffic().get(BLOCKS_PROTOCOL) == moved
            assert "metered" in transport.relay_terms.may_relay(member, member)
            machine.is_metered = False
            await world.until(lambda: phase_of(world, "b") != "paused")
            await service.fetch(wanted, lambda: [peer], passes=1)
            assert transport.relay_terms.may_relay(member, member) == ""

    simulate(world, story)
