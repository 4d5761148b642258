import pytest

from gossamer.node.cli import run_command
from gossamer.node.commands.views.top import curve


def test_the_curve_ends_with_the_newest_value() -> None:
    assert curve([4.0, 2.0, 1.0, 0.0], 4) == "█▅▃▁"  # 1.75 of 7 rounds to 2, and 3.5 to 4
    assert curve([float(number) for number in range(1000)], 8) == "▂▃▄▄▅▆▇█"
    assert curve([1.0, 1.0]) == "▁▁"


def test_it_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["top"]) == 2
    assert "gossamer status" in capsys.readouterr().err
