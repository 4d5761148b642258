"""`gossamer config edit`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.base.settings.config_text import new_file_text
from gossamer.node.base.settings.settings import ConfigError, config_file_of, read_config_file
from gossamer.node.base.terminal.printable import printable
from gossamer.node.commands.options import NO_OPTIONS, State

EDITORS = ("editor", "nano", "vi")
"""Programs to try where neither `VISUAL` nor `EDITOR` names one: Debian's choice comes first."""


def edit(*, options: State = NO_OPTIONS) -> int:
    """Edit the config file with $VISUAL or $EDITOR.

    The file is replaced only by one without mistakes. Until then your text stays beside it, and the
    next `gossamer config edit` goes on with it.
    """
    file = config_file_of(os.environ, options.config)[0].resolve()  # a link stays a link
    draft = file.with_name(f"{file.name}.draft")
    command = _editor()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = _content(file)
    fresh = None if draft.exists() else before or new_file_text().encode()
    if fresh is None:
        print(f"going on with {printable(str(draft))}, which was not taken the last time")
    else:
        write_atomically(draft, fresh)
    while True:
        _run_editor(command, draft, fresh)
        problems = read_config_file(draft)
        if not problems:
            break
        for problem in problems:
            print(f"gossamer: {printable(problem)}", file=sys.stderr)
        if not (sys.stdin.isatty() and _wants_again()):
            raise ConfigError([f"{file} is as it was; your text is kept in {draft}"])
    return _take(file, draft, before)


def _take(file: Path, draft: Path, before: bytes | None) -> int:
    """Puts the draft in the place of the file. Raises ConfigError if that has changed meanwhile."""
    if _content(file) != before:
        raise ConfigError(
            [f"{file} was changed by another program meanwhile; your text is kept in {draft}"]
        )
    edited = draft.read_bytes()
    if edited == before:
        print(f"{printable(str(file))} is as it was")
    else:
        mode = file.stat().st_mode & 0o777 if before is not None else 0o600
        write_atomically(file, edited, mode=mode)
        print(f"{printable(str(file))} is written; a node reads it at its next start")
    draft.unlink()
    return 0


def _editor() -> list[str]:
    """Returns the command of the person's editor. Raises ConfigError where there is none, or it is
    no command."""
    for variable in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(os.environ.get(variable, ""))
        except ValueError as error:  # a quotation without its end
            raise ConfigError(
                [f"{variable} is no command: {str(error).lower()}; write it as a shell takes it"]
            ) from error
        if words:
            return words
    for name in EDITORS:
        if (path := shutil.which(name)) is not None:
            return [path]
    raise ConfigError(["EDITOR: no editor is named, and none of editor, nano and vi is installed"])


def _run_editor(command: list[str], draft: Path, fresh: bytes | None) -> None:
    """Raises ConfigError if the editor fails. A draft that is still `fresh` goes then."""
    try:
        status = subprocess.run([*command, str(draft)]).returncode
        problem = f"ended with status {status}; nothing is changed" if status else ""
    except OSError as error:
        problem = f"cannot be started: {error.strerror}"
    if problem:
        if _content(draft) == fresh:
            draft.unlink(missing_ok=True)
        raise ConfigError([f"the editor {command[0]} {problem}"])


def _wants_again() -> bool:
    try:
        return input("Edit again? [Y/n] ").strip().lower() not in ("n", "no")
    except EOFError:  # here an empty answer is a yes, and this one would come for ever
        print()
        return False


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
