"""The `gossamer` command: a table of commands, and what happens to their errors.

The module of a command is imported when the command is asked for, so that `gossamer --help` is
quick. An error that a person can do something about is one line on stderr and a non-zero exit
status: 1 if the command failed, 2 if it would fail again until somebody changes something, such as
a setting. A traceback is a bug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError, Parameter

from gossamer.node.base.terminal import open_console, wants_plain_text

COMMANDS = (
    ("init", "init:init", "Write a commented manifest to edit."),
    ("start", "start:start", "Found a run here, or go on with the one in the state directory."),
    ("id", "show_id:show_id", "Show the id of this node, which a founder needs to admit it."),
    ("join", "join:join", "Join the run of a peer, or go on with it."),
    ("status", "show_status:status", "Show what the node does and what the swarm does."),
    ("pause", "orders:pause", "Stop training and free the device; the node serves what it has."),
    ("resume", "orders:resume", "Go on after a pause, or after the trainer failed."),
    ("limits", "limits:limits", "Show the limits of this machine beside their use, or set them."),
    ("leave", "orders:leave", "Stop the node in order: commit its work, save its state, exit."),
    (
        "invite",
        "invitations:invite",
        "Print an invitation to this node's run, for gossamer join.",
    ),
    ("members", "invitations:members", "List the members of an invite-only run."),
    ("revoke", "invitations:revoke", "Put a member out of an invite-only run for good."),
    ("rollback", "rollback:rollback", "Take back all rounds after one, as the run's founder."),
    ("export", "export_model:export", "Write the newest committed state as a Hugging Face model."),
    ("generate", "generate:generate", "Continue a text with the model as it is on this disk."),
    ("plan", "plan:plan", "Estimate what a round costs each peer: bytes, seconds, utilisation."),
    ("doctor", "doctor:doctor", "Check this machine, and say what to change."),
    ("demo", "demo:demo", "Run a swarm of four peers here, kill one, and let a fifth join."),
)
"""The name of each command, its function as MODULE:FUNCTION in `gossamer.node.commands`, and its
line in `gossamer --help`, which imports none of these modules. Help keeps this order."""


def _build_app() -> App:
    app = App(
        name="gossamer",
        help="Train one model together on machines without a common administrator.",
        version=lambda: f"gossamer {version('gossamer')}",
        default_parameter=Parameter(negative=()),
        print_error=False,
        exit_on_error=False,
        result_action="return_value",
        console=open_console() if wants_plain_text() else None,
    )
    for place, (name, function, help_line) in enumerate(COMMANDS):
        app.command(f"gossamer.node.commands.{function}", name=name, help=help_line, sort_key=place)
    return app


app = _build_app()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its status. This is the console entry point."""
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit status. Errors for people go to stderr."""
    if not arguments:
        arguments = ["--help"]
    try:
        result = app(list(arguments))
    except CycloptsError as error:
        _complain([" ".join(str(error).split()), "`gossamer --help` shows the commands"])
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone, as in `gossamer status | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from gossamer.node.commands.user_errors import exit_status, explain

        problems = explain(error)
        if problems is None:
            raise
        _complain(problems)
        return exit_status(error)
    return result if isinstance(result, int) else 0


def _complain(problems: Sequence[str]) -> None:
    from gossamer.node.telemetry.logs import printable

    for problem in problems:
        print(f"gossamer: {printable(problem)}", file=sys.stderr)


if __name__ == "__main__":
    main()
