"""Measures what a daemon that waits takes of the processor, among more and more others.

    python -m tests.benchmarks.idle_cpu --peers 4 8 16           # docs/benchmarks/scale.md

The daemons are those of the commands, each a process of its own on loopback. The first one does a
few rounds and is paused. The others are paused before they join, so they start no trainer. They are
left alone until all know all. Then the processor time of each daemon is read from the system: all
its threads, and no child.

Columns, over the daemons:
    median, largest   share of one core that a daemon takes
    threads           median number of threads of a daemon
    memory            median resident memory of a daemon, in MB
    met after         seconds from the first start until all knew all and were paused
    load              of the machine, the daemons included, at the end
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from gossamer.node.app.http.client import give_order
from gossamer.node.base.pausing import UserPause
from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.storage.owner_orders import write_pause
from gossamer.node.storage.state_dir import StateDir
from tests.support.daemons import MANIFEST, OPTIONS

START_SECONDS = 600.0
"""Time for all daemons to start and to meet, on two cores."""

JOINING_AT_ONCE = 8
"""Daemons that start at the same time, if not said otherwise."""

SETTLE_SECONDS = 15.0
"""Time after all have met, in which what the rounds left to do is done."""


def _start(swarm: LocalSwarm, root: Path, num_peers: int, at_once: int = JOINING_AT_ONCE) -> None:
    """Starts daemons that are in one run, know each other and are paused."""
    manifest = root / "run.toml"
    manifest.write_text(MANIFEST)
    corpus = root / "corpus.txt"
    corpus.write_text("Nobody trains on this for long. " * 20_000)
    command = ("--manifest", str(manifest), "--corpus", str(corpus))
    seed = swarm.found(*command)
    address = seed.address()
    seed.wait_for(lambda status: status.round >= 2, START_SECONDS, "two rounds")
    give_order(StateDir(seed.root), "pause")
    for first in range(1, num_peers, at_once):
        joining = [swarm.add() for _ in range(first, min(first + at_once, num_peers))]
        for node in joining:
            node.root.mkdir()
            write_pause(StateDir(node.root).paused_path, UserPause())
            node.start("join", address, "--yes")
        for node in joining:
            node.wait_for(lambda status: status.round >= 2, START_SECONDS, "the run's head")
    for node in swarm.nodes:
        node.wait_for(
            lambda status: status.phase == "paused" and len(status.peers) == num_peers - 1,
            START_SECONDS,
            "a pause among all others",
        )


def _shares(nodes: Sequence[LocalNode], seconds: float) -> tuple[list[float], list[psutil.Process]]:
    """Shares of one core that each daemon takes within some seconds."""
    processes = [psutil.Process(node.process.pid) for node in nodes if node.process is not None]
    before = [(time.monotonic(), process.cpu_times()) for process in processes]
    time.sleep(seconds)
    shares = []
    for process, (since, then) in zip(processes, before, strict=True):
        now = process.cpu_times()
        spent = now.user + now.system - then.user - then.system
        shares.append(spent / (time.monotonic() - since))
    return shares, processes


def measure(num_peers: int, seconds: float, at_once: int) -> str:
    """Returns a row of the table."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as root,
        LocalSwarm(Path(root), OPTIONS) as swarm,
    ):
        began = time.monotonic()
        _start(swarm, Path(root), num_peers, at_once)
        met_seconds = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        shares, processes = _shares(swarm.nodes, seconds)
        threads = statistics.median(process.num_threads() for process in processes)
        memory = statistics.median(process.memory_info().rss for process in processes)
        load = os.getloadavg()[0]
    return (
        f"| {num_peers} | {100 * statistics.median(shares):.2f} % | {100 * max(shares):.2f} % "
        f"| {threads:.0f} | {memory / 1e6:.0f} | {met_seconds:.0f} | {load:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a daemon that waits costs.")
    parser.add_argument("--peers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument(
        "--at-once", type=int, default=JOINING_AT_ONCE, help="daemons that join at the same time"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="that are measured")
    options = parser.parse_args()
    print("| peers | median | largest | threads | memory, MB | met after, s | load |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for num_peers in options.peers:
        print(measure(num_peers, options.seconds, options.at_once), flush=True)


if __name__ == "__main__":
    main()
