from __future__ import annotations

import io

import pytest

from gossamer.node.base.terminal.text_table import (
    Look,
    Styled,
    columns_of,
    look_of,
    named_lines,
    sparkline,
    table_lines,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ROWS = [("peer", [Styled("12D3KooW" * 6)]), ("said", [Styled("red", "red"), Styled(" and plain")])]


def test_a_file_gets_whole_lines_without_codes() -> None:
    look = look_of(io.StringIO(), {"TERM": "xterm"})
    assert look == Look(None, styles=False)
    assert named_lines(ROWS, look) == [f"peer  {'12D3KooW' * 6}", "said  red and plain"]


def test_a_terminal_gets_folded_lines_and_loses_nothing() -> None:
    lines = named_lines(ROWS, Look(30))
    assert all(columns_of(line) <= 30 for line in lines)
    assert "".join(line[6:] for line in lines) == "12D3KooW" * 6 + "red and plain"
    assert lines[1].startswith("      ")


def test_a_line_ends_behind_a_word() -> None:
    words = [("data", [Styled("three of sixteen "), Styled("shards", "green"), Styled(" read")])]
    assert named_lines(words, Look(28)) == ["data  three of sixteen", "      shards read"]
    painted = named_lines(words, Look(28, styles=True))
    assert painted[1].endswith("\x1b[32mshards\x1b[0m read")


@pytest.mark.parametrize("width", [1, 7, 26])
def test_a_line_that_is_too_narrow_ends(width: int) -> None:
    lines = named_lines([("name", [Styled("漢字" * 40)])], Look(width))
    assert "".join(line[6:] for line in lines) == "漢字" * 40


def test_columns_of_a_table_stand_below_each_other() -> None:
    heads = [("peer", "left"), ("round", "right")] * 1
    rows = [[Styled("漢字 a1"), Styled("7")], [Styled("b2", "green"), Styled("1234567")]]
    lines = table_lines(heads, rows, Look())  # type: ignore[arg-type]
    assert lines == ["peer       round", "漢字 a1        7", "b2       1234567"]
    assert len({columns_of(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("environment", "styles"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_terminals_of_people_who_want_them(
    environment: dict[str, str], styles: bool
) -> None:
    look = look_of(Terminal(), environment)
    assert (look.styles, look.width is not None) == (styles, True)
    assert look_of(io.StringIO(), {"FORCE_COLOR": "1"}).styles
    (line,) = table_lines([("peer", "left")], [], Look(styles=styles))
    assert line == ("\x1b[2mpeer\x1b[0m" if styles else "peer")


def test_a_sparkline_fits_its_width() -> None:
    assert sparkline([3.0, 2.0, 1.0], 10, "abc") == "cba"
    assert sparkline([4.0, 4.0, 1.0, 1.0], 2, "abc") == "ca"
    assert sparkline([1.0, 1.0], 5, "abc") == "aa"
    assert sparkline([4.0, 2.0, 1.0, 0.0], 4) == "█▅▃▁"  # 1.75 of 7 rounds to 2, and 3.5 to 4
    assert sparkline([float(number) for number in range(1000)], 8) == "▁▂▃▄▅▆▇█"
