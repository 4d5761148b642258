"""A process that did not run says so, whoever asks first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import trio
import trio.testing

from gossamer.node.base import awake_clock
from gossamer.node.base.awake_clock import AwakeClock, Stall, suspended_seconds


class Clocks:
    """The local clock and the time of suspension, turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.suspended = 7.0
        self.told: list[Stall] = []
        self.watch = AwakeClock(clock=lambda: self.now, suspended=lambda: self.suspended)

    def run_one_tick(self) -> None:
        async def main() -> None:
            with trio.move_on_after(awake_clock.TICK_SECONDS / 2):
                await self.watch.run(self.told.append)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_late_tick_is_no_stall() -> None:
    clocks = Clocks()
    clocks.run_one_tick()
    clocks.now += awake_clock.STALL_SECONDS_MIN * 0.9
    assert clocks.watch.last() is None
    assert clocks.watch.awake_since(100.0) == pytest.approx(0.9 * awake_clock.STALL_SECONDS_MIN)


def test_who_asks_first_is_told_already() -> None:
    clocks = Clocks()
    clocks.run_one_tick()
    clocks.now = 102.0 + 40.0
    assert clocks.watch.last() == Stall(100.0, 142.0, 42.0)
    assert clocks.told == []  # `run` tells, when its turn comes
    clocks.now += 0.5
    assert clocks.watch.last() == Stall(100.0, 142.0, 42.0)


def test_silence_is_measured_without_the_own_absence() -> None:
    clocks = Clocks()
    clocks.run_one_tick()
    for now in (100.5, 101.0, 131.0, 131.5, 132.0, 172.0, 172.25):
        clocks.now = now
        clocks.watch.last()
    assert clocks.watch.awake_since(100.0) == pytest.approx(72.25 - 30 - 40)
    assert clocks.watch.awake_since(110.0) == pytest.approx(62.25 - 21 - 40)
    assert clocks.watch.awake_since(131.5) == pytest.approx(0.75)
    assert clocks.watch.awake_since(172.0) == pytest.approx(0.25)
    assert clocks.watch.awake_since(500.0) == 0.0
    assert clocks.watch.awake_seconds() == pytest.approx(172.25 - 30 - 40)


def test_a_suspended_machine_is_seen_though_its_monotonic_clock_stood_still() -> None:
    clocks = Clocks()
    clocks.run_one_tick()
    clocks.now += 0.25
    clocks.suspended += 3600.0
    assert clocks.watch.last() == Stall(100.0, 100.25, 3600.25)
    assert suspended_seconds() >= -0.001  # two clocks, read one after the other


def test_each_stall_is_told_once_and_few_are_kept() -> None:
    clocks = Clocks()
    clocks.watch._looked_seconds = clocks.now
    for _ in range(3 * awake_clock.STALLS_KEPT):
        clocks.now += 10.0
        clocks.watch.last()
    assert len(clocks.watch._stalls) == awake_clock.STALLS_KEPT
    clocks.run_one_tick()
    assert len(clocks.told) == awake_clock.STALLS_KEPT
    clocks.run_one_tick()
    assert len(clocks.told) == awake_clock.STALLS_KEPT


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
def test_a_stopped_process() -> None:
    code = (
        "import trio\n"
        "from gossamer.node.base.awake_clock import AwakeClock\n"
        "watch = AwakeClock()\n"
        "def say(stall):\n"
        "    print(stall.lost_seconds, flush=True)\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        await nursery.start(watch.run, say)\n"
        "        print('ticks', flush=True)\n"
        "trio.run(main)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ticks\n"
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            stopped = time.monotonic()
            time.sleep(1.5)
            lasted = time.monotonic() - stopped
            process.send_signal(signal.SIGCONT)
            assert float(process.stdout.readline()) >= lasted
        finally:
            process.kill()
