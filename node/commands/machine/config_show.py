"""`gossamer config show` and `gossamer config check`."""

from __future__ import annotations

import json as json_text
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.settings.config_text import shown, toml_value
from gossamer.node.base.settings.default_places import NoHomeError
from gossamer.node.base.settings.owner_limits import overridden, with_limits
from gossamer.node.base.settings.settings import (
    ConfigError,
    Settings,
    config_file_of,
    read_config_file,
    unknown_variables,
)
from gossamer.node.base.terminal.printable import printable
from gossamer.node.commands.options import NO_OPTIONS, State, sourced_of
from gossamer.node.storage.owner_orders import read_limits
from gossamer.node.storage.state_dir import StateDir

_DEFAULT = "default"


def show(*, changed: bool = False, json: bool = False, options: State = NO_OPTIONS) -> int:
    """Show each setting, its value and its source.

    The lines are those of a config file, with the source as a comment; those with the default stand
    behind a #. What `gossamer limits set` and `gossamer schedule set` have set goes before the
    other sources, and is shown in their place. Of the address of a webhook only the host is shown:
    the rest is often a secret.

    Parameters
    ----------
    changed
        Leave out the settings that have their default.
    json
        Print JSON: a list of objects with setting, value and source.
    """
    given, given_places = sourced_of(options)
    kept = read_limits(StateDir(given.state_dir).limits_path)
    settings, places = with_limits(given, kept), dict(given_places)
    for name, command in overridden(kept).items():
        instead = f", instead of {places[name]}" if name in places else ""
        places[name] = f"{command}{instead}"
    rows = [
        (name, shown(name, getattr(settings, name)), places.get(name, _DEFAULT))
        for name in Settings.__struct_fields__
        if not changed or name in places
    ]
    if json:
        objects = [
            {"setting": name, "value": value, "source": place} for name, value, place in rows
        ]
        print(json_text.dumps(objects, indent=2, default=str))
        return 0
    try:
        file, _ = config_file_of(os.environ, options.config)
        print(f"# {printable(str(file))}: {'read' if file.exists() else 'there is no such file'}")
    except NoHomeError as error:
        print(f"# no file is read: {error}")
    lines = [
        (f"{'' if name in places else '# '}{name} = {toml_value(value)}", place)
        for name, value, place in rows
    ]
    width = max((len(line) for line, _ in lines if len(line) <= _COLUMN_MAX), default=0)
    for line, place in lines:
        print(f"{line:<{width}}  # {printable(place)}")
    return 0


_COLUMN_MAX = 48
"""A longer line does not push the places of all others to the right."""


def check(
    file: Annotated[Path | None, Parameter(show_default="the file that a node would read")] = None,
    *,
    options: State = NO_OPTIONS,
) -> int:
    """Check a config file, and the variables of this shell.

    The exit status is 2 if there is a mistake. Each mistake is told with its place.

    Parameters
    ----------
    file
        TOML file to check instead of the one that a node would read.
    """
    if file is not None:
        problems = [*read_config_file(file), *unknown_variables(os.environ)]
        if problems:
            raise ConfigError(problems)
        print(f"{printable(str(file))}: no mistakes")
        return 0
    found, _ = config_file_of(os.environ, options.config)
    # A node that is started elsewhere, as a service is, lacks the variables of this shell.
    problems = read_config_file(found) if found.exists() else []
    try:
        _, places = sourced_of(options)
    except ConfigError as error:
        problems = list(dict.fromkeys([*error.problems, *problems]))
    if problems:
        raise ConfigError(problems)
    from_file = sum(place.startswith(str(found)) for place in places.values())
    where = f"{from_file} set in {found}" if found.exists() else f"there is no {found}"
    print(f"no mistakes; {printable(where)}; {len(places) - from_file} set elsewhere")
    return 0
