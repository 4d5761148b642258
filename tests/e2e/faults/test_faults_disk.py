"""A disk that becomes read-only: the node goes on in memory, or says why it cannot start."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.support.daemons import (
    PATIENCE_SECONDS,
    add_founder,
    digests_on_disk,
    gossamer,
    head_of,
    poll,
    refused,
    said,
    takes_part,
    wait_for_round,
)

pytestmark = pytest.mark.e2e


def mount(*arguments: str | Path) -> str:
    """Why it did not work; empty if it did."""
    done = subprocess.run(
        ["mount", *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def protect(tmp_path: Path) -> Iterator[Callable[[Path], Callable[[], None]]]:
    """Makes a folder read-only at once, as an error of the disk does; the answer undoes that."""
    mounted: list[Path] = []

    def undo(folder: Path) -> None:
        mounted.remove(folder)
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)

    def do(folder: Path) -> Callable[[], None]:
        # Made read-only in another place, where nothing is open, and then put over the folder.
        protected = tmp_path / "protected"
        protected.mkdir(exist_ok=True)
        problem = mount("--bind", folder, protected)
        if problem:
            pytest.skip(f"a file system cannot be mounted here: {problem}")
        mounted.append(protected)
        assert mount("-o", "remount,bind,ro", protected) == ""
        assert mount("--bind", protected, folder) == ""
        mounted.append(folder)
        undo(protected)
        return lambda: undo(folder)

    yield do
    for folder in list(mounted):
        undo(folder)


@pytest.mark.long
def test_a_disk_that_becomes_read_only(
    swarm: LocalSwarm, founded: Path, protect: Callable[[Path], Callable[[], None]]
) -> None:
    node = add_founder(swarm, founded)
    make_writable = protect(node.root)
    error = refused("start", "--state-dir", node.root, status=1)
    assert error.count("\n") == 1
    assert f"{node.root} cannot be used as state directory: Read-only file system" in error
    make_writable()

    node.start("start")
    started = node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    wait_for_round(node, started.round + 1)
    make_writable = protect(node.root)
    told = node.wait_for(lambda s: s.problem is not None, PATIENCE_SECONDS, "word of the disk")
    assert told.problem is not None
    assert "the disk is read-only" in told.problem
    assert "what was committed before is safe" in told.problem.lower()
    on_disk = head_of(node)
    going = wait_for_round(node, told.round + 3)
    assert takes_part(going)
    assert head_of(node) == on_disk
    make_writable()
    mended = node.wait_for(lambda s: s.problem is None, PATIENCE_SECONDS, "state on disk again")
    poll(lambda: said(node, "the disk takes everything again"), "word of it in the log")
    # A status shows a round while it is being written; the one before is on the disk.
    wait_for_round(node, mended.round + 1)
    log = node.log_path.read_text()
    assert log.count("the node goes on in memory") == 1
    assert log.count("the disk takes everything again") == 1
    assert not said(node, "Traceback")

    node.kill()
    assert max(digests_on_disk(node)) >= mended.round
    answer = gossamer("export", node.root.parent / "model", "--state-dir", node.root)
    assert answer.status == 0, answer
    node.start("start")
    wait_for_round(node, mended.round + 1)


@pytest.mark.long
def test_a_node_that_leaves_while_its_disk_is_read_only(
    swarm: LocalSwarm, founded: Path, protect: Callable[[Path], Callable[[], None]]
) -> None:
    node = add_founder(swarm, founded)
    node.start("start")
    started = node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    wait_for_round(node, started.round + 1)
    make_writable = protect(node.root)
    told = node.wait_for(lambda s: s.problem is not None, PATIENCE_SECONDS, "word of the disk")
    wait_for_round(node, told.round + 2)
    on_disk = max(digests_on_disk(node))

    ordered = gossamer("leave", "--state-dir", node.root)
    assert ordered.status == 0
    assert "is lost here" in ordered.out
    assert "the disk is read-only" in ordered.out
    assert "stays" not in ordered.out
    assert node.wait(PATIENCE_SECONDS) == 0
    assert said(node, "left, and the disk lacks what was new")
    assert not said(node, "left in order")
    assert not said(node, "Traceback")

    # It could not remove its address. That it did not end in order would be untrue.
    for command in ("status", "leave"):
        asked = gossamer(command, "--state-dir", node.root)
        assert asked.status == 1
        assert f"no node runs on {node.root}, and its disk is read-only" in asked.err
        assert "did not end in order" not in asked.err
    make_writable()
    node.start("start")
    again = node.wait_for(takes_part, PATIENCE_SECONDS, "training")
    assert again.round >= on_disk
