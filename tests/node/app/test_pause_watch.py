import threading
import time
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path

import pytest
import trio

from gossamer.node.app.owner import pause_watch
from gossamer.node.app.owner.pause_watch import PauseWatch
from gossamer.node.app.owner.state_place import StatePlace
from gossamer.node.base.pausing import Hold, PauseRules
from gossamer.node.base.threads import run_abandonable
from gossamer.node.base.work_hours import parse_work_hours
from gossamer.node.machine.machine_use import MachineUse
from gossamer.node.storage.block_files import MissingBlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir


def test_a_reader_that_hangs_takes_one_thread_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gossamer.node.base.threads.READ_SECONDS_MAX", 0.05)
    goes_on, asked = threading.Event(), []

    def hangs() -> bool:
        asked.append(True)
        goes_on.wait(30)
        return True

    use = MachineUse(is_on_battery=hangs)
    rules = PauseRules(parse_work_hours("00:00-24:00"))
    watch = PauseWatch(rules, use, lambda: 1_700_000_000.0, run_abandonable)

    async def main() -> None:
        with trio.fail_after(10):
            for _ in range(3):
                assert await watch.look() == ()
            assert len(asked) == 1
            goes_on.set()
            while not (holds := await watch.look()):
                await trio.lowlevel.checkpoint()
            assert [hold.reason for hold in holds] == ["battery"]

    trio.run(main)


def test_a_state_directory_that_is_gone_pauses_until_it_is_back(tmp_path: Path) -> None:
    """As on a disk that was unplugged, or that the network does not bring."""
    state_dir = StateDir(tmp_path / "state")
    watch = PauseWatch(PauseRules(), MachineUse(), lambda: 1_700_000_000.0, run_abandonable)

    def holds() -> list[str]:
        return [hold.reason for hold in trio.run(watch.look)]

    with state_dir.locked():
        store = BlockStore(state_dir.blocks_path, 1000)
        watch.place_problem = StatePlace(state_dir, store).problem
        digest = store.put(b"text to train on")
        assert holds() == []
        state_dir.root.rename(tmp_path / "away")
        assert holds() == ["disk"]
        with pytest.raises(MissingBlockError):
            store.get(digest)
        assert store.missing([digest]) == [digest]
        (tmp_path / "away").rename(state_dir.root)
        assert holds() == []
        assert store.missing([digest]) == [], "no peer is needed to have it again"
        assert store.get(digest) == b"text to train on"


def test_a_disk_that_is_away_between_two_looks_leaves_no_block_forgotten(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path / "state")
    with state_dir.locked():
        store = BlockStore(state_dir.blocks_path, 1000)
        place = StatePlace(state_dir, store)
        digest = store.put(b"text to train on")
        assert place.problem() == ""
        store.root.rename(tmp_path / "away")
        assert store.forget_lost() == 1
        (tmp_path / "away").rename(store.root)
        assert store.missing([digest]) == [digest]
        assert place.problem() == ""
        assert store.get(digest) == b"text to train on"
        store.path(digest).unlink()
        assert store.forget_lost() == 1
        assert place.problem() == ""
        assert not store.has_lost, "what is gone for good is not looked for each time"


def test_rules_that_change_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_watch, "LOOK_SECONDS", 3600.0)
    use = MachineUse(is_on_battery=lambda: None)
    rules = PauseRules(parse_work_hours("00:00-24:00"))
    watch = PauseWatch(rules, use, lambda: 1_700_000_000.0, run_abandonable)
    send, receive = trio.open_memory_channel[Sequence[Hold]](8)

    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run, send.send_nowait)
                assert await receive.receive() == ()
                watch.change(PauseRules(parse_work_hours("09:00-11:00"), zone=UTC))
                assert [hold.reason for hold in await receive.receive()] == ["schedule"]
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_machine_that_travels_has_the_hours_of_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_22_13_utc = 1_700_000_000.0
    rules = PauseRules(parse_work_hours("09:00-11:00"))
    use = MachineUse(is_on_battery=lambda: None)
    watch = PauseWatch(rules, use, lambda: at_22_13_utc, run_abandonable)

    def is_held_at(zone: str) -> bool:
        here.setenv("TZ", zone)  # nobody else says so: the watch has to ask the system
        return bool(trio.run(watch.look))

    try:
        with monkeypatch.context() as here:
            assert [is_held_at(zone) for zone in ("UTC", "WEST+12", "EAST-3")] == [
                True, False, True,
            ]  # fmt: skip
    finally:
        time.tzset()
