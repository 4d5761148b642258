"""`gossamer doctor`: prints the checks of `machine_checks` and what to do about each."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.terminal import open_console
from gossamer.node.commands.machine.machine_checks import make_checks
from gossamer.node.commands.machine.state_checks import Level
from gossamer.node.commands.node_options import NO_NODE_OPTIONS, Node
from gossamer.node.commands.options import reading_settings_of

_STYLES: dict[Level, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    address: Annotated[str | None, Parameter(show_default="none: no peer is tried")] = None,
    *,
    options: Node = NO_NODE_OPTIONS,
) -> int:
    """Check this machine, and say what to change.

    The exit status is 1 if a check failed, and 0 otherwise.

    Parameters
    ----------
    address
        Address of a peer that should be reachable, and that tries to reach this machine.
    """
    return run_doctor(reading_settings_of(options), address, open_console())


def run_doctor(settings: Settings, address: str | None, console: Console) -> int:
    """Prints every check as it is made. Returns 1 if one failed, else 0."""
    failed = False
    for check in make_checks(settings, address):
        line = Text()
        line.append(f"{check.level:<5}", style=_STYLES[check.level])
        line.append(f"{check.name:<11}{printable(check.text)}")
        console.print(line, soft_wrap=True)
        if check.advice:
            console.print(Text(f"{'':<16}{printable(check.advice)}", style="dim"), soft_wrap=True)
        failed = failed or check.level == "fail"
    return 1 if failed else 0
