"""What an owner sets on a running node: limits and schedule, their names, and what is kept of them.

Each is a setting like others. What `gossamer limits set` or `gossamer schedule set` has set goes
before flags, variables and the file, until the owner says `default`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gossamer.node.base.durations import format_duration
from gossamer.node.base.settings.setting_values import PARSERS, SettingValue
from gossamer.node.base.settings.settings import ConfigError, Settings

_LIMITS = (
    ("upload", "up_limit", "Mbit/s"),
    ("download", "down_limit", "Mbit/s"),
    ("threads", "threads", "threads"),
    ("memory", "memory_max", "bytes"),
    ("disk", "disk_max", "bytes"),
    ("gpu_memory", "gpu_memory", "bytes"),
    ("gpu_power", "gpu_power_watts", "W"),
    ("gpu_temperature", "gpu_temperature_max", "degrees C"),
)

SETTING_OF: Mapping[str, str] = {name: setting for name, setting, _ in _LIMITS}
"""The setting behind each name that `gossamer limits` shows."""

UNITS: Mapping[str, str] = {name: unit for name, _, unit in _LIMITS}
"""The unit of each of these."""

SCHEDULE = ("work_hours", "only_when_idle", "on_battery", "on_metered", "pause_for")
"""The settings that say when the node trains. Each is shown and set under its own name."""

_SETTINGS: Mapping[str, str] = {**SETTING_OF, **{name: name for name in SCHEDULE}}

OFF = "off"
"""The word for no limit, and for no rule of the schedule: the default of each of these settings."""

_SHOWN_FOR_OFF = "none"
"""What `gossamer limits` shows where a limit is off. A person who writes it is told of `OFF`."""

_DEFAULTS: Mapping[str, SettingValue] = {
    field.name: field.default for field in msgspec.structs.fields(Settings)
}

DEFAULT = "default"
"""The word for what flags, variables or the file say."""

TEXT_CHARACTERS_MAX = 1000
"""Longer than hours with four periods for every day, or than the names of a dozen programs."""


def changes_of(words: Sequence[str]) -> dict[str, str]:
    """Returns the name and the new value of each change that a person wrote.

    Raises:
        ConfigError: one is not written as NAME=VALUE, or names no limit, or has no such value.
    """
    wanted = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not text:
            example = "work_hours=22:00-07:00" if name.strip() in SCHEDULE else "upload=10"
            raise ConfigError([f"{word}: write NAME=VALUE, such as {example}, or NAME=off"])
        wanted[name.strip().replace("-", "_")] = text.strip()
    changed({}, wanted)
    return wanted


def check_change(name: str, text: str) -> None:
    """Checks a name and a value as a person writes them.

    Raises:
        ValueError: they are no limit and no part of the schedule; the message says why.
    """
    if name not in _SETTINGS:
        from gossamer.node.base.settings.meant_names import (
            meant_settings,  # here: only mistakes need it
        )

        meant = meant_settings(name, [*_SETTINGS, *_SETTINGS.values()])
        near = [each for each in _SETTINGS if each in meant or _SETTINGS[each] in meant]
        known = f"the limits are {', '.join(SETTING_OF)}; the schedule has {', '.join(SCHEDULE)}"
        hint = f"did you mean {' or '.join(near)}?" if near else known
        missing = "there is no such limit, and no such rule of the schedule"
        raise ValueError(f"{name}: {missing}; {hint}")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise ValueError(f"{name}: a value has up to {TEXT_CHARACTERS_MAX} characters")
    if text == _SHOWN_FOR_OFF and name in SETTING_OF:
        raise ValueError(
            f"{name}: write {name}={OFF} to take the limit away, or {name}={DEFAULT} to go back to "
            "the settings"
        )
    if text not in (OFF, DEFAULT):
        _parse(name, text)


def changed(kept: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Returns what to keep after some changes, by name. ConfigError: all mistakes at once."""
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
    """Returns settings with what is kept in place of their own.

    Raises:
        ConfigError: something that is kept is no value of its limit or rule, all of it at once. An
            earlier version may have taken it.
    """
    values, problems = {}, []
    for name, text in kept.items():
        try:
            check_change(name, text)
            values[_SETTINGS[name]] = _parse(name, text)
        except ValueError as error:
            command = source_of(name, kept)
            problems.append(f"{error}; `gossamer {command} {name}=default` takes back what was set")
    if problems:
        raise ConfigError(problems)
    return msgspec.structs.replace(settings, **values)


def source_of(name: str, kept: Mapping[str, str]) -> str:
    """Returns what a limit or a part of the schedule comes from, in a word for people."""
    if name not in kept:
        return "settings"
    return "schedule set" if name in SCHEDULE else "limits set"


def overridden(kept: Mapping[str, str]) -> dict[str, str]:
    """Returns the command that set what is kept, by the name of the setting."""
    return {_SETTINGS[name]: f"gossamer {source_of(name, kept)}" for name in kept}


def rule_text(settings: Settings, name: str) -> str:
    """Returns a part of the schedule as `check_change` takes it; `off` where it keeps the node from
    nothing, or lets it do nothing more."""
    value: SettingValue = getattr(settings, name)
    if isinstance(value, tuple):
        return ", ".join(value) or OFF
    return format_duration(value) if isinstance(value, int) and value else str(value or OFF)


def _parse(name: str, text: str) -> SettingValue:
    setting = _SETTINGS[name]
    if text == OFF:
        return _DEFAULTS[setting]
    # The names of programs have spaces in them: here only a comma parts them.
    given = [each.strip() for each in text.split(",")] if setting == "pause_for" else text
    try:
        return PARSERS[setting](given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
