"""A swarm grows from one and survives its founder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.support.daemons import (
    PATIENCE_SECONDS,
    digests_on_disk,
    in_rounds_of,
    poll,
    said,
    start_founder,
    wait_for_round,
)

pytestmark = pytest.mark.e2e


def test_one_alone_then_two_then_a_third_without_the_seed(swarm: LocalSwarm, founded: Path) -> None:
    seed = start_founder(swarm, founded)
    alone = seed.wait_for(in_rounds_of(1), PATIENCE_SECONDS, "round alone")

    second = swarm.join(seed.address())
    together = second.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    assert together.round > alone.round
    assert together.run_id == alone.run_id
    # It was in the first ring that it could be in: it took over no round after it began to train.
    lines = second.log_path.read_text().splitlines()
    begun = next(i for i, line in enumerate(lines) if " committed " in line)
    assert "peers=2" in lines[begun]
    seed.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")

    seed.kill()
    third = swarm.join(second.address())
    for node in (second, third):
        node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two without the seed")
    goal = wait_for_round(third, together.round + 1).round + 2
    for node in (second, third):
        wait_for_round(node, goal)
    chains = [digests_on_disk(node) for node in (second, third)]
    shared = set(chains[0]) & set(chains[1])
    assert len(shared) >= goal - 1
    assert all(chains[0][number] == chains[1][number] for number in shared)


def test_a_joiner_without_anybody_leaves_when_told(swarm: LocalSwarm, founded: Path) -> None:
    """The joiner knows its run, but its seed has gone before the joiner had the data index."""
    node = swarm.add()
    node.root.mkdir()
    shutil.copy(founded / "manifest.msgpack", node.root)
    node.start("start")
    poll(lambda: said(node, "the run's data index cannot be had yet"), "word of what is missing")
    assert node.leave() == 0, node.tail()
    assert said(node, "left before")
