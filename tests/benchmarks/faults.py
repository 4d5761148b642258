"""Measures the cost of a fault in the middle of an all-reduce: Gossamer's ring on machines with
slow lines.

    sudo python -m tests.benchmarks.faults                       # docs/benchmarks/faults.md
    sudo python -m tests.benchmarks.faults --faults kill freeze --repeats 3

Every member is a process on a machine (network namespace) of its own, behind a line of `--mbit` in
each direction. For each fault fresh members do a warm-up, then an all-reduce that nothing happens
to, then one in whose middle, `--after` seconds after the common start, the fault hits:

    kill        SIGKILL of one member
    neighbours  SIGKILL of two members that follow each other in the ring, at once
    freeze      SIGSTOP of one member
    silent      one member's line drops everything without a word
    slow        one member's line has a twentieth of the rate

Columns:
    undisturbed  from the common start until the last member has the whole average, in seconds
    with fault   the same, for the members that nothing happened to
    committed    until the last of those has the round's votes
    in a chunk   of those, how many are in the chunk that has the fewest (all must be), and members
                 in all, the broken ones counted where they are in: mean over chunks
    same bits    whether all of those have the same average, and it is the mean of who is in it
    out          why members are out of the ring, in the words of the metrics
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gossamer.node.rounds.opening import first_word
from gossamer.protocol.codecs.tensor_codecs import codec_names
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.protocol.state.chunk_plan import default_chunk_elements
from tests.benchmarks._member import Assignment
from tests.benchmarks._members import Members, ShapedLines
from tests.benchmarks._ring_gossamer import head_of
from tests.benchmarks.ring import error_max
from tests.support.netns import NamespacesUnavailable, Network

FAULTS = ("kill", "neighbours", "freeze", "silent", "slow")

PATIENCE_SECONDS = 90.0
"""Longest wait for an all-reduce: longer than any of the others' time-outs. A member that was put
out of the ring by mistake gets the average from no peer here, while a node would fetch it: then
this is what is waited for."""

SLOW_PART = 1 / 20

WARM_UP, UNDISTURBED, BROKEN = range(3)
"""Numbers of the all-reduces of one set of members."""


@dataclass(frozen=True)
class Outcome:
    """One fault, once."""

    fault: str
    undisturbed_seconds: float
    seconds: float | None
    """None: the members that nothing happened to did not all finish in `PATIENCE_SECONDS`."""
    committed_seconds: float | None = None
    survivors: int = 0
    survivors_min: int = 0
    """Survivors in the chunk that has the fewest of them."""
    contributors_mean: float = 0.0
    is_right: bool = False
    reasons: tuple[str, ...] = ()
    load: float = 0.0
    """Load of the machine, averaged over one minute."""

    @property
    def is_good(self) -> bool:
        return self.is_right and self.survivors_min == self.survivors


class Experiment:
    """One fault, once, with members of its own."""

    def __init__(self, options: argparse.Namespace, fault: str) -> None:
        self._options = options
        self._fault = fault
        self._members = Members()

    def run(self) -> Outcome:
        options = self._options
        with contextlib.ExitStack() as stack:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gossamer-faults-")))
            lines = stack.enter_context(Network([options.mbit] * options.peers))
            stack.callback(self._members.end)
            plan = Assignment(
                rank=0,
                num_members=options.peers,
                num_elements=options.elements,
                codec=options.codec,
                chunk_elements=default_chunk_elements(options.elements),
                host="",
                interface="",
            )
            command = [sys.executable, "-m", "tests.benchmarks._ring_gossamer"]
            self._members.start("Gossamer", command, plan, ShapedLines(lines), logs)
            self._undisturbed(WARM_UP)
            undisturbed_seconds = self._undisturbed(UNDISTURBED)
            return self._broken(lines, undisturbed_seconds)

    def _undisturbed(self, number: int) -> float:
        start = self._members.prepare(number)
        answers = self._members.hear()
        self._members.say(check=True)
        self._members.hear()
        finished: float = max(answer["finished_seconds"] for answer in answers)
        return finished - start

    def _broken(self, lines: Network, undisturbed_seconds: float) -> Outcome:
        victims = self._victims()
        others = [rank for rank in range(self._options.peers) if rank not in victims]
        start = self._members.prepare(BROKEN)
        time.sleep(max(0.0, start + self._options.after - time.monotonic()))
        for victim in victims:
            self._hit(lines, victim)
        deadline = time.monotonic() + PATIENCE_SECONDS
        answers = []
        for rank in others:
            left = max(0.0, deadline - time.monotonic())
            answer = self._members[rank].hear_within(left)
            if answer is None or "finished_seconds" not in answer:
                return Outcome(
                    self._fault,
                    undisturbed_seconds,
                    None,
                    survivors=len(others),
                    reasons=(f"member {rank} has no average",),
                    load=os.getloadavg()[0],
                )
            answers.append(answer)
        self._members.say(others, check=True)
        checks = self._members.hear(others)
        chunks = [set(ranks) for check in checks for _, _, ranks in check["parts"]]
        error, magnitude = checks[0]["error"], checks[0]["magnitude"]
        return Outcome(
            self._fault,
            undisturbed_seconds,
            max(answer["finished_seconds"] for answer in answers) - start,
            max(answer["committed_seconds"] for answer in answers) - start,
            len(others),
            min(len(chunk.intersection(others)) for chunk in chunks),
            statistics.mean(len(chunk) for chunk in chunks),
            len({check["digest"] for check in checks}) == 1
            and error <= error_max(self._options.codec, self._options.peers, magnitude),
            tuple(sorted({first_word(why) for a in answers for why in a["removed"].values()})),
            os.getloadavg()[0],
        )

    def _victims(self) -> list[int]:
        """Ranks, never the first: that one compares the result with the mean."""
        peers = [PeerId(address.rsplit("/", 1)[1]) for address in self._members.addresses]
        order = [peers.index(peer) for peer in rank_order(head_of(BROKEN), 0, peers)]
        after_first = order[order.index(0) + 1 :] + order[: order.index(0)]
        return after_first[: 2 if self._fault == "neighbours" else 1]

    def _hit(self, lines: Network, victim: int) -> None:
        actions: dict[str, Callable[[], None]] = {
            "kill": lambda: self._members[victim].signal(signal.SIGKILL),
            "neighbours": lambda: self._members[victim].signal(signal.SIGKILL),
            "freeze": lambda: self._members[victim].signal(signal.SIGSTOP),
            "silent": lambda: lines.cut(victim),
            "slow": lambda: lines.set_rate(victim, SLOW_PART * self._options.mbit),
        }
        actions[self._fault]()


def table_of(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> Table:
    table = Table(
        title=f"{options.peers} members, {options.elements:,} {options.codec} elements, "
        f"{options.mbit:g} Mbit/s a member, fault after {options.after:g} s"
    )
    table.add_column("fault")
    for header in ("undisturbed", "with fault", "committed", "in a chunk"):
        table.add_column(header, justify="right")
    table.add_column("same bits")
    table.add_column("out")
    for fault in dict.fromkeys(outcome.fault for outcome in outcomes):
        table.add_row(*row_of([outcome for outcome in outcomes if outcome.fault == fault]))
    return table


def row_of(outcomes: Sequence[Outcome]) -> list[str]:
    """The table's row of one fault."""
    first = outcomes[0]
    undisturbed = [outcome.undisturbed_seconds for outcome in outcomes]
    seconds = [outcome.seconds for outcome in outcomes]
    committed = [outcome.committed_seconds for outcome in outcomes]
    fewest = min(outcome.survivors_min for outcome in outcomes)
    members = statistics.mean(outcome.contributors_mean for outcome in outcomes)
    return [
        first.fault,
        spread(undisturbed),
        spread(seconds),
        spread(committed),
        f"{fewest} of {first.survivors}, {members:.2f} in all",
        "yes" if all(outcome.is_right for outcome in outcomes) else "no",
        ", ".join(sorted({why for outcome in outcomes for why in outcome.reasons})),
    ]


def spread(seconds: Sequence[float | None]) -> str:
    """Median, and the range if there are several."""
    found = [one for one in seconds if one is not None]
    if len(found) < len(seconds):
        return f"not in {PATIENCE_SECONDS:.0f}"
    text = f"{statistics.median(found):.2f}"
    return text if len(found) == 1 else f"{text} ({min(found):.2f}-{max(found):.2f})"


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--codec", choices=codec_names(), default="fp32")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=100.0, help="each line, both directions")
    parser.add_argument("--after", type=float, default=2.0, help="seconds from the common start")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", type=Path, help="for the results as JSON")
    options = parser.parse_args(arguments)
    if options.peers < 3 or options.elements < options.peers or options.repeats < 1:
        parser.error("at least three peers, an element each, and one repeat")
    return options


def main() -> int:
    options = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 140, log_path=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    outcomes = []
    for _ in range(options.repeats):
        for fault in options.faults:
            try:
                outcome = Experiment(options, fault).run()
            except NamespacesUnavailable as error:
                raise SystemExit(str(error)) from error
            outcomes.append(outcome)
            console.log(
                f"{fault}: {spread([outcome.undisturbed_seconds])} s undisturbed, "
                f"{spread([outcome.seconds])} s with the fault (load {outcome.load:.1f})"
            )
    console.print(table_of(options, outcomes))
    if options.output is not None:
        options.output.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
