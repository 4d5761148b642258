"""The plain command lines of `gossamer status` mean what cyclopts would read in them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gossamer.node import cli
from gossamer.node.command_table import app
from gossamer.node.commands.views.status_line import StatusLine, read_status_line

PLAIN = (
    "status",
    "status --json",
    "status --state-dir here",
    "status --state-dir=here --json",
    "status --json --config c.toml --state-dir /a/b",
    "status --config=c=d.toml",
    "status --state-dir ~/node",
)


def as_cyclopts_reads(words: list[str]) -> StatusLine:
    function, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    assert inspect.unwrap(function).__name__ == "status"
    options = bound.arguments.get("options")
    json = bool(bound.arguments.get("json", False))
    return StatusLine(json) if options is None else StatusLine(
        json, options.state_dir, options.config
    )  # fmt: skip


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_means_what_cyclopts_reads_in_it(line: str) -> None:
    words = line.split()
    assert read_status_line(words) == as_cyclopts_reads(words)


@pytest.mark.parametrize(
    "line",
    [
        "status --help",
        "status -h",
        "status --jsn",
        "status --json --json",
        "status --json=false",
        "status --no-json",
        "status here",
        "status --state-dir",
        "status --state-dir=",
        "status --state-dir --json",
        "status --state-dir a --state-dir b",
        "status -- --json",
        "status --state_dir a",
        "status --name Ada",
    ],
)
def test_all_other_lines_are_left_to_cyclopts(line: str) -> None:
    assert read_status_line(line.split()) is None


def test_a_misspelt_option_and_help_are_answered_as_for_other_commands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.run_command(["status", "--jsn"]) == 2
    assert "--jsn" in capsys.readouterr().err
    assert cli.run_command(["status", "--help"]) == 0
    assert "--state-dir" in capsys.readouterr().out
    assert cli.run_command(["status", "--state-dir", str(tmp_path)]) == 1
    assert "no node runs" in capsys.readouterr().err
