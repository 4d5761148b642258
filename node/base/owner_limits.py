"""The limits that an owner sets for a node: their names, and what `gossamer limits set` keeps.

A limit is a setting like others. What the owner sets on a running node goes before flags, variables
and the file, until the owner says `default`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import msgspec

from gossamer.node.base.setting_values import PARSERS, SettingValue
from gossamer.node.base.settings import ConfigError, Settings

SETTING_OF: Mapping[str, str] = {
    "upload": "up_limit",
    "download": "down_limit",
    "threads": "threads",
    "memory": "memory_max",
    "disk": "disk_max",
    "gpu_memory": "gpu_memory",
    "gpu_power": "gpu_power_watts",
    "gpu_temperature": "gpu_temperature_max",
}
"""The setting behind each name that `gossamer limits` shows."""

UNITS: Mapping[str, str] = {
    "upload": "Mbit/s",
    "download": "Mbit/s",
    "threads": "threads",
    "memory": "bytes",
    "disk": "bytes",
    "gpu_memory": "bytes",
    "gpu_power": "W",
    "gpu_temperature": "degrees C",
}
"""The unit of each of these."""

OFF = "off"
"""The word for no limit."""

DEFAULT = "default"
"""The word for what flags, variables or the file say."""

TEXT_CHARACTERS_MAX = 200
"""Longer than eight periods of a day."""


def check_change(name: str, text: str) -> None:
    """Checks a name and a value as a person writes them.

    Raises:
        ValueError: they are no limit; the message says why.
    """
    if name not in SETTING_OF:
        near = difflib.get_close_matches(name, SETTING_OF, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the limits are {', '.join(SETTING_OF)}"
        raise ValueError(f"{name}: there is no such limit; {hint}")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise ValueError(f"{name}: a limit has up to {TEXT_CHARACTERS_MAX} characters")
    if text not in (OFF, DEFAULT):
        _parse(name, text)


def changed(kept: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Returns the limits to keep after some changes, by name. ConfigError: all mistakes at once."""
    problems = []
    for name, text in changes.items():
        try:
            check_change(name, text)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(problems)
    together = {**kept, **changes}
    return {name: text for name, text in together.items() if text != DEFAULT}


def with_limits(settings: Settings, kept: Mapping[str, str]) -> Settings:
    """Returns settings with the kept limits in place of their own. ValueError as `check_change`."""
    values = {}
    for name, text in kept.items():
        check_change(name, text)
        values[SETTING_OF[name]] = _parse(name, text)
    return msgspec.structs.replace(settings, **values)


def _parse(name: str, text: str) -> SettingValue:
    setting = SETTING_OF[name]
    if text == OFF:
        default: SettingValue = getattr(_WITHOUT, setting)
        return default
    try:
        return PARSERS[setting](text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


class _Without(msgspec.Struct, frozen=True):
    """The values that mean no limit."""

    up_limit: tuple[str, ...] = ()
    down_limit: tuple[str, ...] = ()
    threads: int = 0
    memory_max: int = 0
    disk_max: int = 0
    gpu_memory: str = ""
    gpu_power_watts: int = 0
    gpu_temperature_max: int = 0


_WITHOUT = _Without()
