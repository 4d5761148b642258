"""The table of the `gossamer` commands, from which cyclopts reads a command line.

The module of a command is imported when the command is asked for, so that `gossamer --help` is
quick.
"""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App, Parameter

from gossamer.node.base.terminal.terminal import open_console, wants_plain_text

COMMANDS = (
    ("init", "founder.init", "Write a commented manifest to edit."),
    ("start", "daemon.start", "Found a run here, or go on with the one in the state directory."),
    (
        "id",
        "members.identity:show_id",
        "Show the id of this node, which a founder needs to admit it.",
    ),
    ("join", "daemon.join", "Join the run of a peer, or go on with it."),
    ("status", "views.show_status:status", "Show what the node does and what the swarm does."),
    ("top", "views.top", "Watch the node in this terminal, and steer it with a key."),
    ("watch", "views.watch", "Look at a run from outside, without joining it."),
    ("page", "views.show_status:page", "Print the link of the page that steers this node."),
    ("peers", "views.peers", "Show what each member has given: tokens, rank, share of the run."),
    ("report", "views.report", "Write a static page of the run: curve, members, samples."),
    (
        "pause",
        "daemon.orders:pause",
        "Stop training and free the device; the node serves what it has.",
    ),
    ("resume", "daemon.orders:resume", "Go on after a pause, or after the trainer failed."),
    ("limits", "daemon.limits", "Show the limits of this machine beside their use, or set them."),
    ("schedule", "daemon.limits:schedule", "Show when this machine works, or change it."),
    ("finish", "daemon.orders:finish", "Finish the present round, then leave and exit."),
    (
        "leave",
        "daemon.orders:leave",
        "Stop the node in order: hand over its work if the others take it now, save all, exit.",
    ),
    (
        "invite",
        "members.invitations:invite",
        "Print an invitation to this node's run, for gossamer join.",
    ),
    ("members", "members.invitations:members", "List the members of an invite-only run."),
    ("revoke", "members.invitations:revoke", "Put a member out of an invite-only run for good."),
    ("rollback", "founder.rollback", "Take back all rounds after one, as founder or keeper."),
    ("extend", "founder.extend", "Set another end of the run, or begin its cool-down."),
    (
        "export",
        "model.export_model:export",
        "Write the newest committed state as a Hugging Face model.",
    ),
    ("generate", "model.generate", "Continue a text with the model as it is on this disk."),
    ("serve", "model.serve", "Answer programs that speak OpenAI's interface with the model."),
    ("presets", "founder.presets", "List the presets: size, memory, bytes a round."),
    ("plan", "founder.plan", "Estimate what a round costs each peer: bytes, seconds, utilisation."),
    ("doctor", "machine.doctor", "Check this machine, and say what to change."),
    ("reset", "machine.reset", "Remove the run from this machine, and keep the node's identity."),
    (
        "uninstall",
        "machine.reset:uninstall",
        "Remove everything that Gossamer has put on this machine.",
    ),
    ("demo", "daemon.demo", "Run a swarm of four peers here, kill one, and let a fifth join."),
)
"""The name of each command, its function, and its line in `gossamer --help`. Help keeps this order.

The function is MODULE:FUNCTION in `gossamer.node.commands`, or MODULE if it has the module's name.
Help imports none of these modules."""

GROUPS = (
    (
        "config",
        "Show, check or edit the settings of this machine's node.",
        (
            ("show", "machine.config_show:show", "Show each setting, its value and its source."),
            (
                "check",
                "machine.config_show:check",
                "Check a config file, and the variables of this shell.",
            ),
            ("edit", "machine.config_edit:edit", "Edit the config file with $VISUAL or $EDITOR."),
        ),
    ),
    (
        "service",
        "Make the node a service that starts with the machine, and look after it.",
        (
            (
                "install",
                "machine.service:install",
                "Make the node a service, which starts with the machine.",
            ),
            (
                "uninstall",
                "machine.service:uninstall",
                "Stop the service and remove it; state and settings stay.",
            ),
            (
                "status",
                "machine.service:status",
                "Show how the service is, as the service manager sees it.",
            ),
            ("logs", "machine.service:logs", "Show the newest lines of the service's log."),
        ),
    ),
    (
        "identity",
        "Back up the key by which others know this node, and restore it.",
        (
            ("backup", "members.identity:backup", "Copy the node's identity to a file."),
            ("restore", "members.identity:restore", "Give this node the identity of a back-up."),
        ),
    ),
)
"""Commands that have commands of their own: name, line in help, and these as in `COMMANDS`."""

HELP_FLAGS = ("--help", "-h")
"""What asks for help, anywhere in a command line."""

COMPLETION = "gossamer.node.shell_completion:install"
COMPLETION_HELP = "Install completion for bash, zsh or fish, whichever shell this is."


def _version() -> str:
    from importlib.metadata import version  # takes 30 ms, which other commands need not wait

    return f"gossamer {version('gossamer')}"


def _build_app() -> App:
    app = App(
        name="gossamer",
        help="Train one model together on machines without a common administrator.",
        version=_version,
        help_flags=HELP_FLAGS,
        default_parameter=Parameter(negative=()),
        print_error=False,
        exit_on_error=False,
        result_action="return_value",
        console=open_console() if wants_plain_text() else None,
    )
    for place, (name, function, help_line) in enumerate(COMMANDS):
        app.command(_path(function), name=name, help=help_line, sort_key=place)
    for place, (group, group_help, commands) in enumerate(GROUPS, start=len(COMMANDS)):
        group_app = App(name=group, help=group_help, sort_key=place)
        for name, function, help_line in commands:
            group_app.command(_path(function), name=name, help=help_line)
        app.command(group_app)
    app.command(COMPLETION, name="--install-completion", help=COMPLETION_HELP, sort_key=place + 1)
    return app


def _path(function: str) -> str:
    module, _, name = f"gossamer.node.commands.{function}".partition(":")
    return f"{module}:{name or module.rpartition('.')[2]}"


app = _build_app()


def tell_all(words: Sequence[str]) -> None:
    """Makes the help of the command in some words the whole text of its function. Until then it is
    the line of the table, by which `gossamer --help` lists a command without importing it."""
    command = [word for word in words if word not in HELP_FLAGS]
    path, apps, _ = app.parse_commands(command)
    function = apps[-1].default_command
    # A group has no function, and that of completion is the library's, with a text of its own.
    if path and function is not None and (function.__doc__ or "").startswith(apps[-1].help):
        apps[-1].help = function.__doc__
