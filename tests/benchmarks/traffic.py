"""How many bytes does a round take? Counted at each member's network interface.

    sudo python -m tests.benchmarks.traffic --output tests/benchmarks/results/traffic.json

Every member is a process in a network namespace of its own; what its interface sent and received
during one all-reduce is read from the kernel: TCP/IP headers, encryption, framing, gossip, signs of
life and all. For each mode, model size and number of peers:

    own payload    the peer's own encoded pseudo-gradient (exact, from the codec)
    a step         that for each inner step, and how many times less than an fp32 gradient (a bf16
                   one for `distro`)
    sent, received by one member's interface in a round: the mean, and the most

What is in the output already stays there; what is measured again is replaced.

`all-reduce` is what the others are measured against: fp32 gradients, summed at every step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import psutil
from rich.console import Console
from rich.table import Table

from gossamer.protocol.codecs.payloads import Payloads, payloads_named
from gossamer.protocol.codecs.step_payloads import DISTRO
from gossamer.protocol.state.chunk_plan import ChunkPlan, default_chunk_elements
from tests.benchmarks import _ring_steps
from tests.benchmarks._member import Assignment
from tests.benchmarks._members import Members, ShapedLines
from tests.support.netns import LINE, NamespacesUnavailable, Network

HERE = Path(__file__).parent

MBIT = 1000.0
"""Rate of each line. It decides only how long this takes. Many members with large vectors
want slower ones: if the processors are the limit, who gets less of them is put out of the ring."""

SIZES = {"1 M": 1_000_000, "10 M": 10_000_000, "150 M": 150_000_000}

MEMBER_BYTES, ELEMENT_BYTES = 150e6, 14
"""Memory of a member: up to 835 MB were measured with 50 million fp32 elements (`ring.py`), most of
it copies of its vector."""


@dataclass(frozen=True)
class Mode:
    """A way to average, and how many inner steps lie between two rounds."""

    name: str
    codec: str
    inner_steps: int


MODES = (
    Mode("all-reduce", "fp32", 1),
    Mode("diloco fp16", "fp16", 500),
    Mode("diloco int8", "int8", 500),
    Mode("diloco int4", "int4", 500),
    Mode("sparse", "sparse", 100),
    Mode(DISTRO, DISTRO, _ring_steps.STEPS),
)


@dataclass(frozen=True)
class Result:
    """One round."""

    mode: str
    inner_steps: int
    elements: int
    peers: int
    payload_bytes: int
    sent_mean: float
    sent_max: int
    received_mean: float
    received_max: int

    @property
    def payload_per_step(self) -> float:
        return self.payload_bytes / self.inner_steps

    @property
    def times_less(self) -> float:
        """Factor by which the bytes are fewer than those of an fp32 gradient at every step, or for
        `distro` a bf16 one."""
        gradient_bytes = 2 if self.mode == DISTRO else 4
        return gradient_bytes * self.elements / self.payload_per_step


def measure(mode: Mode, elements: int, peers: int, mbit: float = MBIT) -> Result:
    """One all-reduce, after one that warms up."""
    chunk_elements = default_chunk_elements(elements)
    payloads: Payloads
    if mode.codec == DISTRO:
        payloads, plan = _ring_steps.payloads_of(elements, "members"), _ring_steps.PLAN
    else:
        payloads, plan = payloads_named(mode.codec), ChunkPlan(elements, chunk_elements)
    payload = sum(payloads.part_bytes(plan.elements_of(c)) for c in range(plan.num_chunks))
    members = Members()
    with (
        tempfile.TemporaryDirectory(prefix="gossamer-traffic-") as logs,
        Network([mbit] * peers) as lines,
    ):
        try:
            assignment = Assignment(0, peers, elements, mode.codec, chunk_elements, "", "")
            command = [sys.executable, "-m", "tests.benchmarks._ring_gossamer"]
            members.start("gossamer", command, assignment, ShapedLines(lines), Path(logs))
            counts = []
            for number in range(2):
                before = [counters(lines, machine) for machine in range(peers)]
                members.prepare(number)
                answers = members.hear()
                assert all(answer["is_whole"] for answer in answers), (
                    "not all members are in all of the average; put out of the ring: "
                    f"{[answer['removed'] for answer in answers]}"
                )
                after = [counters(lines, machine) for machine in range(peers)]
                members.say(check=False)  # takes minutes, in which a member hears nothing
                members.hear()
                counts = [
                    (new[0] - old[0], new[1] - old[1])
                    for old, new in zip(before, after, strict=True)
                ]
        finally:
            members.end()
    sent, received = zip(*counts, strict=True)
    return Result(
        mode.name,
        mode.inner_steps,
        elements,
        peers,
        payload,
        mean(sent),
        max(sent),
        mean(received),
        max(received),
    )


def counters(lines: Network, machine: int) -> tuple[int, int]:
    """Bytes that a machine's interface has sent and received."""
    with lines.inside(machine):
        text = Path("/proc/thread-self/net/dev").read_text()
    for row in text.splitlines():
        name, _, rest = row.partition(":")
        if name.strip() == LINE:
            fields = rest.split()
            return int(fields[8]), int(fields[0])
    raise AssertionError(f"no {LINE} in\n{text}")


Key = tuple[str, int, int]
"""Mode, elements, peers."""


def kept(path: Path | None) -> dict[Key, Result]:
    """Returns the results of earlier runs; new results take their place."""
    if path is None or not path.exists():
        return {}
    results = [Result(**fields) for fields in json.loads(path.read_text())]
    return {(one.mode, one.elements, one.peers): one for one in results}


def in_order(results: Mapping[Key, Result]) -> list[Result]:
    names = [mode.name for mode in MODES]
    return [results[key] for key in sorted(results, key=lambda key: (names.index(key[0]), key[1:]))]


def table_of(results: Sequence[Result]) -> Table:
    table = Table(title="Bytes of a round, at the members' interfaces")
    for header in ("mode", "H", "model", "peers", "own payload", "a step", "times less"):
        table.add_column(header, justify="left" if header == "mode" else "right")
    for header in ("sent", "most", "received", "most"):
        table.add_column(header, justify="right")
    for one in results:
        table.add_row(
            one.mode,
            str(one.inner_steps),
            f"{one.elements / 1e6:g} M",
            str(one.peers),
            size(one.payload_bytes),
            size(one.payload_per_step),
            f"{one.times_less:,.0f}",
            size(one.sent_mean),
            size(one.sent_max),
            size(one.received_mean),
            size(one.received_max),
        )
    return table


def size(num_bytes: float) -> str:
    if num_bytes >= 1e6:
        return f"{num_bytes / 1e6:,.2f} MB"
    return f"{num_bytes / 1e3:,.2f} kB"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [mode.name for mode in MODES]
    parser.add_argument("--modes", nargs="+", choices=names, default=names)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--peers", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--mbit", type=float, default=MBIT, help="each member's line")
    parser.add_argument("--output", type=Path, help="for the results as JSON")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    results = kept(options.output)
    for mode in (mode for mode in MODES if mode.name in options.modes):
        for model in options.models:
            for peers in options.peers:
                elements = SIZES[model]
                needed = peers * (MEMBER_BYTES + ELEMENT_BYTES * elements)
                if needed > psutil.virtual_memory().available:
                    console.log(f"{mode.name}, {model}, {peers} peers: too large for this machine")
                    continue
                try:
                    result = measure(mode, elements, peers, options.mbit)
                except NamespacesUnavailable as error:
                    raise SystemExit(str(error)) from error
                console.log(f"{mode.name}, {model}, {peers} peers: {size(result.sent_mean)}")
                results[mode.name, elements, peers] = result
                if options.output is not None:
                    found = [asdict(result) for result in in_order(results)]
                    options.output.write_text(json.dumps(found, indent=1) + "\n")
    console.print(table_of(in_order(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
