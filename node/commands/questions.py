"""Questions to the person at the terminal, before something is lost."""

from __future__ import annotations

import sys

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.terminal import ask


def require_terminal() -> None:
    """Raises ConfigError where nobody is there to ask."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(["nobody is at the terminal to ask: give --yes, if you mean it"])


def require_yes(question: str, *, yes: bool) -> bool:
    """Asks a question on the terminal. Returns whether the answer is yes.

    Args:
        yes: the answer, where the command line gave it.

    Raises:
        ConfigError: nobody is there to ask.
    """
    if yes:
        return True
    require_terminal()
    return ask(f"{question} [y/N] ").lower() in ("y", "yes")
