r"""How busy are trainers behind home lines? Real daemons, and beside it what `gossamer plan` says.

    sudo python -m tests.benchmarks.utilisation
    sudo python -m tests.benchmarks.utilisation --peers 4 --mbit 20 --rounds 20 --modes fp16
    sudo python -m tests.benchmarks.utilisation --preset tiny --peers 4 --mbit 8 --rounds 4 \
        --inner-steps 10 --modes distro --top-k 1024 --step-chunks 1 4

The shaper lets 128 KiB through at once after a pause, so that a list of a few kB says nothing about
lines that wait for each other: hence the large `--top-k`.

Each peer is a daemon in a network namespace behind a line of `--mbit` in each direction. All share
this machine's processors, so a step takes longer than it would on a machine of its own; that is
time in which the trainer is at work.

    at work    time in which the trainer did not wait for its daemon, by its own clock, as a part of
               the wall time of so many rounds: the mean of the peers, and the least
    in steps   the part of inner steps alone; the rest of the work is taking over states, evaluating
               one now and then, and what lies between two steps
    round      mean seconds of a round, of the median peer
    sent       bytes that a peer's ring sent in a round
    planned    what `gossamer plan` says for the tokens a second that were measured, and how far the
               measured round is from it
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gossamer.node.runs.planning.manifest_file import read_manifest_file
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.protocol.codecs.payloads import SPARSE
from gossamer.protocol.codecs.step_payloads import DISTRO
from tests.support.lab import Lab, Machine
from tests.support.netns import NamespacesUnavailable

STEPS = "gossamer_step_duration_seconds_sum"
WAITING = "gossamer_trainer_waiting_seconds_total"
TOKENS = "gossamer_tokens_total"

PATIENCE_SECONDS = 900.0
"""Time for the founding, the joins and the rounds that warm up."""

WARM_ROUNDS = 3
"""Rounds with all peers before the measured ones."""

_MANIFEST = """\
preset = "{preset}"
name = "utilisation"
{top}
[outer]
inner_steps = {inner_steps}
warmup_rounds = 0
overlap = {overlap}
{outer}
[rounds]
round_seconds = 3600.0
gather_seconds = 20.0
gather_fraction = 0.5
"""


@dataclass(frozen=True)
class Result:
    """Figures of one run."""

    mode: str
    step_chunks: int | None
    """With `distro`: chunks of a step; None: as many as the run's default."""
    overlap: bool
    rounds: int
    at_work_mean: float
    at_work_least: float
    in_steps_mean: float
    round_seconds: float
    sent_bytes: float
    tokens_per_second: float
    planned_round_seconds: float
    planned_sent_bytes: int
    planned_at_work: float

    @property
    def off(self) -> float:
        """Deviation of the measured round from the plan, as a fraction."""
        return self.round_seconds / self.planned_round_seconds - 1


@dataclass(frozen=True)
class Reading:
    """One peer's counters at one moment."""

    seconds: float
    round: int
    steps_seconds: float
    waiting_seconds: float
    tokens: float


def measure(
    options: argparse.Namespace,
    mode: str,
    *,
    overlap: bool,
    console: Console,
    step_chunks: int | None = None,
) -> Result:
    """Founds a swarm, and watches some rounds of it."""
    with tempfile.TemporaryDirectory(prefix="gossamer-utilisation-") as folder:
        root = Path(folder)
        manifest = root / "run.toml"
        is_dense = mode not in (SPARSE, DISTRO)
        outer = f'codec = "{mode}"' if is_dense else ""
        if step_chunks is not None:
            outer = f"step_chunks = {step_chunks}\n"
        if options.top_k is not None and not is_dense:
            outer += f"top_k = {options.top_k}\n"
        manifest.write_text(
            _MANIFEST.format(
                preset=options.preset,
                top="" if is_dense else f'sync = "{mode}"',
                inner_steps=options.inner_steps,
                overlap="true" if overlap else "false",
                outer=outer,
            )
        )
        draft = read_manifest_file(manifest)
        with Lab(root, [options.mbit] * options.peers, ("--threads", "1")) as lab:
            seed, *others = lab.machines
            seed.run("start", "--manifest", str(manifest), "--wait-for-peers", str(len(others)))
            address = seed.address(PATIENCE_SECONDS)
            for machine in others:
                machine.run("join", address)
            wait_for_round(lab.machines, WARM_ROUNDS)
            before = [read(machine) for machine in lab.machines]
            first = max(reading.round for reading in before)
            console.log(f"{mode}, overlap {overlap}: measuring from round {first} on")
            wait_for_round(lab.machines, first + options.rounds)
            after = [read(machine) for machine in lab.machines]
            rounds = [status.last_round for m in lab.machines if (status := m.status()) is not None]
    shares = [
        1.0 - (b.waiting_seconds - a.waiting_seconds) / (b.seconds - a.seconds)
        for a, b in zip(before, after, strict=True)
    ]
    in_steps = [
        (b.steps_seconds - a.steps_seconds) / (b.seconds - a.seconds)
        for a, b in zip(before, after, strict=True)
    ]
    seconds = [
        (b.seconds - a.seconds) / (b.round - a.round) for a, b in zip(before, after, strict=True)
    ]
    # While the trainer is at work: what it does when it does not wait.
    speed = statistics.mean(
        (b.tokens - a.tokens) / (b.steps_seconds - a.steps_seconds)
        for a, b in zip(before, after, strict=True)
    )
    plan = plan_round(draft, options.peers, Line(options.mbit, options.mbit), speed)
    assert plan.round_seconds is not None
    assert plan.utilisation is not None
    return Result(
        mode,
        step_chunks,
        overlap,
        options.rounds,
        statistics.mean(shares),
        min(shares),
        statistics.mean(in_steps),
        statistics.median(seconds),
        statistics.mean(one.bytes_sent for one in rounds if one is not None),
        speed,
        plan.round_seconds,
        plan.sent_bytes,
        plan.utilisation,
    )


def read(machine: Machine) -> Reading:
    samples, status = machine.metrics(), machine.status()
    assert status is not None
    return Reading(
        time.monotonic(), status.round, samples[STEPS], samples[WAITING], samples[TOKENS]
    )


def wait_for_round(machines: Sequence[Machine], number: int) -> None:
    """Waits until all have committed this round, in a ring of all."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        statuses = [machine.status() for machine in machines]
        if all(
            status is not None
            and status.round >= number
            and status.last_round is not None
            and len(status.last_round.contributors) == len(machines)
            for status in statuses
        ):
            return
        if time.monotonic() > deadline:
            tails = "\n".join(machine.tail(5) for machine in machines)
            raise SystemExit(f"no round {number} of all within {PATIENCE_SECONDS:g} s\n{tails}")
        time.sleep(0.2)


def table_of(options: argparse.Namespace, results: Sequence[Result]) -> Table:
    table = Table(
        title=f"{options.peers} peers, {options.mbit:g} Mbit/s, {options.preset}, "
        f"H = {options.inner_steps}, {options.rounds} rounds"
    )
    table.add_column("mode")
    for header in ("at work", "least", "in steps", "round", "planned", "off", "sent", "planned"):
        table.add_column(header, justify="right")
    for one in results:
        table.add_row(
            one.mode
            + (", overlap" if one.overlap else "")
            + (f", {one.step_chunks} chunks a step" if one.step_chunks is not None else ""),
            f"{one.at_work_mean:.1%}",
            f"{one.at_work_least:.1%}",
            f"{one.in_steps_mean:.1%}",
            f"{one.round_seconds:.1f} s",
            f"{one.planned_round_seconds:.1f} s",
            f"{one.off:+.0%}",
            f"{one.sent_bytes / 1e6:.2f} MB",
            f"{one.planned_sent_bytes / 1e6:.2f} MB",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="1m")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["fp16"], help="codecs, sparse and distro")
    parser.add_argument("--step-chunks", nargs="+", type=int, help="with distro: of a shared step")
    parser.add_argument("--top-k", type=int, help="of sparse and distro; default: the preset's")
    parser.add_argument("--apart", action="store_true", help="also without overlap")
    parser.add_argument("--output", type=Path, help="for the results as JSON")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    results = []
    try:
        for mode in options.modes:
            # Each of distro's steps needs the one before it.
            overlaps = (False,) if mode == DISTRO else (True, False)[: 1 + options.apart]
            chunks = (options.step_chunks or (None,)) if mode == DISTRO else (None,)
            for overlap, step_chunks in product(overlaps, chunks):
                results.append(
                    measure(
                        options, mode, overlap=overlap, console=console, step_chunks=step_chunks
                    )
                )
                if options.output is not None:
                    found = [asdict(result) for result in results]
                    options.output.write_text(json.dumps(found, indent=1) + "\n")
    except NamespacesUnavailable as error:
        raise SystemExit(str(error)) from error
    console.print(table_of(options, results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
