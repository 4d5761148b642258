import io

import pytest
from rich.text import Text

from gossamer.node.base.terminal.terminal import ask, open_console


def shown() -> str:
    file = io.StringIO()
    open_console(file).print(Text("dim", style="dim"), Text("bold", style="bold red"))
    return file.getvalue()


def test_no_color_leaves_no_style_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown() == "dim bold\n"
    monkeypatch.setenv("NO_COLOR", "")  # empty: as if it were not there
    assert "\x1b" in shown()


def test_the_end_of_the_input_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" yes \n"))
    assert ask("Go on? [y/N] ") == "yes"
    assert ask("Go on? [y/N] ") == ""  # Ctrl-D
    assert capsys.readouterr().out == "Go on? [y/N] Go on? [y/N] \n"
