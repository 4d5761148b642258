"""Rows of text in a terminal: columns of equal width, long lines folded, and colours.

`gossamer status` shows its tables with these few functions. A person waits for each module that is
loaded, and to load `rich` takes longer than all the rest of that command.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TextIO
from unicodedata import combining, east_asian_width

from gossamer.node.base.terminal.terminal import wants_plain_text

Style = Literal["", "dim", "green", "yellow", "red", "bold red"]

_GAP = "  "
_RESET = "\x1b[0m"
# ECMA-48, "select graphic rendition".
_CODES: Mapping[Style, str] = {
    "dim": "\x1b[2m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
    "red": "\x1b[31m",
    "bold red": "\x1b[1;31m",
}
BARS = "▁▂▃▄▅▆▇█"
"""Characters of a curve, the lowest one first."""

_LINE_COLUMNS_MIN = 20
"""A narrower terminal shows lines of this width: its own folding is then no worse."""


class Styled(NamedTuple):
    """A piece of a line, without control characters, and its style."""

    text: str
    style: Style = ""


class Look(NamedTuple):
    """The abilities of the place to which the lines are written."""

    width: int | None = None
    """Columns of the terminal; None: no terminal, so that no line is folded."""
    styles: bool = False


def look_of(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Look:
    """Returns what a stream can show. `NO_COLOR` and `FORCE_COLOR` are obeyed, the first of them
    first."""
    is_terminal = stream.isatty()
    colours = is_terminal and environment.get("TERM") not in ("dumb", "unknown")
    if environment.get("FORCE_COLOR"):
        colours = True
    return Look(
        width=shutil.get_terminal_size().columns if is_terminal else None,
        styles=colours and not wants_plain_text(environment),
    )


def columns_of(text: str) -> int:
    """Returns how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns_of_character, text))


def _columns_of_character(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def named_lines(rows: Sequence[tuple[str, Sequence[Styled]]], look: Look) -> list[str]:
    """Returns lines of a name, in its own column, and a text beside it, which is folded."""
    names_columns = max((columns_of(name) for name, _ in rows), default=0)
    if look.width is None:
        columns = None
    else:
        columns = max(_LINE_COLUMNS_MIN, look.width - names_columns - len(_GAP))
    lines = []
    for name, parts in rows:
        for line in _folded(parts, columns):
            label = _painted(Styled(_filled(name, names_columns), "dim"), look)
            lines.append((label + _GAP + "".join(_painted(part, look) for part in line)).rstrip())
            name = ""
    return lines


def table_lines(
    heads: Sequence[tuple[str, Literal["left", "right"]]],
    rows: Sequence[Sequence[Styled]],
    look: Look,
) -> list[str]:
    """Returns the lines of a table: its heads, and a line for each row. A terminal that is too
    narrow folds them itself."""
    all_rows = [[Styled(head, "dim") for head, _ in heads], *rows]
    widths = [
        max(columns_of(cell.text) for cell in column) for column in zip(*all_rows, strict=True)
    ]
    lines = []
    for cells in all_rows:
        shown = [
            _painted(Styled(_filled(cell.text, width, side), cell.style), look)
            for cell, width, (_, side) in zip(cells, widths, heads, strict=True)
        ]
        lines.append(_GAP.join(shown).rstrip())
    return lines


def _filled(text: str, columns: int, side: Literal["left", "right"] = "left") -> str:
    spaces = " " * (columns - columns_of(text))
    return text + spaces if side == "left" else spaces + text


def _painted(part: Styled, look: Look) -> str:
    code = _CODES.get(part.style)
    return f"{code}{part.text}{_RESET}" if look.styles and code and part.text else part.text


def _folded(parts: Sequence[Styled], columns: int | None) -> list[list[Styled]]:
    """Returns the parts of each line. A line ends behind a word if it can, else behind a
    character: an address has no spaces."""
    if columns is None:
        return [list(parts)]
    lines: list[list[Styled]] = []
    rest = [part for part in parts if part.text]
    while sum(columns_of(part.text) for part in rest) > columns:
        text = "".join(part.text for part in rest)
        end = _end_of_line(text, columns)
        line, rest = _split(rest, end)
        lines.append(line)
    return [*lines, rest]


def _end_of_line(text: str, columns: int) -> int:
    """Returns the number of characters of the first line."""
    end = taken = 0
    for character in text:
        taken += _columns_of_character(character)
        if taken > columns:
            break
        end += 1
    space = text.rfind(" ", 0, end + 1)
    return space + 1 if space > 0 else max(1, end)


def _split(parts: Sequence[Styled], end: int) -> tuple[list[Styled], list[Styled]]:
    """Parts the pieces behind so many characters."""
    before: list[Styled] = []
    after: list[Styled] = []
    for text, style in parts:
        if text[:end]:
            before.append(Styled(text[:end], style))
        if text[end:]:
            after.append(Styled(text[end:], style))
        end = max(0, end - len(text))
    return before, after


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """Returns the values as one line of at most `width` bars, of which each shows the mean of its
    part, so that a long run stays smooth."""
    num = max(1, min(width, len(values)))
    edges = [round(index * len(values) / num) for index in range(num + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((mean - low) * scale)] for mean in means)
