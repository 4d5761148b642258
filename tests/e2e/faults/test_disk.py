"""Damaged blocks and a full disk: said clearly, mended from peers, and nothing else is lost."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.support.daemons import (
    PATIENCE_SECONDS,
    add_founder,
    chain_of,
    digests_on_disk,
    gossamer,
    head_of,
    in_rounds_of,
    said,
    start_founder,
    takes_part,
    wait_for_round,
)
from tests.support.damage import damage

pytestmark = pytest.mark.e2e

DISK_BYTES = 24 * 2**20


@pytest.mark.long
def test_damaged_blocks_are_fetched_from_peers_again(swarm: LocalSwarm, founded: Path) -> None:
    seed = start_founder(swarm, founded)
    node = swarm.join(seed.address())
    for each in (seed, node):
        each.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    node.kill()
    committed = digests_on_disk(node)
    blocks = [path for path in (node.root / "blocks").rglob("*") if len(path.name) == 64]
    assert len(blocks) > 20
    for block in blocks:
        damage(block)
    node.start("join", seed.address())
    status = node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round with what was fetched")
    assert status.round > max(committed)
    assert said(node, "was damaged on disk and has been removed")
    assert said(node, "the disk does not hold all of the newest committed state any more")
    assert not said(node, "Traceback")
    wait_for_round(seed, status.round)
    ours, theirs = digests_on_disk(node), digests_on_disk(seed)
    assert all(ours[number] == theirs[number] for number in set(ours) & set(theirs))
    assert all(ours[number] == committed[number] for number in sorted(committed)[:-1])


def test_damage_alone_falls_back_and_says_what_is_missing(swarm: LocalSwarm, founded: Path) -> None:
    node = add_founder(swarm, founded)
    committed = digests_on_disk(node)
    newest = committed[max(committed)]
    damage(node.root / "blocks" / newest[:2] / newest)
    node.start("start")
    status = node.wait_for(in_rounds_of(1), PATIENCE_SECONDS, "round")
    assert said(node, "was damaged on disk and has been removed")
    # The newest state is rebuilt from an older one and the averages since: nothing is lost.
    assert status.round > max(committed)
    assert digests_on_disk(node)[max(committed)] == newest


def test_a_head_that_no_peer_can_give_does_not_take_the_state_back(
    swarm: LocalSwarm, founded: Path
) -> None:
    node = add_founder(swarm, founded)
    committed = digests_on_disk(node)
    newest = max(committed)
    header = chain_of(node).header(head_of(node))
    for digest in (header.state_digest, header.update_digest):
        (node.root / "blocks" / digest.hex()[:2] / digest.hex()).unlink()
    node.start("start")
    status = node.wait_for(in_rounds_of(1), PATIENCE_SECONDS, "round")
    assert said(node, "a heavier head could not be taken over")
    assert status.round >= newest, "a round before the lost one was done again"
    assert digests_on_disk(node)[newest - 1] == committed[newest - 1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a node and little more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


def fill(path: Path) -> None:
    """Takes all room that is left on the file system."""
    with path.open("wb", buffering=0) as file:
        for piece in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(bytes(piece))
            except OSError:
                pass


@pytest.mark.long
def test_a_full_disk_while_it_commits(small_disk: Path, founded: Path) -> None:
    with LocalSwarm(small_disk, ("--threads", "1")) as swarm:
        node = add_founder(swarm, founded)
        node.log_path.symlink_to(small_disk.parent / "node.log")  # not on the small disk
        node.start("start")
        node.wait_for(takes_part, PATIENCE_SECONDS, "training")
        ballast = small_disk / "ballast"
        fill(ballast)
        full = node.wait_for(
            lambda status: bool(status.problem and "the disk is full" in status.problem),
            PATIENCE_SECONDS,
            "word of the full disk",
        )
        assert full.problem is not None
        assert "what was committed before is safe" in full.problem
        # It goes on all the same: rounds are committed in memory.
        going = wait_for_round(node, full.round + 3)
        assert takes_part(going)
        # What the owner orders holds now, and the owner is told how long.
        for order in (("limits", "set", "upload=500"), ("pause", "--for", "1h")):
            said_to_owner = gossamer(*order, "--state-dir", node.root)
            assert said_to_owner.status == 0, said_to_owner
            assert "It holds until this node ends." in said_to_owner.out
            assert "the disk is full" in said_to_owner.out
        assert gossamer("resume", "--state-dir", node.root).status == 0

        ballast.unlink()
        freed = node.wait_for(
            lambda status: status.problem is None, PATIENCE_SECONDS, "state on disk again"
        )
        wait_for_round(node, freed.round + 1)
        assert (node.root / "limits").read_text() == '{"upload":"500"}\n'
        node.kill()
        answer = gossamer("export", small_disk.parent / "model", "--state-dir", node.root)
        assert answer.status == 0, answer
        found = re.search(r"round (\d+)", answer.out)
        assert found
        assert int(found[1]) >= freed.round
        node.start("start")
        wait_for_round(node, freed.round + 2)
