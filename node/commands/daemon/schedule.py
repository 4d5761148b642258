"""`gossamer schedule`: when the owner lets this machine work, and orders to change that."""

from __future__ import annotations

from gossamer.node.app.client import NotRunningError, fetch_status
from gossamer.node.base.owner_limits import SCHEDULE, rule_text, with_limits
from gossamer.node.base.settings import ConfigError
from gossamer.node.commands.daemon.limits import change, print_rows
from gossamer.node.commands.options import State, settings_of
from gossamer.node.storage.limits_file import read_limits
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import RuleStatus


def schedule(*words: str, options: State = None) -> int:
    """Show when this machine works, or change it.

    Parameters
    ----------
    words
        Nothing, which shows the schedule; or set work_hours=22:00-07:00 only_when_idle=5min, which
        holds at once on a running node, and over restarts. The others are on_battery and on_metered
        (on or off), and pause_for (names of programs, with commas between them). NAME=off takes one
        away, and NAME=default goes back to the settings.
    """
    if not words:
        return _show(options)
    if words[0] != "set" or not words[1:]:
        problem = "write `gossamer schedule`, or `gossamer schedule set work_hours=22:00-07:00`"
        raise ConfigError([problem])
    change(words[1:], options)
    return 0


def _show(options: State) -> int:
    settings = settings_of(options)
    state_dir = StateDir(settings.state_dir)
    try:
        found = fetch_status(state_dir).schedule
    except NotRunningError:
        kept = read_limits(state_dir.limits_path)
        settings = with_limits(settings, kept)
        found = tuple(
            RuleStatus(
                name=name,
                text=rule_text(settings, name),
                source="schedule set" if name in kept else "settings",
            )
            for name in SCHEDULE
        )
    print_rows([("SETTING", "HOLDS", "FROM"), *((row.name, row.text, row.source) for row in found)])
    return 0
