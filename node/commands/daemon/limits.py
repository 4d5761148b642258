"""`gossamer limits` and `gossamer schedule`: what holds on this machine, and changes of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from gossamer.node.app.http.client import (
    NotRunningError,
    StartingError,
    change_limits,
    fetch_status,
    until_end,
)
from gossamer.node.base.settings.owner_limits import (
    DEFAULT,
    OFF,
    SETTING_OF,
    changed,
    changes_of,
    with_limits,
)
from gossamer.node.base.settings.setting_values import SettingValue
from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.text_table import Styled, look_of, table_lines
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.commands.options import NO_OPTIONS, State, settings_of
from gossamer.node.storage.order_lock import alone_in
from gossamer.node.storage.owner_orders import read_limits, write_limits
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.limit_status import limit_statuses, rule_statuses
from gossamer.node.telemetry.status import LimitStatus, RuleStatus


def limits(*words: str, options: State = NO_OPTIONS) -> int:
    """Show the limits of this machine beside their use, or set them.

    Parameters
    ----------
    words
        Nothing, which shows the limits; or set upload=10 memory=8GiB gpu_temperature=80, which
        holds at once on a running node, and over restarts. The limits are upload and download
        (Mbit/s), threads, memory, disk, gpu_memory (50% or 8GiB), gpu_power (W) and
        gpu_temperature (degrees C). NAME=off takes a limit away, and NAME=default goes back to the
        settings.
    """
    if words:
        _change("limits", "upload=10", words, options)
    else:
        _show_limits(options)
    return 0


def schedule(*words: str, options: State = NO_OPTIONS) -> int:
    """Show when this machine works, or change it.

    Parameters
    ----------
    words
        Nothing, which shows the schedule; or set work_hours=22:00-07:00 only_when_idle=5min, which
        holds at once on a running node, and over restarts. The others are on_battery and on_metered
        (on or off), and pause_for (names of programs, with commas between them). NAME=off takes one
        away, and NAME=default goes back to the settings.
    """
    if words:
        _change("schedule", "work_hours=22:00-07:00", words, options)
    else:
        _show_schedule(options)
    return 0


def _change(command: str, example: str, words: tuple[str, ...], options: State) -> None:
    """Changes limits or the schedule of the node that runs, or of the next one, and says so.

    Args:
        words: `set`, and then NAME=VALUE each.

    Raises:
        ConfigError: a change is none, or the node refuses it.
    """
    if words[0] != "set" or not words[1:]:
        raise ConfigError([f"write `gossamer {command}`, or `gossamer {command} set {example}`"])
    settings = settings_of(options)
    state_dir = StateDir(settings.state_dir)
    wanted = changes_of(words[1:])
    try:
        problem = change_limits(state_dir, wanted)
    except StartingError:
        raise
    except NotRunningError:
        is_new = not settings.state_dir.is_dir()
        _keep(settings, state_dir, wanted)
        if is_new:
            where = printable(str(settings.state_dir))
            print(f"No node has run in {where} yet. It holds when the first one starts.")
        else:
            print("No node runs here. It holds when the next one starts.")
        return
    print(until_end(problem) if problem else "It holds from now on, and after a restart.")
    if wanted.get("gpu_power", OFF) not in (OFF, DEFAULT):  # the node asks the driver after this
        print("gossamer limits says whether the card's driver takes gpu_power.")


def _keep(settings: Settings, state_dir: StateDir, wanted: Mapping[str, str]) -> None:
    """Keeps changes for the next node of a state directory.

    Raises:
        ConfigError: a change is none.
        StateDirError, DiskError, OSError: the state directory does not take them.
    """

    def kept() -> dict[str, str]:
        together = changed(read_limits(state_dir.limits_path), wanted)
        with_limits(settings, together)
        return together

    kept()  # a mistake makes no directory
    state_dir.create()  # an owner may set limits before the first `gossamer join`
    with alone_in(state_dir.root):  # another command may change other limits now
        write_limits(state_dir.limits_path, kept())


def _show_limits(options: State) -> None:
    found, _ = _statuses(options)
    rows = [(row.name, _limit(row), _number(row.used, row.unit), _source(row)) for row in found]
    _print_table(("LIMIT", "HOLDS", "USED", "FROM"), rows)
    for row in found:
        if row.note:
            print(printable(f"{row.name} does not hold: {row.note}"))


def _show_schedule(options: State) -> None:
    _, found = _statuses(options)
    _print_table(("SETTING", "HOLDS", "FROM"), [(row.name, row.text, row.source) for row in found])


def _statuses(options: State) -> tuple[tuple[LimitStatus, ...], tuple[RuleStatus, ...]]:
    """Returns limits and schedule of the node that runs, or else of the next one."""
    settings = settings_of(options)
    state_dir = StateDir(settings.state_dir)
    try:
        status = fetch_status(state_dir)
        return status.limits, status.schedule
    except NotRunningError:
        kept = read_limits(state_dir.limits_path)
    holds = with_limits(settings, kept)
    limits = limit_statuses(
        holds, kept, lambda name: _plain_number(getattr(holds, SETTING_OF[name]))
    )
    return limits, rule_statuses(holds, kept)


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    cells = [[Styled(printable(cell)) for cell in row] for row in rows]
    print(*table_lines([(title, "left") for title in titles], cells, look_of(sys.stdout)), sep="\n")


def _plain_number(value: SettingValue) -> float | None:
    """Returns the number of a limit that no node holds now; None where it depends on the time of
    the day or on the card."""
    if isinstance(value, int):
        return value or None
    if isinstance(value, tuple) and len(value) == 1 and "@" not in value[0]:
        return float(value[0])
    return None


def _limit(row: LimitStatus) -> str:
    if not row.text:
        return "none"
    if row.limit is None:
        return row.text
    number = _number(row.limit, row.unit)
    return number if " " not in row.text and "@" not in row.text else f"{number} ({row.text})"


def _source(row: LimitStatus) -> str:
    return row.source if row.text or row.source != "settings" else ""


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return format_bytes(int(value))
    return "1 thread" if (value, unit) == (1, "threads") else f"{value:.3g} {unit}"
