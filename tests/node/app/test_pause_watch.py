import threading

import pytest
import trio

from gossamer.node.app import pause_watch
from gossamer.node.app.pause_watch import PauseWatch
from gossamer.node.base.pausing import PauseRules
from gossamer.node.base.threads import run_abandonable
from gossamer.node.base.work_hours import parse_work_hours
from gossamer.node.machine.machine_use import MachineUse


def test_a_reader_that_hangs_takes_one_thread_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pause_watch, "READ_SECONDS_MAX", 0.05)
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
