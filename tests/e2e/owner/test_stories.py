"""Stories of volunteers, each from a fresh home directory through the commands that people type.

`docs/guides/compared.md` lists all stories and the tests that tell them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import ANY_PORT, LocalNode, LocalSwarm
from gossamer.node.storage.state_dir import FORMAT
from tests.support.daemons import (
    OPTIONS,
    PATIENCE_SECONDS,
    Answer,
    gossamer,
    in_rounds_of,
    poll,
    start_founder,
    takes_part,
    trainer_of,
    wait_for_round,
)
from tests.support.ports import free_ports

pytestmark = pytest.mark.e2e


@dataclass
class Home:
    """A person's home directory, and the node whose state lies where the platform puts it."""

    root: Path
    own: dict[str, str] = field(default_factory=dict)
    """Variables of the person."""

    @property
    def environment(self) -> dict[str, str]:
        plain = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("XDG_", "GOSSAMER_"))
        }
        return {**plain, "HOME": str(self.root), **self.own}

    @property
    def state(self) -> Path:
        return self.root / ".local" / "state" / "gossamer"

    def types(self, *arguments: str | Path) -> Answer:
        return gossamer(*arguments, environment=self.environment)

    def node(self, *prefix: str) -> LocalNode:
        self.state.parent.mkdir(parents=True, exist_ok=True)
        # The tests point this one at a folder without settings, for all processes that they start.
        settings = {"XDG_CONFIG_HOME": str(self.root / ".config")}
        environment = {"HOME": str(self.root), **settings, **self.own}
        return LocalNode(self.state, prefix, OPTIONS, environment)

    @contextmanager
    def running(self, node: LocalNode, *command: str) -> Iterator[LocalNode]:
        """The node runs in this block, and leaves in order at its end."""
        node.start(*command)
        try:
            yield node
            assert node.leave() == 0, node.tail()
        finally:
            node.kill()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = tmp_path / "home"
    folder.mkdir()
    return Home(folder)


def shown_by(home: Home) -> str:
    shown = home.types("status")
    assert shown.status == 0, shown
    return shown.out


def paused(home: Home, node: LocalNode, reason: str, text: str) -> None:
    """Waits for a pause of this cause: the device is free, and `gossamer status` says why."""
    node.wait_for(lambda status: status.paused_reason == reason, PATIENCE_SECONDS, reason)
    assert trainer_of(node) is None
    assert f"{reason} ({text})" in " ".join(shown_by(home).split())


@pytest.mark.long
def test_a_first_join_and_leaving_for_good(swarm: LocalSwarm, founded: Path, home: Home) -> None:
    founder = start_founder(swarm, founded)
    status = founder.wait_for(takes_part, PATIENCE_SECONDS, "training")
    node = home.node()
    with home.running(node, "join", f"{founder.address()}#{status.run_id}"):
        node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "a round of two")
        # A busy machine may do a round without one of them in between.
        poll(lambda: "2 of 2 contributed" in shown_by(home), "a round of two in the status")
    credit = home.types("peers")
    assert "rank 2 of 2" in credit.out, credit
    (home.root / "thesis.txt").write_text("mine")
    gone = home.types("uninstall", "--yes")
    assert gone.status == 0, gone
    assert "bytes are freed" in gone.out
    left = [path for path in home.root.rglob("*") if path.is_file() and path != node.log_path]
    assert left == [home.root / "thesis.txt"]


@pytest.mark.long
def test_a_gamers_machine(founded: Path, home: Home, tmp_path: Path) -> None:
    settings = home.root / ".config" / "gossamer" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('pause_for = ["gossamer-game"]\n')
    assert home.types("config", "check").status == 0
    shutil.copytree(founded, home.state)
    game = tmp_path / "gossamer-game"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", game)
    node = home.node()
    with home.running(node, "start"):
        node.wait_for(takes_part, PATIENCE_SECONDS, "training")
        with subprocess.Popen([game, "600"]) as playing:
            try:
                paused(home, node, "process", "gossamer-game runs")
            finally:
                playing.kill()
        node.wait_for(takes_part, PATIENCE_SECONDS, "training after the game")


@pytest.mark.long
def test_a_laptop_whose_plug_is_pulled(founded: Path, home: Home, tmp_path: Path) -> None:
    """The kernel's files of mains and battery are others in the node's own view of the disk."""
    if os.geteuid() or not Path("/sys/class/power_supply").is_dir():
        pytest.skip("only root can put other files in the place of /sys/class/power_supply")
    supplies = tmp_path / "supplies"
    for name, files in {
        "AC": {"type": "Mains", "online": "1"},
        "BAT0": {"type": "Battery", "status": "Charging"},
    }.items():
        (supplies / name).mkdir(parents=True)
        for file, text in files.items():
            (supplies / name / file).write_text(text + "\n")
    script = 'mount --bind "$0" /sys/class/power_supply && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", script, str(supplies))
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount anything")
    shutil.copytree(founded, home.state)
    node = home.node(*prefix)
    with home.running(node, "start", "--on-battery", "off"):
        node.wait_for(takes_part, PATIENCE_SECONDS, "training")
        (supplies / "AC" / "online").write_text("0\n")
        (supplies / "BAT0" / "status").write_text("Discharging\n")
        paused(home, node, "battery", "the machine runs on its battery")
        (supplies / "AC" / "online").write_text("1\n")
        node.wait_for(takes_part, PATIENCE_SECONDS, "training at the plug")


@pytest.mark.long
def test_a_line_that_becomes_metered(founded: Path, home: Home, tmp_path: Path) -> None:
    """A program named `busctl` answers for NetworkManager, as the real one would."""
    programs, says = tmp_path / "bin", tmp_path / "metered"
    programs.mkdir()
    says.write_text("u 4\n")
    (programs / "busctl").write_text(
        f'#!/bin/sh\ncase "$*" in *Metered*) cat {says} ;; *) exit 1 ;; esac\n'
    )
    (programs / "busctl").chmod(0o755)
    home.own["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    shutil.copytree(founded, home.state)
    node = home.node()
    with home.running(node, "start", "--on-metered", "off"):
        node.wait_for(takes_part, PATIENCE_SECONDS, "training")
        says.write_text("u 1\n")
        paused(home, node, "metered", "the line is metered")
        doctor = home.types("doctor")
        assert "it is metered: a node does not work now" in doctor.out
        says.write_text("u 2\n")
        node.wait_for(takes_part, PATIENCE_SECONDS, "training on another line")


def test_a_node_goes_on_where_the_number_of_the_format_was_lost(founded: Path, home: Home) -> None:
    shutil.copytree(founded, home.state)
    (home.state / "format").unlink()
    before = home.types("peers", "--json")
    assert before.status == 0, before
    node = home.node()
    with home.running(node, "start"):
        status = node.wait_for(takes_part, PATIENCE_SECONDS, "training")
        assert status.round >= 3
        wait_for_round(node, status.round + 1)
    assert (home.state / "format").read_text() == f"{FORMAT}\n"


@pytest.mark.long
def test_two_nodes_on_one_machine(founded: Path, home: Home) -> None:
    shutil.copytree(founded, home.state)
    first = home.node()
    with home.running(first, "start"):
        status = first.wait_for(takes_part, PATIENCE_SECONDS, "training")
        link = f"{first.address()}#{status.run_id}"
        rest = ("--listen", ANY_PORT, "--api", "127.0.0.1:0")
        same = home.types("join", link, *rest)
        assert (same.status, "is in use by process" in same.err) == (1, True), same
        (taken,) = free_ports(1)
        second = LocalNode(home.root / "second", (), OPTIONS, {"HOME": str(home.root)})
        with home.running(second, "join", link, "--listen", f"/ip4/127.0.0.1/tcp/{taken}"):
            for node in (first, second):
                node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "a round of two")
            # Each is steered by its own directory.
            assert home.types("pause", "--state-dir", second.root).status == 0
            other = second.status()
            assert other is not None
            assert other.phase == "paused"
            assert "phase" in home.types("status").out
            now = first.status()
            assert now is not None
            assert now.phase != "paused"
