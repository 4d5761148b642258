"""Measures what a round costs real daemons that train together, among more and more of them.

    python -m tests.benchmarks.training_daemons --peers 8 16     # docs/benchmarks/scale.md

The daemons are those of the commands, each with a trainer of its own, on loopback, with a model of
some ten thousand parameters. They start as in `idle_cpu`. When a committed round has all of them,
rounds are watched for some time. Trainers need most of the processor: with more daemons than cores
the seconds of a round say how crowded the machine is.

Columns, for each daemon and round, but for the first three:
    rounds      that were watched
    members     mean number of members with work in these rounds
    seconds     for one round
    daemon CPU  seconds of the processor, without the trainers
    ring        kB received of chunks
    gossip      kB received of gossip: announcements, statements, records
    other       kB received of all else: comparisons of stores, blocks, chain
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from tests.benchmarks.idle_cpu import JOINING_AT_ONCE, START_SECONDS
from tests.support.daemons import MANIFEST, OPTIONS, get, path_on_disk

LOOK_SECONDS = 1.0

CORPUS_LINES = 200_000
"""Some 9 MB: shards for many more daemons than are measured."""


def _start(swarm: LocalSwarm, root: Path, num_peers: int, inner_steps: int) -> None:
    """Starts daemons that train until one round has all of them."""
    manifest = root / "run.toml"
    manifest.write_text(MANIFEST.replace("inner_steps = 40", f"inner_steps = {inner_steps}"))
    corpus = root / "corpus.txt"
    # Equal documents count once, and a daemon without a shard of its own is in no ring.
    lines = (f"Number {number} of all lines that they train on." for number in range(CORPUS_LINES))
    corpus.write_text("\n".join(lines))
    # Alone the founder would do rounds quicker than many newcomers on few cores fetch them.
    wait = ("--wait-for-peers", str(num_peers - 1))
    seed = swarm.found("--manifest", str(manifest), "--corpus", str(corpus), *wait)
    address = seed.address()
    for first in range(1, num_peers, JOINING_AT_ONCE):
        joining = [swarm.add() for _ in range(first, min(first + JOINING_AT_ONCE, num_peers))]
        for node in joining:
            node.start("join", address, "--yes")
        for node in joining:
            node.wait_for(lambda status: status.phase == "training", START_SECONDS, "training")
    deadline = time.monotonic() + START_SECONDS
    while _members_since(seed, 0)[-1:] != [num_peers]:
        if time.monotonic() > deadline:
            raise SystemExit(f"no round with all {num_peers} daemons in {START_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


def _members_since(node: LocalNode, first: int) -> list[int]:
    """Members with work in each committed round from a number on."""
    try:
        chain, path = path_on_disk(node)
    except FileNotFoundError:
        return []
    headers = [chain.header(head) for head in path[first:]]
    return [sum(member.tokens > 0 for member in header.members) for header in headers]


def _received(node: LocalNode) -> Counter[str]:
    """Payload bytes that a daemon has received since its start, by purpose."""
    text = get(node, "/metrics")[1]
    name = r'^gossamer_network_bytes_total{direction="received",purpose="(\S+)"} (\S+)$'
    return Counter({purpose: int(float(n)) for purpose, n in re.findall(name, text, re.MULTILINE)})


def _cpu_seconds(node: LocalNode) -> float:
    assert node.process is not None
    times = psutil.Process(node.process.pid).cpu_times()
    return times.user + times.system


def measure(num_peers: int, seconds: float, inner_steps: int) -> str:
    """Returns a row of the table."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as root,
        LocalSwarm(Path(root), OPTIONS) as swarm,
    ):
        _start(swarm, Path(root), num_peers, inner_steps)
        seed = swarm.nodes[0]
        first = len(path_on_disk(seed)[1])
        before = [(_received(node), _cpu_seconds(node)) for node in swarm.nodes]
        began = time.monotonic()
        time.sleep(seconds)
        after = [(_received(node), _cpu_seconds(node)) for node in swarm.nodes]
        took = time.monotonic() - began
        members = _members_since(seed, first)
    num_rounds = len(members)
    if not num_rounds:
        raise SystemExit(f"no round of {num_peers} daemons in {seconds:.0f} s")
    bytes_of: Counter[str] = Counter()
    for (then, _), (now, _) in zip(before, after, strict=True):
        bytes_of.update(now - then)
    cpu = sum(now - then for (_, then), (_, now) in zip(before, after, strict=True))
    ring, gossip = bytes_of.pop("ring", 0), bytes_of.pop("gossip", 0)
    share = num_peers * num_rounds
    return (
        f"| {num_peers} | {num_rounds} | {statistics.mean(members):.1f} | {took / num_rounds:.1f} "
        f"| {cpu / share:.2f} | {ring / share / 1e3:.1f} | {gossip / share / 1e3:.1f} "
        f"| {bytes_of.total() / share / 1e3:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a round costs daemons that train.")
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--seconds", type=float, default=60.0, help="that are watched")
    parser.add_argument("--inner-steps", type=int, default=40, help="of a round")
    options = parser.parse_args()
    print(
        "| daemons | rounds | members | seconds | daemon CPU | ring, kB | gossip, kB | other, kB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for num_peers in options.peers:
        print(measure(num_peers, options.seconds, options.inner_steps), flush=True)


if __name__ == "__main__":
    main()
