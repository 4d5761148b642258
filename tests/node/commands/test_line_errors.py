"""Command lines that cannot be read: each is answered with what to write instead."""

from __future__ import annotations

import pytest

from gossamer.node.cli import run_command


@pytest.mark.parametrize(
    ("line", "mistake", "help_of"),
    [
        ("join --max-upload 10", "--max-upload: `gossamer join` has no such option; did you mean "
         "--up-limit?", "join"),
        ("start --upload=10", "--upload: `gossamer start` has no such option; did you mean "
         "--up-limit?", "start"),
        ("start --bandwith 10", "--bandwith: `gossamer start` has no such option", "start"),
        ("limits --upload 10", "--upload: `gossamer limits` has no such option; write `gossamer "
         "limits set upload=VALUE`", "limits"),
        ("limits --up-limit 10", "--up-limit: `gossamer limits` has no such option; write "
         "`gossamer limits set upload=VALUE`", "limits"),
        ("schedule --hours 22-7", "--hours: `gossamer schedule` has no such option; write "
         "`gossamer schedule set work_hours=VALUE`", "schedule"),
        ("service logs --last 3", "--last: `gossamer service logs` has no such option",
         "service logs"),
        ("pause 5min", "`gossamer pause` does not take '5min'", "pause"),
        ("pause --for", "`gossamer pause`: --for needs a value", "pause"),
        ("rollback", "`gossamer rollback`: TO-ROUND is missing", "rollback"),
        ("identity restore", "`gossamer identity restore`: FILE is missing", "identity restore"),
        ("config edti", "there is no command `config edti`; did you mean `gossamer config edit`?",
         "config"),
        ("join --threads four", 'Invalid value for --threads: unable to convert "four" into int.',
         "join"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_what_to_write(
    line: str, mistake: str, help_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(line.split()) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"gossamer: {mistake}",
        f"gossamer: `gossamer {help_of} --help` shows what it takes",
    ]


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("joi", "there is no command `joi`; did you mean `gossamer join`?"),
        ("frobnicate", "there is no command `frobnicate`"),
        ("stop --state-dir here", "there is no command `stop`; did you mean `gossamer leave`?"),
        ("quit", "there is no command `quit`; did you mean `gossamer leave`?"),
        ("continue", "there is no command `continue`; did you mean `gossamer resume`?"),
        ("--config mine.toml status", "--config: options come after a command, as in `gossamer "
         "status --config`"),
    ],
)  # fmt: skip
def test_a_word_that_is_no_command(
    line: str, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(line.split()) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"gossamer: {mistake}"
    assert second == "gossamer: `gossamer --help` shows the commands"
