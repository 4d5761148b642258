"""The `gossamer` command: what happens to a command line and to its errors.

An error that a person can do something about is one line on stderr and a non-zero exit status: 1 if
the command failed, 2 if it would fail again until somebody changes something, such as a setting. A
traceback is a bug.

`gossamer status` in its plain forms is not read by the library that reads all other command lines:
people and scripts ask it often, and the library takes longer to load than the command has to do.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from gossamer.node.base.terminal.standard_streams import mend_standard_streams


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its status. This is the console entry point."""
    mend_standard_streams()
    words = sys.argv[1:] if arguments is None else list(arguments)
    is_short = words[:1] == ["status"]
    if is_short:
        # It ends when it has printed one answer of bounded length. To look for garbage while its
        # modules are loaded, and again at its end, takes a tenth of its time.
        gc.disable()
    elif words[:1] in (["start"], ["join"]):
        # A daemon loads two thousand modules, which stay. The search takes a sixth of that time.
        # `search_for_garbage_again` ends this when all are loaded.
        gc.disable()
    status = run_command(words)
    if is_short:
        gc.freeze()
    if status == 2:
        from gossamer.node.service.units import ENDLESS_STARTERS  # here: only errors need it

        for variable, starter in ENDLESS_STARTERS.items():
            if variable in os.environ:
                _complain(
                    [f"this ends with status 0, so that {starter} does not start it again for ever"]
                )
                status = 0
    sys.exit(status)


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit status. Errors for people go to stderr."""
    if not arguments:
        arguments = ["--help"]
    try:
        if arguments[0] == "status":
            from gossamer.node.commands.views.status_line import read_status_line, show_status

            line = read_status_line(arguments)
            status = _run_from_table(arguments) if line is None else show_status(line)
        else:
            status = _run_from_table(arguments)
        sys.stdout.flush()  # its errors show here: at Python's end nobody could catch them
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone, as in `gossamer status | head`.
        _drop_output()
        return 1
    except Exception as error:
        from gossamer.node.commands.user_errors import exit_status, explain, is_of_output

        problems = explain(error)
        if problems is None:
            raise
        if is_of_output(error):
            _drop_output()
        _complain(problems)
        return exit_status(error)


def _drop_output() -> None:
    """What Python still has of the output would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_from_table(arguments: Sequence[str]) -> int:
    from cyclopts import CycloptsError  # here: `status` needs neither

    from gossamer.node.command_table import HELP_FLAGS, app, tell_all

    try:
        if not set(HELP_FLAGS).isdisjoint(arguments):
            tell_all(arguments)
        result = app(list(arguments))
    except CycloptsError as error:
        from gossamer.node.commands.line_errors import explain_line

        _complain(explain_line(error))
        return 2
    return result if isinstance(result, int) else 0


def _complain(problems: Sequence[str]) -> None:
    from gossamer.node.base.terminal.printable import printable

    for problem in problems:
        print(f"gossamer: {printable(problem)}", file=sys.stderr)


if __name__ == "__main__":
    main()
