"""How fast is the ring? Gossamer's all-reduce among N processes, beside gloo's and hivemind's.

    python -m tests.benchmarks.ring --elements 50000000 --with-gloo --with-hivemind
    sudo python -m tests.benchmarks.ring --elements 10000000 --mbit 100 --with-gloo
    sudo python -m tests.benchmarks.ring --codec int8 --mbit 100 --round-trip-ms 100 --lost 0.005
    sudo python -m tests.benchmarks.ring --codec int8 fp32 sparse --mbit 20 --with-open

Every member is a process of its own. With `--mbit` each of them sits in its own network namespace
behind a line of that rate in each direction (`tc tbf`), else they share the loopback. With
`--round-trip-ms` and `--lost` the lines have a delay and losses as well, from a process for each
line, which takes processor time of its own: use it on a machine that is free. All systems take
turns, one all-reduce each, so that other load on the machine meets them alike; the first turn
warms up and does not count. TCP begins slowly on a connection that has not carried a ring yet. The
order of a ring is another one each time, so `--warm-up 12` measures members that have been together
for a while. Several codecs take turns likewise. The result of every turn is
compared with numpy's mean and between the members. With `--codec distro` a turn is 50 shared steps
without training, whose results are sets: only their bits are compared. The bits alone are compared
with `sparse` as well, whose average has a few elements of each member.

Columns:
    seconds    from the common start to the moment when the last member has the whole average:
               median (fastest to slowest). Gossamer's includes gathering the ring by gossip;
               hivemind's matchmaking is done before.
    algorithm  the vector's fp32 bytes / seconds
    line       limit / seconds, with the limit 2 (N-1)/N * encoded bytes / rate. With fp32 and
               fp16 these are the bytes before packing: some 85 of 100 of them travel
    MB, CPU s  sent, and processor seconds, of a member on average
    CPU s/GB   processor seconds of all members / gigabytes (1e9) they sent
    memory     the largest member's peak resident memory, with its vector
    error      the largest of any element and turn; "wrong" if rounding does not explain it

hivemind needs numpy < 2.3, so it runs in a virtual environment of its own. `--with-hivemind` makes
one in a temporary folder; one that exists is given as `--with-hivemind ENVIRONMENT/bin/python`:

    python -m venv ENVIRONMENT
    ENVIRONMENT/bin/pip install hivemind==1.1.12 "numpy<2.3" torch==2.13.0
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gossamer.protocol.codecs.payloads import SPARSE, payloads_named
from gossamer.protocol.codecs.step_payloads import DISTRO
from gossamer.protocol.codecs.tensor_codecs import codec, codec_names
from gossamer.protocol.limits import CHUNK_ELEMENTS_MAX, CHUNK_ELEMENTS_MIN
from gossamer.protocol.manifest import Trust
from gossamer.protocol.state.chunk_plan import default_chunk_elements
from tests.benchmarks import _ring_steps
from tests.benchmarks._member import Assignment
from tests.benchmarks._members import Lines, LongLines, Members, ShapedLines
from tests.internet.internet import Internet, Machine
from tests.internet.line import Line
from tests.support.netns import NamespacesUnavailable, Network

HIVEMIND = ("hivemind==1.1.12", "numpy<2.3", "torch==2.13.0")


@dataclass(frozen=True)
class Turn:
    """One all-reduce of one system."""

    seconds: float
    cpu_seconds: float
    rss_bytes: int
    bytes_sent: int
    error: float
    magnitude: float
    identical: bool
    is_whole: bool
    """Whether all members are in all of the result."""
    ring_seconds: float | None
    committed_seconds: float | None
    round_cpu_seconds: float
    """Processor seconds of all members until the commit, with the outer step."""


@dataclass
class System:
    """One way to average, and what was measured of it."""

    name: str
    script: str
    python: str
    codec: str
    trust: Trust = "members"
    packing: bool = True
    members: Members = field(default_factory=Members)
    turns: list[Turn] = field(default_factory=list)

    @property
    def is_mean_expected(self) -> bool:
        """Whether the result is the mean of the members' vectors."""
        return self.trust == "members" and self.codec in codec_names()

    def start(self, options: argparse.Namespace, lines: Lines | None, logs: Path) -> None:
        """Starts its members and connects them."""
        plan = Assignment(
            rank=0,
            num_members=options.peers,
            num_elements=options.elements,
            codec=self.codec,
            chunk_elements=options.chunk_elements,
            host="",
            interface="",
            trust=self.trust,
            packing=self.packing,
        )
        self.members.start(
            f"{self.name} {self.codec}",
            [self.python, "-m", f"tests.benchmarks.{self.script}"],
            plan,
            lines,
            logs,
        )

    def turn(self, number: int, num_elements: int) -> Turn:
        """One all-reduce.

        Raises:
            SystemExit: a member is left without the average; the message says why.
        """
        start = self.members.prepare(number)
        answers = self.members.hear()
        for rank, answer in enumerate(answers):
            if "finished_seconds" not in answer:
                why = ", ".join(f"member {out}: {why}" for out, why in answer["removed"].items())
                raise SystemExit(
                    f"turn {number} of {self.name}: member {rank} has no average, because the ring "
                    f"went on without some ({why})"
                )
        self.members.say(check=True)
        checks = self.members.hear()

        def latest(key: str) -> float | None:
            return max(a[key] for a in answers) - start if key in answers[0] else None

        seconds = latest("finished_seconds")
        assert seconds is not None
        return Turn(
            seconds=seconds,
            cpu_seconds=sum(answer["cpu_seconds"] for answer in answers),
            rss_bytes=max(answer["rss_bytes"] for answer in answers),
            bytes_sent=sum(
                answer.get("bytes_sent", ideal_bytes(self.codec, num_elements, len(answers)))
                for answer in answers
            ),
            error=checks[0]["error"],
            magnitude=checks[0]["magnitude"],
            identical=len({check["digest"] for check in checks}) == 1,
            is_whole=all(
                len(ranks) == len(answers) for check in checks for _, _, ranks in check["parts"]
            ),
            ring_seconds=latest("ring_seconds"),
            committed_seconds=latest("committed_seconds"),
            round_cpu_seconds=sum(answer.get("round_cpu_seconds", 0.0) for answer in answers),
        )


def ideal_bytes(codec_name: str, num_elements: int, num_members: int) -> float:
    """Returns the bytes that every member sends in a ring or a scatter-gather without any waste."""
    links = 2 * (num_members - 1) / num_members
    if codec_name == DISTRO:
        set_bytes = _ring_steps.payloads_of(num_elements, "members").mean_bytes(1, num_members)
        return links * _ring_steps.STEPS * set_bytes
    if codec_name == SPARSE:
        return links * payloads_named(SPARSE).mean_bytes(num_elements, num_members)
    return links * codec(codec_name).encoded_bytes(num_elements)


def error_max(codec_name: str, num_members: int, magnitude: float) -> float:
    """Returns an upper bound on the rounding error: a rounding for each member, and one for the
    average.

    Of a partial sum, whose largest magnitude is not that of the mean: hence the factor 4.
    """
    step = {"fp32": 2.0**-24, "fp16": 2.0**-11, "int8": 1 / 252, "int4": 0.16}[codec_name]
    return 4 * (num_members + 1) * step * magnitude


# The whole


def measure(options: argparse.Namespace, systems: Sequence[System], console: Console) -> None:
    """Fills in the systems' turns."""
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gossamer-ring-")))
        lines = stack.enter_context(network(options))
        for system in systems:
            stack.callback(system.members.end)
            console.log(f"starting {options.peers} members of {system.name}")
            system.start(options, lines, logs)
        for number in range(options.warm_up + options.repeats):
            for system in systems:
                turn = system.turn(number, options.elements)
                counted = number + 1 - options.warm_up
                what = f"turn {counted}" if counted > 0 else "warm-up"
                console.log(f"{system.name}: {what} {turn.seconds:.2f} s")
                if counted > 0:
                    system.turns.append(turn)


@contextlib.contextmanager
def network(options: argparse.Namespace) -> Iterator[Lines | None]:
    """Lines if they are wanted, else the loopback."""
    if options.mbit is None:
        yield None
        return
    try:
        if options.round_trip_ms or options.lost:
            with Internet([Machine(line=long_line(options))] * options.peers) as internet:
                yield LongLines(internet)
        else:
            with Network([options.mbit] * options.peers) as network:
                yield ShapedLines(network)
    except NamespacesUnavailable as error:
        raise SystemExit(f"{error}\nor leave out --mbit") from error


def long_line(options: argparse.Namespace) -> Line:
    """Returns a member's line. A packet passes two lines, so each has half of the delay of one way,
    and half of the losses."""
    return Line(
        up_mbit=options.mbit,
        down_mbit=options.mbit,
        delay_seconds=options.round_trip_ms / 1000 / 4,
        loss=options.lost / 2,
        queue_seconds=options.queue_ms / 1000,
    )


def line_of(options: argparse.Namespace) -> str:
    """Returns a member's line for people."""
    if options.mbit is None:
        return "loopback"
    line = f"{options.mbit:g} Mbit/s a member"
    if options.round_trip_ms:
        line += f", {options.round_trip_ms:g} ms there and back"
    if options.lost:
        line += f", {options.lost:.1%} lost"
    return line


def table_of(options: argparse.Namespace, systems: Sequence[System]) -> Table:
    table = Table(
        title=f"{options.peers} members, {options.elements:,} elements, {line_of(options)}, "
        f"median of {options.repeats}"
    )
    table.add_column("system")
    for header in (
        "seconds", "algorithm MB/s", "line", "MB sent", "CPU s", "CPU s/GB", "memory MB", "error"
    ):  # fmt: skip
        table.add_column(header, justify="right")
    table.add_column("same bits")
    for system in systems:
        table.add_row(*row_of(options, system))
    return table


def row_of(options: argparse.Namespace, system: System) -> list[str]:
    turns = system.turns
    seconds = [turn.seconds for turn in turns]
    median = statistics.median(seconds)
    share = "-"
    if options.mbit is not None:
        encoded = ideal_bytes(system.codec, options.elements, options.peers)
        share = f"{encoded / (options.mbit * 1e6 / 8) / median:.1%}"
    cpu = statistics.median(turn.cpu_seconds / (turn.bytes_sent / 1e9) for turn in turns)
    return [
        f"{system.name} {system.codec}",
        f"{median:.2f} ({min(seconds):.2f}-{max(seconds):.2f})",
        f"{4 * options.elements / median / 1e6:.0f}",
        share,
        f"{statistics.median(turn.bytes_sent for turn in turns) / options.peers / 1e6:.2f}",
        f"{statistics.median(turn.cpu_seconds for turn in turns) / options.peers:.2f}",
        f"{cpu:.2f}",
        f"{max(turn.rss_bytes for turn in turns) / 1e6:.0f}",
        error_of(system, options.peers),
        "yes" if all(turn.identical for turn in turns) else "no",
    ]


def error_of(system: System, num_members: int) -> str:
    """Returns the largest error for people. A robust average is no mean, nor is a set of signs."""
    if not system.is_mean_expected:
        return "-"
    error = f"{max(turn.error for turn in system.turns):.1e}"
    return error if is_mean(system, num_members) else f"{error} wrong"


def is_mean(system: System, num_members: int) -> bool:
    """Returns whether every result was numpy's mean but for rounding."""
    return all(
        turn.error <= error_max(system.codec, num_members, turn.magnitude) for turn in system.turns
    )


def problems_of(system: System, num_members: int) -> list[str]:
    """Returns the faults in the results of Gossamer's ring."""
    problems = []
    if not all(turn.is_whole for turn in system.turns):
        problems.append("a member is not in the whole result")
    if not all(turn.identical for turn in system.turns):
        problems.append("the members' results differ")
    if system.is_mean_expected and not is_mean(system, num_members):
        problems.append(f"the result is off by {max(turn.error for turn in system.turns)}")
    return problems


def hivemind_python(wanted: str, stack: contextlib.ExitStack, console: Console) -> str:
    """The interpreter that has hivemind; makes a virtual environment if none is given."""
    if wanted:
        return wanted
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gossamer-hivemind-")))
    console.log(f"installing {', '.join(HIVEMIND)} in {root}")
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
    python = str(root / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *HIVEMIND], check=True)
    return python


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=10_000_000)
    choices = [*codec_names(), SPARSE, DISTRO]
    parser.add_argument("--codec", choices=choices, nargs="+", default=["fp32"])
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mbit", type=float, help="each member's line, both directions")
    parser.add_argument("--round-trip-ms", type=float, default=0.0, help="between two members")
    parser.add_argument("--lost", type=float, default=0.0, help="share of packets, each direction")
    parser.add_argument("--queue-ms", type=float, default=50.0, help="of a line with a delay")
    parser.add_argument("--warm-up", type=int, default=1, help="turns that do not count")
    parser.add_argument("--chunk-elements", type=int, help="of a chunk; default: a run's default")
    parser.add_argument("--with-open", action="store_true", help='a ring with trust = "open", too')
    parser.add_argument("--with-unpacked", action="store_true", help="a ring without packing, too")
    parser.add_argument("--with-gloo", action="store_true")
    parser.add_argument("--with-hivemind", nargs="?", const="", metavar="PYTHON")
    options = parser.parse_args(arguments)
    if (
        options.peers < 2
        or options.elements < options.peers
        or options.repeats < 1
        or options.warm_up < 0
    ):
        parser.error("at least two peers, an element each, and one repeat")
    if options.mbit is None and (options.round_trip_ms or options.lost):
        parser.error("--round-trip-ms and --lost need --mbit")
    if options.chunk_elements is None:
        options.chunk_elements = default_chunk_elements(options.elements)
    if not CHUNK_ELEMENTS_MIN <= options.chunk_elements <= CHUNK_ELEMENTS_MAX:
        parser.error(f"--chunk-elements: {CHUNK_ELEMENTS_MIN} to {CHUNK_ELEMENTS_MAX}")
    return options


def main() -> int:
    options = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 120, log_path=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    systems: list[System] = []
    with contextlib.ExitStack() as stack:
        script = "_ring_gossamer"
        for name in options.codec:
            systems.append(System("Gossamer", script, sys.executable, name))
            if options.with_unpacked:
                systems.append(System("unpacked", script, sys.executable, name, packing=False))
            if options.with_open:
                systems.append(System("open", script, sys.executable, name, trust="open"))
        if options.with_gloo:
            systems.append(System("gloo", "_ring_gloo", sys.executable, "fp32"))
        if options.with_hivemind is not None:
            python = hivemind_python(options.with_hivemind, stack, console)
            systems.append(System("hivemind", "_ring_hivemind", python, options.codec[0]))
        measure(options, systems, console)
    console.print(table_of(options, systems))
    of_gossamer = [each for each in systems if each.script == script]
    console.print(f"Gossamer: chunks of {options.chunk_elements:,} elements. Medians of a round:")
    for one in of_gossamer:
        gather = statistics.median(turn.ring_seconds or 0.0 for turn in one.turns)
        commit = statistics.median(turn.committed_seconds or 0.0 for turn in one.turns)
        cpu = statistics.median(turn.round_cpu_seconds for turn in one.turns) / options.peers
        console.print(
            f"{one.name} {one.codec}: the ring was formed after {gather:.2f} s, the round "
            f"committed after {commit:.2f} s, {cpu:.2f} CPU s a member with the outer step"
        )
    problems = [each for one in of_gossamer for each in problems_of(one, options.peers)]
    for problem in problems:
        console.print(f"[red]wrong:[/red] {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
