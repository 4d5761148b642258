"""A process that did not run notices it, whichever task asks first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import trio
import trio.testing

from gossamer.node.base import awake_clock as stall
from gossamer.node.base.awake_clock import AwakeClock, Stall, suspended_seconds
from gossamer.node.base.ticks import TICK_SECONDS


class Clocks:
    """The local clock and the time of suspension, turned by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.suspended = 7.0
        self.watch = AwakeClock(clock=lambda: self.now, suspended=lambda: self.suspended)

    def run_one_tick(self) -> None:
        async def main() -> None:
            with trio.move_on_after(TICK_SECONDS / 2):
                await self.watch.run()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_late_tick_is_no_stall() -> None:
    clocks = Clocks()
    clocks.run_one_tick()
    clocks.now += stall.STALL_SECONDS_MIN * 0.9
    assert clocks.watch.stalls_since(0.0) == ()
    assert clocks.watch.awake_since(100.0) == pytest.approx(0.9 * stall.STALL_SECONDS_MIN)


def test_a_stall_is_seen_before_the_next_tick() -> None:
    clocks = Clocks()
    clocks.run_one_tick()
    clocks.now = 102.0 + 40.0
    stalls = (Stall(100.0, 142.0, 42.0),)
    assert clocks.watch.stalls_since(141.9) == stalls
    clocks.now += 0.5
    assert clocks.watch.stalls_since(142.0) == ()
    assert clocks.watch.stalls_since(141.0) == stalls


def test_silence_is_measured_without_the_own_absence() -> None:
    clocks = Clocks()
    clocks.run_one_tick()
    for now in (100.5, 101.0, 131.0, 131.5, 132.0, 172.0, 172.25):
        clocks.now = now
        clocks.watch.awake_seconds()
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
    assert clocks.watch.stalls_since(100.0) == (Stall(100.0, 100.25, 3600.25),)
    assert suspended_seconds() >= -0.001  # two clocks, read one after the other


def test_each_stall_is_told_once_and_few_are_kept() -> None:
    clocks = Clocks()
    clocks.watch._looked_seconds = clocks.now
    told: list[Stall] = []
    for number in range(3 * stall.STALLS_KEPT):
        asked = clocks.now
        clocks.now += 10.0
        told += clocks.watch.stalls_since(asked)
        assert len(told) == number + 1
    assert len(clocks.watch.stalls_since(0.0)) == stall.STALLS_KEPT
    assert clocks.watch.stalls_since(clocks.now) == ()
    assert clocks.watch.awake_seconds() == pytest.approx(100.0)  # the forgotten ones count too


def test_a_clock_that_does_not_run_is_the_local_one() -> None:
    clocks = Clocks()
    clocks.now += 40.0
    assert clocks.watch.stalls_since(0.0) == ()
    assert clocks.watch.awake_since(100.0) == pytest.approx(40.0)
    assert clocks.watch.awake_seconds() == pytest.approx(140.0)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
def test_a_stopped_process() -> None:
    code = (
        "import trio\n"
        "from gossamer.node.base.awake_clock import AwakeClock\n"
        "watch = AwakeClock()\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        await nursery.start(watch.run)\n"
        "        print('ticks', flush=True)\n"
        "        while not watch.stalls_since(0.0):\n"
        "            await trio.sleep(0.05)\n"
        "        print(watch.stalls_since(0.0)[0].lost_seconds, flush=True)\n"
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
