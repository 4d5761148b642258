"""The terminal of a person, as rich writes to it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def wants_plain_text(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the person wants no colours (https://no-color.org)."""
    return bool(environment.get("NO_COLOR"))


def ask(question: str) -> str:
    """Asks a question on the terminal. Returns the answer without spaces around it; empty as well
    where the input ends (Ctrl-D): that is no answer."""
    try:
        return input(question).strip()
    except EOFError:
        print()  # the next line stands below the question, not behind it
        return ""


def open_console(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """Returns a console, on stdout by default. With `NO_COLOR` it writes plain text: rich by itself
    would leave out the colours and keep dim and bold."""
    from rich.console import Console  # here: orders and answers in JSON need none

    if wants_plain_text():
        return Console(file=file, width=width, color_system=None)
    return Console(file=file, width=width)


def plain_table(titles: Sequence[str], texts: Collection[str]) -> Table:
    """Returns a table without lines, whose columns of numbers stand on the right.

    Args:
        texts: the titles of the columns that hold no numbers. What is too long there is folded.
    """
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in titles:
        is_text = title in texts
        table.add_column(title, justify="left" if is_text else "right", overflow="fold")
    return table
