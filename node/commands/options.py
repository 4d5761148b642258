"""Options that several commands share, and the settings that follow from them."""

# Without `from __future__ import annotations`: the annotations of `StateOptions` would be looked up
# by name, and in the modules of the classes that inherit from it.

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.settings.default_places import (
    NoHomeError,
    default_config_file,
    default_state_dir,
    without_home,
)
from gossamer.node.base.settings.setting_values import GivenValue
from gossamer.node.base.settings.settings import (
    CONFIG_VARIABLE,
    ConfigError,
    Settings,
    Sourced,
    load_settings,
    source_settings,
)
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.errors import RemoteProtocolError

DEFAULTS = Settings(state_dir=Path())
"""The other settings: `default_state_dir` needs a home folder, and a node that is told does not."""


def _for_help(place: Callable[[], Path]) -> str:
    """Returns the same text for every person, so that it can stand in the documentation."""
    try:
        return without_home(place())
    except NoHomeError:
        return "none, for want of a home folder"


_STATE_DIR = _for_help(default_state_dir)
_CONFIG = _for_help(default_config_file)


def shown_default(text: str) -> Parameter:
    """Shows what holds where the option is not given. The option itself is then None or empty."""
    return Parameter(show_default=text)


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """The place of the node's state. Each setting is also a GOSSAMER_... variable."""

    state_dir: Annotated[Path | None, shown_default(_STATE_DIR)] = None
    """Directory with identity, state and data of this node (GOSSAMER_STATE_DIR)."""
    config: Annotated[Path | None, shown_default(f"${CONFIG_VARIABLE}, or {_CONFIG}")] = None
    """TOML file with any of these settings."""


State = Annotated[StateOptions, Parameter(name="*")]

NO_OPTIONS = StateOptions()

RoundNumber = Annotated[
    int | None, Parameter(name="--round", show_default="the newest on this disk")
]


@contextlib.contextmanager
def value_of(option: str) -> Iterator[None]:
    """Makes a ValueError of a parser the ConfigError of an option."""
    try:
        yield
    except ValueError as error:
        raise ConfigError([f"{option}: {error}"]) from error


def settings_of(options: StateOptions) -> Settings:
    """Returns the settings from options, environment and file.

    Raises:
        ConfigError: some of them are not allowed; one sentence a mistake.
    """
    return load_settings(flags_of(options), os.environ, options.config)


def sourced_of(options: StateOptions) -> Sourced:
    """Returns the settings as `settings_of` does, and where each comes from."""
    return source_settings(flags_of(options), os.environ, options.config)


def state_dir_of(options: StateOptions) -> StateDir:
    """Returns the state directory that the settings name. ConfigError as `settings_of`."""
    return StateDir(settings_of(options).state_dir)


def trains_on_own_text(settings: Settings) -> bool:
    """Returns whether the run in the state directory has every peer train on its own text."""
    from gossamer.protocol.manifest import decode_manifest  # here: most commands read no manifest

    try:
        signed = StateDir(settings.state_dir).read_manifest()
        return signed is not None and bool(decode_manifest(signed.manifest).data.own)
    except (StateDirError, RemoteProtocolError):
        return False  # the daemon says what is wrong with it


def flags_of(options: StateOptions) -> dict[str, GivenValue]:
    """Returns the values of the options by the name of their setting."""
    names = [field.name for field in fields(options) if field.name != "config"]
    return {name: getattr(options, name) for name in names}


def reading_settings_of(options: StateOptions) -> Settings:
    """Returns the settings of a command that reads the state beside a running node.

    What the node's parts log goes to stderr, and only errors: that a round was committed meanwhile
    is none. ConfigError as `settings_of`.
    """
    settings = settings_of(options)
    # Here, because `gossamer status` and orders write no log, and loading it takes 50 ms.
    from gossamer.node.telemetry.logs import configure_logs

    configure_logs(settings.log_format, "error")
    return settings
