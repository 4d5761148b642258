"""Rounds of real daemons in homes behind routers: one topology, or all of them as a table.

python -m tests.internet.run                  all topologies
python -m tests.internet.run "1 + 3 crossable" --seconds 60
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gossamer.node.app.http.client import give_order
from gossamer.node.storage.state_dir import StateDir
from tests.internet.homes import Homes
from tests.internet.internet import Machine, Router
from tests.internet.line import Line
from tests.support.daemons import MANIFEST
from tests.support.netns import NamespacesUnavailable

LARGE_MANIFEST = """\
preset = "tiny"
name = "homes"
[tokenizer]
kind = "bytes"
[model]
num_layers = 4
width = 192
num_heads = 4
num_kv_heads = 4
hidden_width = 640
context = 32
[inner]
learning_rate = 1e-3
warmup_steps = 10
total_steps = 2_000
ends = false
sequences_per_step = 2
[outer]
inner_steps = 8
warmup_rounds = 2
warmup_inner_steps = 4
codec = "fp16"
chunk_elements = 65536
[rounds]
gather_seconds = 10.0
attempt_seconds = 5.0
checkpoint_rounds = 50
"""
"""2.1 million parameters, 4.2 MB in fp16: a ring of 4 sends 6.3 MB a member, 2.5 s at 20 Mbit/s."""

PATIENCE_SECONDS = 60.0
"""Time until the first round with everybody is given up."""

PUBLIC = Machine()
CROSSABLE = Machine(Router())
STRICT = Machine(Router(ports="random"))

LONG = Machine(line=Line(delay_seconds=0.025))
"""Two lines lie between two homes: 100 ms there and back."""
LOSSY = Machine(line=Line(delay_seconds=0.025, loss=0.0025))
"""A packet passes two lines, so 0.5 % of the packets of each direction are lost."""

TOPOLOGIES: dict[str, list[Machine]] = {
    "4 public": [PUBLIC] * 4,
    "1 public, 2 crossable": [PUBLIC, CROSSABLE, CROSSABLE],
    "1 public, 3 crossable": [PUBLIC, CROSSABLE, CROSSABLE, CROSSABLE],
    "2 public, 2 strict": [PUBLIC, PUBLIC, STRICT, STRICT],
    "1 public, 3 strict": [PUBLIC, STRICT, STRICT, STRICT],
    "1 public, 4 strict": [PUBLIC, STRICT, STRICT, STRICT, STRICT],
    "rendezvous, 4 crossable": [PUBLIC, CROSSABLE, CROSSABLE, CROSSABLE, CROSSABLE],
    "4 public, 100 ms": [LONG] * 4,
    "4 public, 100 ms, 0.5 % lost": [LOSSY] * 4,
}


RENDEZVOUS = ("rendezvous, 4 crossable",)
"""Topologies whose public machine founds the run, and then only introduces the others."""


@dataclass
class Row:
    """The measurements in one topology."""

    name: str
    first_seconds: float
    """Time from the start of the last daemon to the first round with everybody's work."""
    num_rounds: int
    share: float
    round_seconds: float
    averaging_seconds: float
    num_removed: int
    """Members that were put out of a ring."""
    ways: Counter[str]
    """Paths between all pairs of peers at the end."""

    def __str__(self) -> str:
        ways = ", ".join(f"{count} {way}" for way, count in sorted(self.ways.items()))
        return (
            f"| {self.name} | {self.first_seconds:.1f} | {self.num_rounds} | {self.share:.2f} "
            f"| {self.round_seconds:.2f} | {self.averaging_seconds:.2f} | {self.num_removed} "
            f"| {ways} |"
        )


def measure(name: str, manifest_text: str, seconds: float, folder: Path) -> Row:
    """Runs one topology."""
    machines = TOPOLOGIES[name]
    manifest = folder / "manifest.toml"
    manifest.write_text(manifest_text)
    corpus = folder / "corpus.txt"
    corpus.write_text("The quick brown fox jumps over the lazy dog. " * 20_000)
    with Homes(folder, machines, ("--log-format", "json")) as homes:
        founder, everybody, watched = homes.homes[0], len(machines), homes.homes[0]
        options = ["--wait-for-peers", str(everybody - 1)]
        if name in RENDEZVOUS:
            options, everybody, watched = ["--relay", "introduce"], everybody - 1, homes.homes[1]
        founder.start("start", "--manifest", str(manifest), "--corpus", str(corpus), *options)
        founder.wait_for(
            lambda status: status.phase == "training", PATIENCE_SECONDS, "the founded run"
        )
        if name in RENDEZVOUS:
            with homes.internet.inside(founder.number):
                give_order(StateDir(founder.root), "pause")
        for home in homes.homes[1:]:
            home.start("join", founder.public_address)
        started = time.monotonic()
        while time.monotonic() < started + PATIENCE_SECONDS:
            if homes.watch(watched, 1.0).share_of(everybody):
                break
        first_seconds = time.monotonic() - started
        rounds = homes.watch(watched, seconds)
        logs = [home.log_path.read_text(errors="replace") for home in homes.homes]
        ways = Counter(
            peer.path or "none"
            for home in homes.homes
            if (status := home.status()) is not None
            for peer in status.peers
        )
    removed = sum(log.count("a member is out of the ring") for log in logs)
    return Row(
        name,
        first_seconds,
        len(rounds.num_members),
        rounds.share_of(everybody),
        rounds.round_seconds,
        rounds.averaging_seconds,
        removed,
        ways,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(TOPOLOGIES), help="topologies")
    parser.add_argument("--seconds", type=float, default=40.0, help="measured time of each")
    parser.add_argument("--large", action="store_true", help="a ring takes seconds at 20 Mbit/s")
    parser.add_argument("--keep", type=Path, help="folder for logs (JSON) and states")
    parser.add_argument("--chunk-elements", type=int, help="instead of the manifest's")
    options = parser.parse_args()
    manifest = LARGE_MANIFEST if options.large else MANIFEST
    if options.chunk_elements:
        words = f"chunk_elements = {options.chunk_elements}"
        manifest = re.sub(r"chunk_elements = \d+", words, manifest)
    print(
        "| topology | first full round, s | rounds | with everybody | round, s | averaging, s "
        "| put out | paths |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for number, name in enumerate(options.names):
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.keep or Path(temporary)) / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                print(measure(name, manifest, options.seconds, folder), flush=True)
            except NamespacesUnavailable as reason:
                sys.exit(str(reason))


if __name__ == "__main__":
    main()
