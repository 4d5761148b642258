"""Do the owner's limits hold on a line, for whole daemons, and when they change while these run?

    sudo python -m tests.benchmarks.line_limits --seconds 30

Two daemons with a line each, in network namespaces, train together. The owner of one sets limits
with `gossamer limits set`, one after the other, and at last starts the node again. What its
interface sends and receives is counted by the kernel, headers of all layers included, from
`ACTS_SECONDS_MAX` after the command was called. Each row has the highest rate of any
`WINDOW_SECONDS`, and the most bytes that were ever ahead of the limit and `TOLERANCE` of it.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from gossamer.node.demo.local_swarm import LocalNode
from gossamer.node.telemetry.status import Status
from tests.benchmarks.traffic import counters
from tests.support.daemons import MANIFEST, PATIENCE_SECONDS, in_rounds_of
from tests.support.netns import LINE, NamespacesUnavailable, Network, run_tool

LINE_MBIT = 50.0
PORT = 4610
OWNER = 1
"""The machine whose owner sets limits."""

ACTS_SECONDS_MAX = 5.0
"""Time in which a change has to act."""

WINDOW_SECONDS = 3.0
"""A burst of a tenth of a second counts for 3 % of it. A ring lasts longer at each limit here."""

LOOK_SECONDS = 0.1
WAIT_SECONDS = 4 * PATIENCE_SECONDS
"""Time for what takes seconds on an idle machine, with a model that is larger than the tests'."""

TOLERANCE = 0.05
"""The part of a limit by which a line may go beyond it for ever."""

LIMITS_MBIT = (8.0, 4.0)
"""The node refuses a limit at which a round would last more than twice as long: on a fast machine
that is a higher one."""

RUN_MANIFEST = (
    MANIFEST.replace("width = 32", "width = 256")
    .replace("hidden_width = 64", "hidden_width = 1024")
    .replace("num_heads = 2", "num_heads = 4")
    .replace("num_layers = 1", "num_layers = 2")
    .replace("chunk_elements = 2048", "chunk_elements = 65536")
    .replace("inner_steps = 40", "inner_steps = 80")
)
"""2.2 million parameters, of which a ring moves 4.5 MB in each direction."""

Condition = Callable[[Status], bool]

Counted = tuple[float, int, int]
"""A time, and the bytes sent and received until then."""


def busiest(counted: list[Counted]) -> tuple[float, float]:
    """Returns what was sent and received in the busiest `WINDOW_SECONDS` of each, in Mbit/s."""
    highest = [0.0, 0.0]
    first = 0
    for last in counted[1:]:
        while last[0] - counted[first + 1][0] >= WINDOW_SECONDS:
            first += 1
        seconds = last[0] - counted[first][0]
        if seconds >= WINDOW_SECONDS:
            for place in (0, 1):
                moved = last[place + 1] - counted[first][place + 1]
                highest[place] = max(highest[place], moved * 8e-6 / seconds)
    return highest[0], highest[1]


def most_ahead(counted: list[Counted], place: int, mbit: float) -> float:
    """Returns the most bytes of one direction (1: sent, 2: received) that were ahead of a limit:
    the depth of a token bucket that is filled at the limit and `TOLERANCE` of it."""
    rate = (1 + TOLERANCE) * mbit / 8e-6
    ahead = most = 0.0
    for before, after in pairwise(counted):
        allowed = rate * (after[0] - before[0])
        ahead = max(0.0, ahead + after[place] - before[place] - allowed)
        most = max(most, ahead)
    return most


def changes(directions: Sequence[str], limits_mbit: Sequence[float]) -> list[dict[str, float]]:
    """Returns what the owner sets, one after the other, in Mbit/s; `inf` takes a limit away."""
    found: list[dict[str, float]] = []
    for direction in directions:
        others = {each: math.inf for each in directions if each != direction}
        found += [{**others, direction: limits_mbit[0]}]
        found += [{direction: mbit} for mbit in limits_mbit[1:]]
    return found


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Runs the swarm, and prints a row for each change."""
    seconds = options.seconds
    manifest, corpus = folder / "manifest.toml", folder / "corpus.txt"
    manifest.write_text(RUN_MANIFEST)
    corpus.write_text("The quick brown fox jumps over the lazy dog. " * 20_000)
    with Network([LINE_MBIT] * 2) as lines:
        nodes = []
        for machine in range(lines.num_machines):
            # Packets as a real line has them: else one header counts for 64 KiB.
            run_tool(*lines.prefix(machine), "ip", "link", "set", "dev", LINE, "gso_max_segs", "1")
            nodes.append(
                LocalNode(
                    folder / f"node{machine}",
                    prefix=tuple(lines.prefix(machine)),
                    options=("--threads", "1"),
                    listen=f"/ip4/{lines.host(machine)}/tcp/{PORT}",
                )
            )
        founder, owner = nodes
        try:
            founder.start("start", "--manifest", str(manifest), "--corpus", str(corpus))
            owner.start("join", _wait(lines, founder, 0, lambda s: bool(s.addresses)).addresses[0])
            _wait(lines, owner, OWNER, in_rounds_of(2))
            print("| limits, Mbit/s | sent | ahead | received | ahead | rounds of both |")
            print("| --- | --- | --- | --- | --- | --- |", flush=True)
            limits = {"upload": math.inf, "download": math.inf}
            for change in ({}, *changes(options.directions, options.limits)):
                limits |= change
                _row(lines, owner, change, limits, seconds)
            owner.leave()
            owner.start("start")
            _wait(lines, owner, OWNER, in_rounds_of(2))
            _row(lines, owner, {}, limits, seconds, " after a restart")
        finally:
            for node in nodes:
                node.kill()


def _row(
    lines: Network,
    owner: LocalNode,
    change: Mapping[str, float],
    limits: Mapping[str, float],
    seconds: float,
    when: str = "",
) -> None:
    """Makes a change, measures and prints. `limits`: those that hold then."""
    began = time.monotonic()
    if change:
        words = [f"{name}={'off' if mbit == math.inf else mbit}" for name, mbit in change.items()]
        command = [*lines.prefix(OWNER), sys.executable, "-m", "gossamer.node.cli"]
        command += ["limits", "set", *words, "--state-dir", str(owner.root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        time.sleep(max(0.0, began + ACTS_SECONDS_MAX - time.monotonic()))
    first = _wait(lines, owner, OWNER, lambda _: True)
    counted: list[Counted] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        counted.append((time.monotonic(), *counters(lines, OWNER)))
        time.sleep(LOOK_SECONDS)
    last = _wait(lines, owner, OWNER, lambda _: True)
    title = ", ".join(f"{name} {mbit:g}" for name, mbit in limits.items() if mbit < math.inf)
    cells = [f"{title or 'none'}{when}"]
    for place, (rate, mbit) in enumerate(zip(busiest(counted), limits.values(), strict=True), 1):
        ahead = most_ahead(counted, place, mbit)
        cells += [f"{rate:.2f}", "" if mbit == math.inf else f"{ahead / 1000:.0f} kB"]
    print(f"| {' | '.join(cells)} | {last.round - first.round} |", flush=True)


def _wait(lines: Network, node: LocalNode, machine: int, condition: Condition) -> Status:
    with lines.inside(machine):
        return node.wait_for(condition, WAIT_SECONDS, "the status that is waited for")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="measured time of each row")
    parser.add_argument("--limits", type=float, nargs="+", default=LIMITS_MBIT, help="in Mbit/s")
    parser.add_argument("--directions", nargs="+", default=("upload", "download"))
    options = parser.parse_args()
    print(f"load at the beginning: {os.getloadavg()[0]:.0f}")
    with tempfile.TemporaryDirectory(prefix="gossamer-limits-") as folder:
        try:
            measure(options, Path(folder))
        except NamespacesUnavailable as why:
            sys.exit(str(why))
    print(f"load at the end: {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
