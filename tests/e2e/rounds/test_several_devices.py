"""A real daemon that trains on two CPU processes, in a swarm with one that has one."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from tests.e2e.rounds.test_modes import write_manifest
from tests.support.daemons import (
    OPTIONS,
    PATIENCE_SECONDS,
    in_rounds_of,
    poll,
    restarts_of,
    said,
    shared_rounds,
    trainer_of,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

START_SECONDS = 3 * PATIENCE_SECONDS
"""The second device's process loads torch by itself, beside two daemons and their trainers."""


def other_of(node: LocalNode) -> psutil.Process | None:
    """The process of the trainer's second device."""
    trainer = trainer_of(node)
    if trainer is None:
        return None
    found = [c for c in trainer.children() if "gossamer.trainer.ranks.follower" in c.cmdline()]
    return found[0] if found else None


def peers_of(node: LocalNode) -> list[str]:
    """The devices of the peers that a node knows."""
    status = node.status()
    return [] if status is None else [peer.device for peer in status.peers if peer.device]


@pytest.mark.long
@pytest.mark.parametrize(
    ("top", "outer"),
    [
        ("", 'codec = "int4"\noverlap = true'),
        ('sync = "distro"', "inner_steps = 20\nwarmup_rounds = 0"),
    ],
    ids=["int4", "distro"],
)
@pytest.mark.timeout(600)
def test_two_devices_are_one_peer(tmp_path: Path, corpus: Path, top: str, outer: str) -> None:
    manifest = write_manifest(tmp_path, top, outer)
    with LocalSwarm(tmp_path, OPTIONS) as swarm:
        seed = swarm.add()
        seed.start("start", "--manifest", str(manifest), "--corpus", str(corpus))
        node = swarm.join(seed.address(), "--device", "cpu,cpu")
        for each in (seed, node):
            each.wait_for(in_rounds_of(2), START_SECONDS, "round of two")
        poll(lambda: said(node, "training on 2 x "), "word of both devices")
        # One seat in the ring, and one entry among the peers of the other.
        status = poll(lambda: next(iter(peers_of(seed)), None), "entry of the peer")
        assert status.startswith("2 x ")
        other = poll(lambda: other_of(node), "process of the second device")
        other.kill()
        poll(lambda: restarts_of(node) == 1, "restart of the trainer")
        assert said(node, "the process of device 2 (cpu) was killed (SIGKILL)")
        poll(lambda: other_of(node), "new process of the second device", START_SECONDS)
        node.wait_for(in_rounds_of(2), START_SECONDS, "round of two after the restart")
        reached = max(wait_for_round(each, 1).round for each in (seed, node)) + 3
        for each in (seed, node):
            wait_for_round(each, reached)
        ended = poll(lambda: other_of(node), "process of the second device")
        for each in (seed, node):
            assert each.leave() == 0, each.tail()
        ended.wait(PATIENCE_SECONDS)
        # A status shows a round while it is being written; a node that has left has written it.
        assert reached in shared_rounds(seed, node)
        assert "Traceback" not in "".join(each.tail(10_000) for each in (seed, node))
