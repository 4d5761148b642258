"""A swarm under churn for as long as you like, and what became of its rounds, states and work.

    sudo python -m tests.chaos.soak --minutes 30                 # docs/benchmarks/churn.md
    sudo python -m tests.chaos.soak --rounds 50 --seed 7 --mode sparse+overlap
    sudo python -m tests.chaos.soak --minutes 30 --faults freeze cut slow

Every `--every` seconds one of `--peers` machines loses its power, and the one that lost it before
(there is one more than runs) is started: by turns with what is on its disk, and as a newcomer that
was given the address of a random living peer. `--faults` are added to that, one after the other at
random moments: a machine is put to sleep for a while, its line is cut, or gets a twentieth of its
rate; or its trainer alone is killed.

In the end everything heals, all peers have to come to one head and take part again, and then:

    faults      how many of each kind were injected
    rounds      committed in the chain that all peers have; lost are those that a peer committed
                and that are not in it (a peer that is cut off may go on alone, and its work is
                carried again when it is back; so lost rounds fail only where no peer is cut off)
    states      digests of the same head that two peers said at any time, or have on disk in the end
    stall       longest time without a new round anywhere
    tokens      of those that the peers of the end have trained since they were started, how many
                the chain holds (with shared steps no bound: what is late for one is dropped)

The exit status is 1 if something does not hold (see `problems`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest
from tests.chaos.evidence import (
    check_account,
    check_data,
    history_of,
    known_rounds,
    num_digests_compared,
    work_of,
)
from tests.chaos.runs import MODES, OPTIONS, QUICK_ROUNDS, Run
from tests.chaos.watch import Watch
from tests.support.lab import Lab, Machine
from tests.support.netns import NamespacesUnavailable

FAULTS = ("freeze", "cut", "slow", "trainer")

FAULT_SECONDS = (5.0, 25.0)
"""Range of a fault's length: from hardly noticeable to longer than every time-out of a round."""

PAUSE_SECONDS = (5.0, 20.0)
"""Range of the pause between the end of a fault and the next fault."""

SLOW_PART = 1 / 20

HEAL_SECONDS = 120.0
"""Time for all to meet at the end: a newcomer's start, its state over its line, some rounds."""

STEP_SECONDS = 0.2
WATCH_SECONDS = 0.5
"""Time between two requests to a daemon: eight of them share two processors with their trainers."""

SHARE_MIN = 0.99
"""Smallest share of the survivors' trained tokens that the chain has to hold."""

SILENCE_SECONDS = 12.0
"""Longest time that a frozen or silent member may cost a round."""


@dataclass
class Report:
    """The results of a soak."""

    options: dict[str, object]
    faults: dict[str, int] = field(default_factory=dict)
    minutes: float = 0.0
    rounds_committed: int = 0
    rounds_lost: int = 0
    members_mean: float = 0.0
    """Contributors of a round."""
    digests_compared: int = 0
    median_round_seconds: float = 0.0
    longest_stall_seconds: float = 0.0
    stall_seconds_max: float = 0.0
    """Upper bound on the longest stall."""
    tokens_trained: int = 0
    tokens_committed: int = 0
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)
    problems: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Share of the survivors' trained tokens that is in the chain."""
        return self.tokens_committed / self.tokens_trained if self.tokens_trained else 0.0

    def table(self) -> Table:
        table = Table(show_header=False)
        rows = {
            "faults injected": ", ".join(f"{n} {kind}" for kind, n in self.faults.items()),
            "minutes": f"{self.minutes:.1f}",
            "rounds committed": f"{self.rounds_committed}, of {self.members_mean:.1f} peers each",
            "rounds lost": str(self.rounds_lost),
            "digests compared": f"{self.digests_compared:,}",
            "round, median": f"{self.median_round_seconds:.1f} s",
            "longest stall": f"{self.longest_stall_seconds:.1f} s",
            "tokens conserved": f"{self.share:.2%} of {self.tokens_trained:,}",
            "load": " ".join(f"{load:.1f}" for load in self.load),
        }
        for name, value in rows.items():
            table.add_row(name, value)
        return table


class Chaos:
    """The faults that happen to the machines. Each method takes its turn whenever `step` is
    called."""

    def __init__(
        self, lab: Lab, options: argparse.Namespace, watch: Watch, console: Console
    ) -> None:
        self._lab = lab
        self._watch = watch
        self._options = options
        self._random = random.Random(options.seed)
        self._console = console
        self._next_churn_seconds = time.monotonic() + options.every
        self._next_fault_seconds = time.monotonic() + self._random.uniform(*PAUSE_SECONDS)
        self._broken: Machine | None = None
        self._mend: Callable[[], None] = lambda: None
        self.counts = Counter(dict.fromkeys(("kill", "start", *options.faults), 0))
        self.lost_heads: set[Digest] = set()
        """Committed rounds that machines knew whose disks were wiped."""

    def step(self) -> None:
        """Does what is due."""
        now = time.monotonic()
        if now >= self._next_churn_seconds:
            self._next_churn_seconds = now + self._options.every
            self._churn()
        if self._options.faults and now >= self._next_fault_seconds:
            between = FAULT_SECONDS if self._broken is None else PAUSE_SECONDS
            self._next_fault_seconds = now + self._random.uniform(*between)
            if self._broken is None:
                self._break()
            else:
                self.mend()

    def _churn(self) -> None:
        healthy = [machine for machine in self._lab.running if machine is not self._broken]
        (dead,) = (machine for machine in self._lab.machines if not machine.is_on)
        victim = self._random.choice(healthy)
        victim.power_off()
        self.counts["kill"] += 1
        if self.counts["start"] % 2 == 0 and StateDir(dead.root).has_run():
            self.lost_heads |= set(known_rounds(dead))
            shutil.rmtree(dead.root)
        kind = "again" if StateDir(dead.root).has_run() else "as a newcomer"
        self.join(dead)
        self.counts["start"] += 1
        self._console.log(f"{victim.name} lost its power, {dead.name} is started {kind}")

    def join(self, machine: Machine) -> None:
        """Starts its daemon with the address of one that is well."""
        healthy = [one for one in self._lab.running if one is not self._broken]
        statuses = [self._watch.seen(one).status for one in healthy]
        addresses = [status.addresses[0] for status in statuses if status and status.addresses]
        machine.run("join", self._random.choice(addresses))

    def _break(self) -> None:
        kind = self._random.choice(self._options.faults)
        machine = self._broken = self._random.choice(self._lab.running)
        self._console.log(f"{machine.name}: {kind}")
        self.counts[kind] += 1
        if kind == "freeze":
            machine.freeze()
            self._mend = machine.thaw
        elif kind == "cut":
            machine.cut()
            self._mend = machine.mend
        elif kind == "trainer":
            machine.kill_trainer()
            self._mend = lambda: None
        else:
            machine.set_rate(SLOW_PART * QUICK_ROUNDS.mbit)
            self._mend = lambda: machine.set_rate(QUICK_ROUNDS.mbit)

    def mend(self) -> None:
        """The fault that lasts ends."""
        if self._broken is not None:
            self._console.log(f"{self._broken.name} is whole again")
            self._mend()
            self._broken = None


class Soak:
    """The whole: found a swarm, break it for a while, heal it, look."""

    def __init__(
        self,
        options: argparse.Namespace,
        run: Run,
        lab: Lab,
        watch: Watch,
        console: Console,
    ) -> None:
        """`run`: what is trained, in the mode that the options ask for."""
        self._options = options
        self._run = run
        self._lab = lab
        self._watch = watch
        self._console = console
        self._report = Report(vars(options))
        self._problems = self._report.problems

    def run(self) -> Report:
        lab, watch, report = self._lab, self._watch, self._report
        self._run.found(lab, self._options.peers)
        watch.all_take_part(lab.running, seconds=HEAL_SECONDS)
        begin_round, begin = watch.newest_round(lab.running), time.monotonic()
        self._console.log(f"{len(lab.running)} peers take part; chaos begins")
        chaos = Chaos(lab, self._options, watch, self._console)
        while not self._is_over(begin, begin_round):
            chaos.step()
            self._note_dead(chaos)
            time.sleep(STEP_SECONDS)
        chaos.mend()
        end = time.monotonic()
        report.faults = dict(chaos.counts)
        report.minutes = (end - begin) / 60
        report.load = os.getloadavg()
        self._console.log("chaos ends; all have to come together")
        if self._check(self._heal):
            self._check(self._look_at_rounds, chaos, begin_round, begin, end)
            self._check(self._look_at_tokens)
        self._check(self._look_at_logs)
        return report

    def _check(self, look: Callable[..., None], *arguments: object) -> bool:
        """Returns whether a look finds nothing wrong."""
        try:
            look(*arguments)
        except AssertionError as error:
            self._problems.append(f"{look.__name__.removeprefix('_')}: {error}")
            return False
        return True

    def _is_over(self, begin: float, begin_round: int) -> bool:
        if self._options.rounds is not None:
            done = self._watch.newest_round(self._lab.running) - begin_round
            return bool(done >= self._options.rounds)
        return bool(time.monotonic() > begin + 60 * self._options.minutes)

    def _note_dead(self, chaos: Chaos) -> None:
        """A peer that could not join tries again; any other end is a failure."""
        for machine in self._lab.machines:
            process = machine.process
            if not machine.is_on or process is None or process.poll() is None:
                continue
            # The one address that it was given was of a machine that broke just then.
            if "cannot join" not in machine.tail(3):
                code = process.returncode
                self._problems.append(f"{machine.name} ended by itself ({code}):\n{machine.tail()}")
            chaos.join(machine)

    def _heal(self) -> None:
        after = self._watch.newest_round(self._lab.running)
        self._watch.all_take_part(self._lab.running, after=after, seconds=HEAL_SECONDS)

    def _look_at_rounds(self, chaos: Chaos, begin_round: int, begin: float, end: float) -> None:
        lab, watch, report = self._lab, self._watch, self._report
        heads = chaos.lost_heads.union(
            *(known_rounds(machine) for machine in lab.machines if machine.root.exists())
        )
        histories = [history_of(machine) for machine in lab.running]
        longest = max(histories, key=len)
        report.digests_compared = watch.num_digests_compared() + num_digests_compared(histories)
        report.rounds_lost = len(heads - {one.head for one in longest.values()})
        rounds = [one for number, one in longest.items() if number > begin_round]
        report.rounds_committed = len(rounds)
        report.members_mean = statistics.mean(len(one.contributors) for one in rounds)
        report.median_round_seconds = watch.median_round_seconds()
        report.longest_stall_seconds = watch.longest_stall_seconds(begin, end)
        patience = SILENCE_SECONDS if {"freeze", "cut"} & set(self._options.faults) else 0.0
        gather = QUICK_ROUNDS.gather_seconds
        report.stall_seconds_max = 2 * report.median_round_seconds + gather + patience
        check_data(longest)
        assert report.longest_stall_seconds <= report.stall_seconds_max, (
            f"no round for {report.longest_stall_seconds:.1f} s"
        )
        may_be_alone = patience > 0
        assert may_be_alone or not report.rounds_lost, f"{report.rounds_lost} rounds were lost"

    def _look_at_tokens(self) -> None:
        """Notes how much of what was trained before now is committed two rounds later."""
        lab, watch, report = self._lab, self._watch, self._report
        now = {machine.name: work_of(machine) for machine in lab.running}
        for _ in range(2):
            watch.all_take_part(lab.running, after=watch.newest_round(lab.running))
        for machine in lab.running:
            first = watch.seen(machine).first
            assert first is not None
            assert first.work is not None
            then, work, later = first.work, now[machine.name], work_of(machine)
            trained = work.trained - then.trained + then.carried
            # What an earlier life seemed to have lost may turn out to be committed.
            gone = later.dropped - then.dropped + max(0, later.lost - then.lost)
            left = max(0, later.carried - (later.trained - work.trained))
            report.tokens_trained += trained
            report.tokens_committed += trained - gone - left
            check_account(machine)
        if not self._run.trains_in_ring:
            assert report.share >= SHARE_MIN, f"{report.share:.2%} of the tokens are in the chain"

    def _look_at_logs(self) -> None:
        for machine in self._lab.machines:
            assert "Traceback" not in machine.log_path.read_text(errors="replace"), machine.name


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--minutes", type=float, default=30.0)
    extent.add_argument("--rounds", type=int, help="instead: until so many are committed")
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--every", type=float, default=15.0, help="seconds from kill to kill")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=[])
    parser.add_argument("--mode", choices=MODES, default="fp32", help="of averaging")
    parser.add_argument("--seed", type=int, default=1, help="of what happens to whom")
    parser.add_argument("--output", type=Path, help="for the results as JSON")
    parser.add_argument("--keep", type=Path, help="folder for the daemons' logs and states")
    options = parser.parse_args(arguments)
    if options.keep is not None and options.keep.exists() and any(options.keep.iterdir()):
        parser.error(f"--keep: {options.keep} is not empty")
    if options.peers < 3:
        parser.error("--peers: at least three, or a dead and a broken one would leave none")
    return options


def main() -> int:
    options = parse_arguments()
    run = QUICK_ROUNDS.averaging(options.mode)
    console = Console(width=None if sys.stdout.isatty() else 120, log_path=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    with contextlib.ExitStack() as stack:
        root = options.keep
        if root is None:
            folder = tempfile.TemporaryDirectory(prefix="gossamer-soak-")
            root = Path(stack.enter_context(folder))
        try:
            rates = [run.mbit] * (options.peers + 1)
            lab = stack.enter_context(Lab(root, rates, OPTIONS))
        except NamespacesUnavailable as error:
            raise SystemExit(str(error)) from error
        ring_bytes = run.ring_bytes(options.peers)
        watch = stack.enter_context(
            Watch(lab, ring_bytes, WATCH_SECONDS, trains_in_ring=run.trains_in_ring)
        )
        report = Soak(options, run, lab, watch, console).run()
    console.print(report.table())
    for problem in report.problems:
        console.print(f"[red]wrong:[/red] {problem}")
    if options.output is not None:
        options.output.write_text(json.dumps(asdict(report), indent=1, default=str) + "\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
