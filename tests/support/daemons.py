"""Operations of the end-to-end tests on real daemons: start, wait, ask, and read their disks."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status
from gossamer.protocol.ids import Digest
from gossamer.protocol.shard_index import decode_index

MANIFEST = """\
preset = "tiny"
name = "end-to-end"
[tokenizer]
kind = "bytes"
[model]
num_layers = 1
width = 32
num_heads = 2
num_kv_heads = 1
hidden_width = 64
context = 32
[inner]
learning_rate = 2e-3
warmup_steps = 10
total_steps = 2_000
ends = false
sequences_per_step = 8
[outer]
inner_steps = 40
warmup_rounds = 2
warmup_inner_steps = 20
chunk_elements = 2048
[rounds]
gather_seconds = 5.0
attempt_seconds = 2.0
checkpoint_rounds = 5
"""
"""A run that is small enough for many daemons on two cores."""

WORDS = ("peer", "ring", "round", "chunk", "head", "token", "commit", "swarm", "block", "state")

OPTIONS = ("--threads", "1")
PATIENCE_SECONDS = 90.0
"""Time for what takes seconds on an idle machine: a daemon starts in three, a round takes one."""

_T = TypeVar("_T")


def write_corpus(folder: Path, lines_per_file: int = 250) -> None:
    """A corpus that a small model learns from: 16 files, of some 250 KB with the default."""
    randomness = random.Random(1)
    for number in range(16):
        lines = [" ".join(randomness.choices(WORDS, k=12)) for _ in range(lines_per_file)]
        (folder / f"{number}.txt").write_text("\n".join(lines))


def poll(condition: Callable[[], _T | None], what: str, seconds: float = PATIENCE_SECONDS) -> _T:
    """The first result of `condition` that is true."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {seconds:g} s")
        time.sleep(0.05)
    return result


def gossamer(
    *arguments: str | Path,
    seconds: float = PATIENCE_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Runs one command to its end, as a person would. `environment`: None is that of the test."""
    done = subprocess.run(
        [sys.executable, "-m", "gossamer.node.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Answer:
    """The answer of a command."""

    status: int
    out: str
    err: str


def refused(*arguments: str | Path, status: int = 2) -> str:
    """The error of a daemon command that must not start anything: on stderr, and by default with
    the status of what somebody has to change."""
    answer = gossamer(*arguments, "--listen", "/ip4/127.0.0.1/tcp/0", "--api", "127.0.0.1:0")
    assert answer.status == status, answer
    return answer.err


def takes_part(status: Status) -> bool:
    return status.phase in ("training", "averaging")


def in_rounds_of(num_peers: int) -> Callable[[Status], bool]:
    """Makes the condition that the newest round of a node had so many contributors."""

    def condition(status: Status) -> bool:
        last = status.last_round
        return (
            takes_part(status)
            and last is not None
            and last.outcome == "committed"
            and len(last.contributors) == num_peers
        )

    return condition


def wait_for_round(node: LocalNode, number: int) -> Status:
    return node.wait_for(lambda status: status.round >= number, PATIENCE_SECONDS, f"round {number}")


def said(node: LocalNode, text: str) -> bool:
    """Returns whether the node's log has a text."""
    return text in node.log_path.read_text(errors="replace")


def has_all_data(node: LocalNode) -> bool:
    """Returns whether every shard is on the disk of a running node: so no other node is needed for
    the data."""
    state_dir = StateDir(node.root)
    signed = state_dir.read_manifest()
    assert signed is not None

    def path(digest: bytes) -> Path:
        return state_dir.blocks_path / digest.hex()[:2] / digest.hex()

    index_path = path(open_signed_manifest(signed).data.index_digest)
    if not index_path.exists():
        return False
    shards = decode_index(index_path.read_bytes()).shards
    return all(path(shard.digest).exists() for shard in shards)


def chain_of(node: LocalNode) -> ChainStore:
    """The committed headers on the node's disk."""
    state_dir = StateDir(node.root)
    signed = state_dir.read_manifest()
    assert signed is not None
    manifest = open_signed_manifest(signed)
    genesis_state = Digest(manifest.genesis_digest)
    return ChainStore(state_dir.chain_path, manifest.run_id, genesis_state, read_only=True)


def head_of(node: LocalNode) -> Digest:
    """The head that the node wrote last."""
    return Digest(bytes.fromhex(StateDir(node.root).head_path.read_text().strip()))


def path_on_disk(node: LocalNode) -> tuple[ChainStore, Sequence[Digest]]:
    """The node's chain, and the committed rounds from its genesis to the head that the node wrote
    last.

    The head is read first. A running daemon commits meanwhile, and the chain that is read after a
    head holds it.
    """
    head = head_of(node)
    chain = chain_of(node)
    path = chain.path_between(chain.genesis, head)
    assert path is not None, f"the chain on {node.root.name}'s disk has a hole"
    return chain, path


def digests_on_disk(node: LocalNode) -> dict[int, str]:
    """Round to state digest, along the chain of the head that the node wrote last."""
    chain, path = path_on_disk(node)
    return {chain.entry(one).round: chain.entry(one).state_digest.hex() for one in path}


def shared_rounds(*nodes: LocalNode) -> set[int]:
    """Returns the rounds that all nodes have on disk, after a check that they have the same state
    of each. Where they have not, the failure shows the end of every node's log."""
    chains = [digests_on_disk(node) for node in nodes]
    shared = set.intersection(*(set(chain) for chain in chains))
    differing = sorted(n for n in shared if len({chain[n] for chain in chains}) > 1)
    logs = "\n\n".join(f"{node.root.name}:\n{node.tail()}" for node in nodes)
    assert not differing, f"the nodes have different states of rounds {differing}\n{logs}"
    return shared


def suspended_cutting_of(node: LocalNode) -> psutil.Process | None:
    """The process that cuts a part of the corpus once the run is founded, suspended; None between
    two parts. Parts before that one are in the run, and it is not, until the process goes on."""
    assert node.process is not None
    if StateDir(node.root).read_manifest() is None:
        return None
    for child in psutil.Process(node.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "gossamer.node.runs.founding.preparing_process" in child.cmdline():
                child.suspend()
                if child.status() != psutil.STATUS_ZOMBIE:
                    return child
    return None


def losses_until(node: LocalNode, number: int) -> dict[int, float]:
    """Round to training loss in nats, when a short run has come to a round: it keeps them all."""

    def condition(status: Status) -> bool:
        return any(each.round >= number for each in status.loss_history)

    status = node.wait_for(condition, PATIENCE_SECONDS, f"loss of round {number}")
    return {each.round: each.loss for each in status.loss_history if each.loss is not None}


def add_founder(swarm: LocalSwarm, founded: Path) -> LocalNode:
    """A node with the founder's state, not started."""
    node = swarm.add()
    shutil.copytree(founded, node.root)
    return node


def start_founder(swarm: LocalSwarm, founded: Path) -> LocalNode:
    """The founder, started again with its plain command."""
    node = add_founder(swarm, founded)
    node.start("start")
    return node


def get(node: LocalNode, path: str) -> tuple[int, str]:
    """Status and text of the node's HTTP answer."""
    api = DaemonFiles(StateDir(node.root)).read_api()
    try:
        with urllib.request.urlopen(f"http://{api}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def trainer_of(node: LocalNode) -> psutil.Process | None:
    """The daemon's trainer process."""
    assert node.process is not None
    for child in psutil.Process(node.process.pid).children():
        if "gossamer.trainer.worker" in child.cmdline():
            return child
    return None


def metric_of(node: LocalNode, name: str, labels: str = "") -> float:
    """The sum of a metric over its labels, or over those whose text has `labels` in it."""
    values = re.findall(rf"^{name}(\S*) (\S+)$", get(node, "/metrics")[1], re.M)
    assert values, name
    return sum(float(value) for found, value in values if labels in found)


def restarts_of(node: LocalNode, reason: str = "") -> float:
    """Returns the number of restarts of the node's trainer, for one reason or for all."""
    return metric_of(node, "gossamer_restarts_total", reason)
