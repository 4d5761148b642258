"""Does the daemon stay responsive and small while it trains and averages?

Runs a real swarm on this machine, asks one node for `/api/status` all the time, and watches the
resident memory of every daemon (without its trainer). Prints the percentiles, and the memory beside
the bound: 28 bytes a parameter plus 250 MB.

    python -m tests.benchmarks.responsiveness --preset 5m --peers 4 --seconds 90
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.runs.planning.needs import DAEMON_BYTES_PER_PARAMETER
from gossamer.trainer.presets.table import PRESETS

ASK_SECONDS = 0.05
FIXED_BYTES = 250e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--preset", default="5m")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=90.0)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalSwarm(Path(folder), ["--threads", "1"]) as swarm,
    ):
        first = swarm.found("--preset", arguments.preset)
        address = first.address(300.0)
        for _ in range(arguments.peers - 1):
            swarm.join(address)
        for node in swarm.nodes:
            node.wait_for(lambda s: s.round >= 1, 600.0, "first round")
        rounds_before = first.wait_for(lambda _: True, 10.0, "status").round
        latencies, peaks = _watch(first, swarm.nodes, arguments.seconds)
        status = first.wait_for(lambda _: True, 10.0, "status")
    _print(arguments.preset, latencies, peaks, status.round - rounds_before)
    losses = [point.loss for point in status.loss_history if point.loss is not None]
    Console().print(f"training loss from {losses[0]:.2f} (round 1) to {losses[-1]:.2f}")


def _watch(
    asked: LocalNode, nodes: list[LocalNode], seconds: float
) -> tuple[list[float], list[float]]:
    """Latencies of the answers in seconds, and the peak resident bytes of each daemon."""
    processes = [psutil.Process(node.process.pid) for node in nodes if node.process is not None]
    peaks = [0.0 for _ in processes]
    latencies: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.perf_counter()
        answer = asked.status()
        if answer is not None:
            latencies.append(time.perf_counter() - started)
        for number, process in enumerate(processes):
            peaks[number] = max(peaks[number], float(process.memory_info().rss))
        time.sleep(ASK_SECONDS)
    return sorted(latencies), peaks


def _print(preset: str, latencies: list[float], peaks: list[float], num_rounds: int) -> None:
    num_parameters = PRESETS[preset].model.num_parameters
    state_bytes = 8 * num_parameters
    bound = DAEMON_BYTES_PER_PARAMETER * num_parameters + FIXED_BYTES
    table = Table(title=f"{preset}: {num_parameters:,} parameters, {num_rounds} rounds meanwhile")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("bound", justify="right")
    for share in (0.5, 0.9, 0.99, 1.0):
        value = latencies[min(len(latencies) - 1, int(share * len(latencies)))]
        bound_text = "100 ms" if share == 0.99 else ""
        name = f"status, {share:.0%} of {len(latencies)}"
        table.add_row(name, f"{1e3 * value:.1f} ms", bound_text)
    table.add_row("state", f"{state_bytes / 1e6:.0f} MB", "")
    for number, peak in enumerate(peaks, 1):
        table.add_row(f"daemon {number}, peak", f"{peak / 1e6:.0f} MB", f"{bound / 1e6:.0f} MB")
    Console().print(table)


if __name__ == "__main__":
    main()
