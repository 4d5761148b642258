"""A node that loads its modules is a node: it is asked and refused like one that runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LOADING = """
import importlib.abc, sys
from gossamer.node.cli import run_command


class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "gossamer.node.app.daemon":
            print("loading", flush=True)
            sys.stdin.readline()
            raise SystemExit(7)


sys.meta_path.insert(0, Slow())
run_command(sys.argv[1:])
"""
"""A command whose import of the daemon takes until a line comes in."""

JOINING = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


def gossamer(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gossamer.node.cli", *words]
    return subprocess.run(command, env=environment(root), capture_output=True, text=True)


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "GOSSAMER_STATE_DIR": str(root / "state"), "XDG_CONFIG_HOME": str(root)}


@pytest.fixture(params=[("start",), ("join", JOINING)], ids=["start", "join"])
def loading(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A node that loads its modules."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADING, *request.param],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        yield process
        process.kill()


def test_a_node_that_loads_its_modules_is_asked_and_refused_like_one_that_runs(
    loading: subprocess.Popen[str], tmp_path: Path
) -> None:
    asked = gossamer(tmp_path, "status")
    assert asked.returncode == 0, asked
    assert f"the node on {tmp_path / 'state'} is starting: it loads its modules" in asked.stdout
    told = gossamer(tmp_path, "pause")
    assert (told.returncode, "is starting" in told.stderr) == (1, True), told
    second = gossamer(tmp_path, "start")
    assert second.returncode == 1, second
    assert f"is in use by process {loading.pid}" in second.stderr


def test_a_node_that_ended_while_it_loaded_is_none(
    loading: subprocess.Popen[str], tmp_path: Path
) -> None:
    loading.communicate("\n")
    assert loading.returncode == 7
    asked = gossamer(tmp_path, "status")
    assert (asked.returncode, "no node runs" in asked.stderr) == (1, True), asked


def test_a_node_that_was_killed_while_it_loaded_is_none(
    loading: subprocess.Popen[str], tmp_path: Path
) -> None:
    loading.kill()
    loading.wait()
    asked = gossamer(tmp_path, "status")
    assert (asked.returncode, "no node runs" in asked.stderr) == (1, True), asked
