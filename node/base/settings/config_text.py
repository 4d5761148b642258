"""Settings as text: lines of a config file, and the file that `gossamer config edit` makes."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from gossamer.node.base.settings.default_places import default_state_dir
from gossamer.node.base.settings.setting_values import SettingValue
from gossamer.node.base.settings.settings import Settings

HEAD = """\
# Settings of the Gossamer node of this user. `gossamer config check` checks them, and
# `gossamer config show` says where each value comes from. docs/reference/settings.md explains each.
# A variable GOSSAMER_... is stronger than a line here, and a flag is stronger than that.
# The lines below are the defaults: take away the # of those that you change.
"""


def toml_value(value: SettingValue) -> str:
    """Returns a value as TOML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, int):
        return str(value)
    # TOML's basic strings have the escapes of JSON, and demand one for DEL besides.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def new_file_text() -> str:
    """Returns a file with all settings at their defaults, each behind a `#`."""
    lines = [HEAD]
    for field in msgspec.structs.fields(Settings):
        value = default_state_dir() if field.name == "state_dir" else field.default
        lines.append(f"# {field.name} = {toml_value(shown(field.name, value))}\n")
    return "".join(lines)


def shown(name: str, value: SettingValue) -> SettingValue:
    """Returns the value of a setting as people write it, and as it may be shown to others."""
    if name == "only_when_idle":
        return f"{value}s" if value else "off"
    if isinstance(value, Path):
        return str(value)
    if name == "notices" and isinstance(value, tuple):
        return tuple(map(_without_secret, value))
    return value


def _without_secret(notice: str) -> str:
    parts = urlsplit(notice)
    return f"{parts.scheme}://{parts.hostname}/..." if parts.hostname else notice
