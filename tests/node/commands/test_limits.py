"""Limits and hours that an owner sets before the first node of this machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from gossamer.node.cli import run_command
from gossamer.node.commands.daemon import limits
from gossamer.node.commands.options import StateOptions
from gossamer.node.storage import order_lock
from gossamer.node.storage.owner_orders import read_limits, write_limits
from gossamer.node.storage.state_dir import StateDir

SECOND_COMMAND_SECONDS = 1.0
"""Time in which the second command is through if nothing makes it wait."""


@pytest.mark.parametrize(
    ("command", "change", "shown"),
    [("limits", "upload=10", "upload           10"), ("schedule", "on_battery=on", "on_battery")],
)
def test_they_are_kept_for_the_first_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, change: str, shown: str
) -> None:
    root = tmp_path / "not" / "there"
    state = ["--state-dir", str(root)]
    assert run_command([command, "set", change, *state]) == 0
    said = capsys.readouterr().out
    assert said == f"No node has run in {root} yet. It holds when the first one starts.\n"
    assert root.stat().st_mode & 0o777 == 0o700
    assert run_command([command, *state]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(shown))
    assert row.endswith(f"{command} set")
    assert run_command([command, "set", change, *state]) == 0
    assert capsys.readouterr().out == "No node runs here. It holds when the next one starts.\n"


def test_of_two_changes_at_once_both_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second command begins when the first one has read the file, and has yet to write it."""
    options = StateOptions(state_dir=tmp_path)
    second = threading.Thread(target=lambda: limits.limits("set", "threads=2", options=options))

    def write_slowly(path: Path, kept: Mapping[str, str]) -> None:
        if not second.ident:
            second.start()
            second.join(SECOND_COMMAND_SECONDS)
        write_limits(path, kept)

    monkeypatch.setattr(limits, "write_limits", write_slowly)
    limits.limits("set", "upload=10", options=options)
    second.join()
    assert read_limits(StateDir(tmp_path).limits_path) == {"upload": "10", "threads": "2"}


def test_a_change_says_that_another_command_keeps_the_file_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(order_lock, "LOCK_SECONDS_MAX", 0.0)
    with order_lock.alone_in(tmp_path):
        assert run_command(["limits", "set", "upload=10", "--state-dir", str(tmp_path)]) == 1
    assert "another command" in capsys.readouterr().err
    assert not StateDir(tmp_path).limits_path.exists()


@pytest.mark.parametrize("change", ["upload=abc", "gpu_memory=120%", "uploads=10"])
def test_a_mistake_makes_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    root = tmp_path / "not there"
    assert run_command(["limits", "set", change, "--state-dir", str(root)]) == 2
    assert change.partition("=")[0] in capsys.readouterr().err
    assert not root.exists()


def test_limits_have_their_units_before_a_node_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state-dir", str(tmp_path)]
    changes = ["upload=10", "download=5@18:00-23:00,20", "memory=8GiB", "threads=1"]
    assert run_command(["limits", "set", *changes, "gpu_memory=50%", *state]) == 0
    capsys.readouterr()
    assert run_command(["limits", *state]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()[1:]]
    holds = {row[0]: next(cell.strip() for cell in row[1:] if cell.strip()) for row in rows}
    assert holds == {
        "upload": "10 Mbit/s",
        "download": "5@18:00-23:00 20",
        "threads": "1 thread",
        "memory": "8.6 GB",
        "disk": "none",
        "gpu_memory": "50%",
        "gpu_power": "none",
        "gpu_temperature": "none",
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["schedule", "set", "work_hours"], "NAME=VALUE, such as work_hours=22:00-07:00"),
        (["schedule", "set", "hours=1"], "no such limit, and no such rule of the schedule"),
        (["limits", "set", "upload="], "NAME=VALUE, such as upload=10, or NAME=off"),
        (["limits", "set", "memory=1KiB"], "1,024 bytes are too few: at least 64MiB"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run_command([*words, "--state-dir", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["limits", "set", "disk=20GiB"], ["schedule", "set", "on_battery=on"]]
)
def test_a_change_that_a_full_disk_does_not_take_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setattr(limits, "change_limits", lambda *_change: "the disk is full")
    assert run_command([*words, "--state-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("It holds until this node ends.")
    assert said.endswith(": the disk is full\n")


@pytest.mark.parametrize(
    ("change", "is_told"), [("gpu_power=100", True), ("gpu_power=off", False), ("upload=9", False)]
)
def test_a_power_that_the_driver_may_refuse_is_not_promised(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    is_told: bool,
) -> None:
    monkeypatch.setattr(limits, "change_limits", lambda _state_dir, _changes: "")
    assert run_command(["limits", "set", change, "--state-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("It holds from now on, and after a restart.\n")
    assert ("gossamer limits says whether the card's driver takes gpu_power." in said) is is_told
