"""`gossamer limits`: the owner's limits beside the use, and orders to change them, which
`gossamer schedule` has as well."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.node.app.client import NotRunningError, StartingError, change_limits, fetch_status
from gossamer.node.base.owner_limits import SETTING_OF, UNITS, changed, with_limits
from gossamer.node.base.printable import printable
from gossamer.node.base.settings import ConfigError
from gossamer.node.base.units import format_bytes
from gossamer.node.commands.options import State, settings_of
from gossamer.node.storage.limits_file import read_limits, write_limits
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import LimitStatus


def limits(*words: str, options: State = None) -> int:
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
    if not words:
        return _show(options)
    if words[0] != "set" or not words[1:]:
        raise ConfigError(["write `gossamer limits`, or `gossamer limits set upload=10`"])
    change(words[1:], options)
    return 0


def change(words: tuple[str, ...], options: State) -> None:
    """Changes limits or the schedule of the node that runs, or of the next one, and says so.

    Args:
        words: NAME=VALUE each.

    Raises:
        ConfigError: a change is none, or the node refuses it.
    """
    settings = settings_of(options)
    state_dir = StateDir(settings.state_dir)
    wanted = pairs_of(words)
    changed({}, wanted)
    try:
        change_limits(state_dir, wanted)
    except StartingError:
        raise
    except NotRunningError:
        if not settings.state_dir.is_dir():
            raise
        kept = changed(read_limits(state_dir.limits_path), wanted)
        with_limits(settings, kept)
        write_limits(state_dir.limits_path, kept)
        print("No node runs here. It holds when the next one starts.")
        return
    print("It holds from now on, and after a restart.")


def pairs_of(changes: Sequence[str]) -> dict[str, str]:
    """Returns the name and the new value of each change.

    Raises:
        ConfigError: one is not written as NAME=VALUE.
    """
    wanted = {}
    for change in changes:
        name, sign, text = change.partition("=")
        if not sign or not text:
            raise ConfigError([f"{change}: write NAME=VALUE, such as upload=10"])
        wanted[name.strip().replace("-", "_")] = text.strip()
    return wanted


def _show(options: State) -> int:
    settings = settings_of(options)
    state_dir = StateDir(settings.state_dir)
    try:
        found = fetch_status(state_dir).limits
    except NotRunningError:
        settings = with_limits(settings, read_limits(state_dir.limits_path))
        found = tuple(
            LimitStatus(
                name=name,
                setting=setting,
                unit=UNITS[name],
                text=_written(getattr(settings, setting)),
            )
            for name, setting in SETTING_OF.items()
        )
    rows = [("LIMIT", "HOLDS", "USED", "FROM")]
    rows += [(row.name, _limit(row), _number(row.used, row.unit), _source(row)) for row in found]
    print_rows(rows)
    for row in found:
        if row.note:
            print(printable(f"{row.name} does not hold: {row.note}"))
    return 0


def print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    """Prints rows whose cells stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(printable(line.rstrip()))


def _written(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value or "")


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
    return format_bytes(int(value)) if unit == "bytes" else f"{value:.3g} {unit}"
