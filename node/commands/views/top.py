"""`gossamer top`."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from gossamer.node.app.http.client import (
    ClientError,
    Order,
    change_limits,
    fetch_status,
    give_order,
    until_end,
)
from gossamer.node.base.settings.owner_limits import OFF, changes_of
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.terminal import open_console, wants_plain_text
from gossamer.node.base.terminal.text_table import Look, sparkline
from gossamer.node.commands.options import NO_OPTIONS, State, state_dir_of
from gossamer.node.commands.views.status_view import status_lines
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import LossPoint, Status

REFRESH_SECONDS = 2.0
"""As the page: a step takes about as long."""

CURVE_COLUMNS = 60
"""Width of the curve: it fits into a terminal of 80 columns beside its numbers."""

TYPED_MAX = 200
"""Characters of a line that can be typed: more than every limit at once."""

_KEYS = (
    "p pause   h for an hour   f after this round   r resume   l limit   x finish and exit   q quit"
)
_ASKED = "A limit or a rule, such as upload=10 or work_hours=22:00-07:00 (Escape: none): "
_HOLDS = "It holds from now on, and after a restart."
_ORDERS: Mapping[str, tuple[Order, Mapping[str, int], str]] = {
    "p": ("pause", {}, "The node ends its step, hands over its round and pauses."),
    "f": ("pause", {"after_round": 1}, "The node pauses when its present round ends."),
    "h": ("pause", {"seconds": 3600}, "The node pauses, and goes on in an hour."),
    "r": ("resume", {}, "The node goes on, unless something else in its settings holds it."),
    "x": (
        "finish",
        {},
        "The node leaves and exits when its present round ends; r takes that back.",
    ),
}


def top(*, options: State = NO_OPTIONS) -> int:
    """Watch the node in this terminal, and steer it with a key.

    It shows what `gossamer status` shows, the curve of losses, and the limits and the schedule that
    hold, every two seconds. `l` asks for a limit or a rule, as `gossamer limits set` and
    `gossamer schedule set` take it.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(["`gossamer top` needs a terminal; `gossamer status` does not"])
    state_dir = state_dir_of(options)
    status = fetch_status(state_dir)
    said, line = "", TypedLine()
    with (
        _single_keys() as descriptor,
        contextlib.suppress(KeyboardInterrupt),
        Live(console=open_console(), screen=True, auto_refresh=False) as live,
    ):
        while True:
            look = Look(live.console.width, styles=not wants_plain_text())
            live.update(_screen(status, line.shown or said, look), refresh=True)
            key = _key(descriptor)
            if line.typed is not None:
                if (typed := line.take(key)) is not None:
                    said = _change(state_dir, typed)
                if key:
                    continue
            elif key == "q":
                break
            elif key == "l":
                line.typed = ""
            elif key:
                said = _give(state_dir, key)
            try:
                status = fetch_status(state_dir)
            except ClientError as error:
                said = str(error)
    return 0


@contextlib.contextmanager
def _single_keys() -> Iterator[int]:
    """Makes the terminal give each key at once and show none, and undoes that in the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _key(descriptor: int) -> str:
    """Returns the next key, or an empty text if none comes before the next refresh."""
    ready, _, _ = select.select([descriptor], [], [], REFRESH_SECONDS)
    if not ready:
        return ""
    return os.read(descriptor, 1).decode("ascii", errors="replace") or "q"  # a closed terminal


class TypedLine:
    """A line that the owner types, key by key."""

    def __init__(self) -> None:
        self.typed: str | None = None
        """What is typed so far; None: keys do not belong to the line."""

    @property
    def shown(self) -> str:
        """The question and what is typed so far; empty while no line is typed."""
        return "" if self.typed is None else f"{_ASKED}{self.typed}_"

    def take(self, key: str) -> str | None:
        """Takes a key, and returns the line once it is complete. Escape drops the line."""
        typed = self.typed or ""
        if key in ("\r", "\n"):
            self.typed = None
            return typed
        if key == "\x1b":
            self.typed = None
        elif key in ("\x7f", "\b"):
            self.typed = typed[:-1]
        elif key.isprintable():
            self.typed = (typed + key)[:TYPED_MAX]
        return None


def _change(state_dir: StateDir, typed: str) -> str:
    """Changes the limits and rules of a line, and returns what to tell."""
    try:
        wanted = changes_of(shlex.split(typed))
        if not wanted:
            return ""
        problem = change_limits(state_dir, wanted)
    except (ConfigError, ClientError) as error:
        return str(error)
    except ValueError:  # of shlex
        return f"{typed}: a quotation mark is missing"
    return until_end(problem) if problem else _HOLDS


def _give(state_dir: StateDir, key: str) -> str:
    """Gives the order of a key, and returns what to tell."""
    if key not in _ORDERS:
        return ""
    order, order_options, taken = _ORDERS[key]
    try:
        problem = give_order(state_dir, order, order_options)
    except ClientError as error:
        return str(error)
    return until_end(problem) if problem else taken


def _screen(status: Status, said: str, look: Look) -> RenderableType:
    # What a low terminal cuts off is below.
    top_lines = [Text(_KEYS, style="dim"), Text(printable(said)), Text()]
    curve_lines, owner = _curve_lines(status.loss_history), _owner_line(status)
    status_part = (Text.from_ansi(line) for line in status_lines(status, look))
    return Group(*top_lines, *curve_lines, *owner, *status_part)


def _owner_line(status: Status) -> list[Text]:
    """Returns a line with the owner's limits and schedule; none where nothing is set."""
    held = [(each.name, each.text) for each in status.limits]
    held += [(each.name, each.text) for each in status.schedule]
    words = [f"{name} {text}" for name, text in held if text not in ("", OFF)]
    if not words:
        return []
    line = Text("owner     ", style="dim")
    line.append(printable(", ".join(words)), style="not dim")
    return [line, Text()]


def _curve_lines(points: Sequence[LossPoint]) -> list[Text]:
    heldout = [(p.round, p.heldout_loss) for p in points if p.heldout_loss is not None]
    if len(heldout) < 2:
        return []
    (first, first_loss), (last, last_loss) = heldout[0], heldout[-1]
    line = Text("held-out  ", style="dim")
    curve = sparkline([loss for _, loss in heldout], CURVE_COLUMNS)
    line.append(f"{first_loss:.3f} {curve} {last_loss:.3f}")
    line.append(f"  rounds {first:,} to {last:,}", style="dim")
    return [line, Text()]
