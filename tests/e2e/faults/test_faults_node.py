"""Faults of one node's own processes and clock, while two others go on.

The three are started once; every test finds all of them in the ring. The first of them runs with a
few lines of Python that break its trainer, or shift its wall clock, when a test says so.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.machine.trainer_client import FAILURES_MAX
from gossamer.node.machine.trainer_process import SILENT_SECONDS_MAX
from gossamer.node.network.over_libp2p.liveness import SILENCE_SECONDS_MAX
from tests.support.daemons import (
    OPTIONS,
    PATIENCE_SECONDS,
    get,
    gossamer,
    in_rounds_of,
    metric_of,
    poll,
    restarts_of,
    said,
    shared_rounds,
    trainer_of,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

ROUND_SECONDS_MAX = 4.0
"""A round of this run takes a second, and up to five more if a peer is waited for in vain."""

STOPPED_SECONDS = max(SILENT_SECONDS_MAX, SILENCE_SECONDS_MAX) + 3
"""Longer than a trainer, and a connection, live without a sign of life."""

BACK_SECONDS = 30.0
"""Time until a peer that goes on is in a round again: it finds the others and the newer head."""

DAY_SECONDS = 86_400

SITE = """
import os, sys, time

if os.path.exists({broken!r}) and "gossamer.trainer.worker" in sys.orig_argv:
    print("no driver for this device", file=sys.stderr, flush=True)
    os._exit(1)

def offset_seconds():
    try:
        with open({clock!r}) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0

time.time = lambda real=time.time: real() + offset_seconds()
time.time_ns = lambda real=time.time_ns: real() + offset_seconds() * 10**9
"""


@dataclass
class Trio:
    """One node that has the faults, and two others; the seed is one of them."""

    faulty: LocalNode
    seed: LocalNode
    other: LocalNode
    broken: Path
    """File that makes the faulty node's trainers exit before they begin, as long as it exists."""
    clock: Path
    """Seconds by which the faulty node's wall clock is wrong."""

    @property
    def nodes(self) -> tuple[LocalNode, ...]:
        return (self.faulty, self.seed, self.other)

    def agree(self) -> None:
        """No daemon crashed, and all states of committed rounds are the same everywhere."""
        assert not any(said(node, "Traceback") for node in self.nodes)
        shared_rounds(*self.nodes)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, founded: Path) -> Iterator[Trio]:
    folder = tmp_path_factory.mktemp("site")
    broken, clock = folder / "broken", folder / "clock"
    site = SITE.format(broken=str(broken), clock=str(clock))
    (folder / "sitecustomize.py").write_text(site)
    with LocalSwarm(tmp_path_factory.mktemp("trio"), OPTIONS) as swarm:
        seed = swarm.add()
        shutil.copytree(founded, seed.root)
        seed.start("start")
        address = seed.address()
        faulty = swarm.add(environment={"PYTHONPATH": str(folder)})
        faulty.start("join", address)
        yield Trio(faulty, seed, swarm.join(address), broken, clock)


@pytest.fixture
def trio(started: Trio) -> Trio:
    for node in started.nodes:
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three")
    return started


@pytest.mark.long
def test_a_trainer_that_does_not_stay_up(trio: Trio) -> None:
    node, seed = trio.faulty, trio.seed
    trio.broken.touch()
    trainer = trainer_of(node)
    assert trainer is not None
    trainer.send_signal(signal.SIGKILL)
    failed = node.wait_for(lambda s: s.phase == "failed", PATIENCE_SECONDS, "failure")
    assert failed.problem is not None
    for text in ("no driver for this device", f"{FAILURES_MAX} times", "gossamer resume"):
        assert text in failed.problem
    assert said(node, "the trainer was killed (SIGKILL)")
    assert get(node, "/readyz")[0] == 503
    assert metric_of(node, "gossamer_phase", "failed") == 1

    # The others see it and do not wait for it; it follows, and serves what it has.
    seed.wait_for(
        lambda s: "failed" in [peer.phase for peer in s.peers], PATIENCE_SECONDS, "its phase"
    )
    ahead = seed.wait_for(
        lambda s: s.round >= failed.round + 3 and in_rounds_of(2)(s),
        PATIENCE_SECONDS,
        "rounds without it",
    )
    assert ahead.last_round is not None
    assert ahead.last_round.duration_seconds < ROUND_SECONDS_MAX
    assert wait_for_round(node, ahead.round).phase == "failed"

    trio.broken.unlink()
    assert gossamer("resume", "--state-dir", node.root).status == 0
    # The first one is killed while it starts.
    first = poll(lambda: trainer_of(node), "trainer")
    first.send_signal(signal.SIGKILL)
    for each in trio.nodes:
        each.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three")
    assert restarts_of(node, "killed") == 2
    trio.agree()


@pytest.mark.long
def test_a_wall_clock_that_jumps_by_a_day(trio: Trio) -> None:
    node, seed = trio.faulty, trio.seed

    def rounds_go_on() -> None:
        status = seed.status()
        assert status is not None
        for each in trio.nodes:
            each.wait_for(
                lambda s: s.round >= status.round + 2 and in_rounds_of(3)(s),
                PATIENCE_SECONDS,
                "round of three in spite of the clock",
            )

    for seconds in (DAY_SECONDS, -DAY_SECONDS):
        trio.clock.write_text(str(seconds))
        rounds_go_on()
    node.kill()
    (node.root / "incarnation").unlink()  # and nothing on its own disk tells it of its past
    node.start("start")
    rounds_go_on()
    assert said(node, "others know this node by a higher number")
    trio.agree()


@pytest.mark.long
def test_a_stopped_daemon_and_a_stopped_trainer(trio: Trio) -> None:
    frozen, hung, seed = trio.faulty, trio.other, trio.seed
    before, restarts = seed.status(), restarts_of(frozen)
    trainer = trainer_of(hung)
    assert before is not None
    assert trainer is not None

    trainer.send_signal(signal.SIGSTOP)
    frozen.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    # The others go on meanwhile, at first without either.
    wait_for_round(seed, before.round + 2)
    poll(lambda: restarts_of(hung, "hung") == 1, "end of the stopped trainer")
    assert said(hung, "it gave no sign of life for")
    seed.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round with the restarted trainer")
    time.sleep(max(0.0, stopped + STOPPED_SECONDS - time.monotonic()))
    ahead = seed.status()
    assert ahead is not None
    frozen.signal(signal.SIGCONT)

    back = frozen.wait_for(
        lambda s: s.round > ahead.round and in_rounds_of(3)(s), BACK_SECONDS, "round of three"
    )
    assert said(frozen, "this process did not run for a while")
    assert metric_of(frozen, "gossamer_stalled_seconds_total") >= STOPPED_SECONDS - 1
    assert restarts_of(frozen) == restarts, "its trainer was not silent, it was"
    for node in trio.nodes:
        wait_for_round(node, back.round)
    trio.agree()
