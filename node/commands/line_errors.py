"""What is wrong with a command line that cyclopts cannot read, in sentences for people."""

from __future__ import annotations

import difflib

from cyclopts import CycloptsError
from cyclopts.exceptions import (
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from gossamer.node.base.settings.meant_names import meant_settings
from gossamer.node.base.settings.owner_limits import SCHEDULE, SETTING_OF

_CHANGED_BY_WORDS = {"limits": list(SETTING_OF), "schedule": list(SCHEDULE)}
"""The commands whose settings are words, and no options."""

_MEANT_COMMANDS = {
    **dict.fromkeys(("stop", "quit", "exit", "shutdown", "kill"), "leave"),
    **dict.fromkeys(("continue", "unpause"), "resume"),
}
"""Commands by other names that people know for them, and that are written quite differently."""


def explain_line(error: CycloptsError) -> list[str]:
    """Returns one sentence on the mistake, and one on where the right words stand."""
    command = " ".join(error.command_chain or ())
    if isinstance(error, UnknownOptionError):
        return [_unknown_option(error, command), _where(command)]
    if isinstance(error, UnusedCliTokensError) and command:
        words = " ".join(error.unused_tokens or ())
        return [f"`gossamer {command}` does not take {words!r}", _where(command)]
    if isinstance(error, UnknownCommandError):
        return [_unknown_command(error, command), _where(command)]
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name.lstrip("-").upper()
        missing = f"{error.keyword} needs a value" if error.keyword else f"{name} is missing"
        return [f"`gossamer {command}`: {missing}", _where(command)]
    return [" ".join(str(error).split()), _where(command)]


def _unknown_command(error: UnknownCommandError, command: str) -> str:
    word = (error.unused_tokens or [""])[0]
    if word.startswith("-"):
        return f"{word}: options come after a command, as in `gossamer status {word}`"
    group = f"{command} " if command else ""
    known = [name for name in error.app or () if not name.startswith("-")]
    meant = difflib.get_close_matches(word, known, n=1)
    if not group and word in _MEANT_COMMANDS:
        meant = [_MEANT_COMMANDS[word]]
    said = f"there is no command `{group}{word}`"
    return f"{said}; did you mean `gossamer {group}{meant[0]}`?" if meant else said


def _unknown_option(error: UnknownOptionError, command: str) -> str:
    option = (error.token.keyword or error.token.value).partition("=")[0]
    name = option.lstrip("-").replace("-", "_")
    said = f"{option}: `gossamer {command}` has no such option"
    if command in _CHANGED_BY_WORDS:
        settings = {SETTING_OF.get(each, each): each for each in _CHANGED_BY_WORDS[command]}
        meant = meant_settings(name, list(settings))
        if meant:
            return f"{said}; write `gossamer {command} set {settings[meant[0]]}=VALUE`"
    names = {each for argument in error.argument_collection for each in argument.names}
    options = {each.lstrip("-").replace("-", "_"): each for each in sorted(names)}
    found = [options[each] for each in meant_settings(name, list(options))]
    return f"{said}; did you mean {' or '.join(found)}?" if found else said


def _where(command: str) -> str:
    if not command:
        return "`gossamer --help` shows the commands"
    return f"`gossamer {command} --help` shows what it takes"
