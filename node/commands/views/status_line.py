"""What `gossamer status` does, and its plain command lines.

Nothing here loads cyclopts: it takes longer to load than the node takes to answer and this module
to print the answer. A line with anything else in it, such as `--help` or a misspelt option, is left
to cyclopts, and so are the errors that it reports.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gossamer.node.app.http.client import StartingError, fetch_status
from gossamer.node.base.settings.settings import load_settings
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.text_table import look_of
from gossamer.node.commands.views.status_view import status_lines
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import encode_status

_WITH_PATH = ("--state-dir", "--config")


class StatusLine(NamedTuple):
    """The options of `gossamer status`."""

    json: bool = False
    state_dir: Path | None = None
    config: Path | None = None


def read_status_line(arguments: Sequence[str]) -> StatusLine | None:
    """Returns the options of a plain command line that begins with `status`, or None if cyclopts
    has to read it."""
    is_json = False
    paths: dict[str, Path] = {}
    rest = list(arguments[1:])
    while rest:
        word = rest.pop(0)
        name, has_value, value = word.partition("=")
        if word == "--json" and not is_json:
            is_json = True
            continue
        if name not in _WITH_PATH or name in paths:
            return None
        if not has_value:
            value = rest.pop(0) if rest else ""
        if not value or value.startswith("-"):
            return None
        paths[name] = Path(value)
    return StatusLine(is_json, paths.get("--state-dir"), paths.get("--config"))


def show_status(line: StatusLine) -> int:
    """Prints the status of the running node; returns the exit status.

    Raises:
        ConfigError: the settings cannot be used.
        ClientError: as `fetch_status`, but a node that is starting is told as an answer for people.
    """
    settings = load_settings({"state_dir": line.state_dir}, os.environ, line.config)
    try:
        answer = fetch_status(StateDir(settings.state_dir))
    except StartingError as error:
        if line.json:
            raise
        print(printable(str(error)))
        return 0
    if line.json:
        print(msgspec.json.format(encode_status(answer), indent=2).decode())
    else:
        print(*status_lines(answer, look_of(sys.stdout)), sep="\n")
    return 0
