"""The owner's limits on real daemons, set as a person sets them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.telemetry.status import LastRound, LimitStatus, Status
from tests.support.daemons import (
    MANIFEST,
    PATIENCE_SECONDS,
    get,
    gossamer,
    in_rounds_of,
    start_founder,
    takes_part,
    trainer_of,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

ACTS_SECONDS_MAX = 5.0


def limit(node: LocalNode, name: str) -> LimitStatus:
    status = node.status()
    assert status is not None
    return next(each for each in status.limits if each.name == name)


@pytest.mark.long
def test_limits_act_at_once_and_hold_after_a_restart(swarm: LocalSwarm, founded: Path) -> None:
    node = start_founder(swarm, founded)
    node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    state = ("--state-dir", node.root)
    before = gossamer("limits", *state)
    assert before.status == 0
    assert "upload" in before.out
    assert "none" in before.out
    worker = trainer_of(node)
    assert worker is not None

    began = time.monotonic()
    answer = gossamer("limits", "set", "upload=10", "threads=2", "memory=6GiB", *state)
    assert answer.status == 0, answer
    assert limit(node, "upload").limit == 10.0
    assert limit(node, "threads").limit == 2
    assert time.monotonic() - began < ACTS_SECONDS_MAX
    # The same worker goes on: to set a limit costs no work.
    reached = wait_for_round(node, 1).round
    wait_for_round(node, reached + 2)
    assert trainer_of(node) == worker
    if psutil.LINUX:
        limited, _ = worker.rlimit(psutil.RLIMIT_DATA)
        assert 0 < limited < 12 * 1024**3  # without a limit it is -1; what is reserved adds to it
    assert "10 Mbit/s" in gossamer("limits", *state).out
    _, metrics = get(node, "/metrics")
    assert 'gossamer_line_limit_bytes_per_second{direction="sent"} 1.25e+06' in metrics
    assert "gossamer_limit_threads 2.0" in metrics
    assert "gossamer_limit_disk_bytes +Inf" in metrics

    assert node.leave() == 0, node.tail()
    assert "10" in gossamer("limits", *state).out
    node.start("start", "--up-limit", "20")
    node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    assert limit(node, "upload").limit == 10.0
    assert limit(node, "upload").source == "limits set"
    assert gossamer("limits", "set", "upload=default", *state).status == 0
    assert limit(node, "upload").limit == 20.0
    assert node.leave() == 0, node.tail()


@pytest.mark.long
def test_an_impossible_limit_is_refused_with_the_least_that_the_run_needs(
    swarm: LocalSwarm, founded: Path
) -> None:
    node = start_founder(swarm, founded)
    wait_for_round(node, 5)
    state = ("--state-dir", node.root)
    answer = gossamer("limits", "set", "memory=64MiB", "upload=10", "disk=64MiB", *state)
    assert answer.status == 2
    assert "memory: 67.1 MB are too few: this run needs" in answer.err
    assert "disk: 67.1 MB are too few: this run needs" in answer.err
    assert limit(node, "memory").limit is None
    assert limit(node, "upload").limit is None, "a change is made as a whole or not at all"
    answer = gossamer("limits", "set", "uplaod=3", *state)
    assert answer.status == 2
    assert "did you mean upload?" in answer.err
    assert node.leave() == 0, node.tail()
    node.start("start", "--memory-max", "64MiB")
    assert node.wait(PATIENCE_SECONDS) == 2, node.tail()


def test_limits_are_kept_while_no_node_runs(swarm: LocalSwarm, founded: Path) -> None:
    node = swarm.add()
    node.root.mkdir()
    state = ("--state-dir", node.root)
    assert gossamer("limits", "set", "download=50@18:00-23:00", *state).status == 0
    assert "50@18:00-23:00" in gossamer("limits", *state).out
    assert gossamer("limits", "set", "download=off", *state).status == 0
    assert "50" not in gossamer("limits", *state).out


RING_MANIFEST = (
    MANIFEST.replace("width = 32", "width = 256")
    .replace("hidden_width = 64", "hidden_width = 1024")
    .replace("num_heads = 2", "num_heads = 4")
    .replace("num_layers = 1", "num_layers = 2")
    .replace("chunk_elements = 2048", "chunk_elements = 65536")
    .replace("warmup_inner_steps = 20", "warmup_inner_steps = 10")
    .replace("\ninner_steps = 40", "\ninner_steps = 10")
)
"""A ring that takes some seconds at the limits below."""

UP_MBIT = 16
NUM_MEMBERS = 4
RING_SECONDS = 180.0


def in_new_round(num_members: int, known: Sequence[LastRound]) -> Callable[[Status], bool]:
    """Makes the condition that a node was in one more round with so many members."""
    in_round = in_rounds_of(num_members)

    def condition(status: Status) -> bool:
        last = status.last_round
        return in_round(status) and last is not None and last not in known

    return condition


@pytest.mark.long
def test_a_member_with_a_quarter_of_the_upload_is_credited_and_never_accused(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path
) -> None:
    manifest = tmp_path / "ring.toml"
    manifest.write_text(RING_MANIFEST)
    command = ["--manifest", str(manifest), "--corpus", str(corpus), "--up-limit", str(UP_MBIT)]
    founder = swarm.found(*command, "--wait-for-peers", str(NUM_MEMBERS - 1))
    address = founder.address()
    members = [founder]
    for _ in range(NUM_MEMBERS - 1):
        node = swarm.add()
        limit_mbit = UP_MBIT / 4 if len(members) == NUM_MEMBERS - 1 else UP_MBIT
        node.start("join", address, "--up-limit", f"{limit_mbit:g}")
        members.append(node)
    capped = members[-1]
    me = capped.wait_for(takes_part, PATIENCE_SECONDS, "training").peer_id
    rounds: list[LastRound] = []
    for _ in range(2):
        status = capped.wait_for(in_new_round(NUM_MEMBERS, rounds), RING_SECONDS, "a ring of four")
        assert status.last_round is not None
        rounds.append(status.last_round)
    for last in rounds:
        assert me in last.contributors
        ring_mbit = last.bytes_sent * 8 / 1e6 / last.duration_seconds
        assert ring_mbit < 1.05 * UP_MBIT / 4
    for node in members:
        _, metrics = get(node, "/metrics")
        assert 'gossamer_ring_skips_total{reason="slow"} 0.0' in metrics
        assert 'gossamer_ring_skips_total{reason="timeout"} 0.0' in metrics
