"""`gossamer service install | uninstall | status | logs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.settings.links import parse_links
from gossamer.node.base.settings.settings import (
    CONFIG_VARIABLE,
    ENVIRONMENT_PREFIX,
    ConfigError,
    Settings,
    Sourced,
    config_file_of,
)
from gossamer.node.base.terminal.printable import printable
from gossamer.node.commands.options import NO_OPTIONS, State, sourced_of
from gossamer.node.service.managers import (
    Launchd,
    ServiceError,
    Systemd,
    is_hidden,
    manager_here,
)
from gossamer.node.storage.state_dir import StateDir

SYSTEM_STATE_DIR = Path("/var/lib/gossamer")
"""State directory of the unit for all users (its StateDirectory)."""

LINES_MAX = 100_000
"""Lines of a log that are shown at once: more is for `journalctl`."""


def install(
    *links: str,
    system: bool = False,
    force: bool = False,
    no_start: Annotated[bool, Parameter(name="--no-start")] = False,
    print_only: Annotated[bool, Parameter(name="--print")] = False,
    options: State = NO_OPTIONS,
) -> int:
    """Make the node a service, which starts with the machine.

    It is systemd's for this user, or for root the machine's; on macOS it is launchd's. Settings
    come from the config file (`gossamer config edit`), for the machine's service from
    /etc/gossamer/gossamer.env; those of this shell do not hold there.

    Parameters
    ----------
    links
        Links as for gossamer join. A node with a run in its state directory needs none.
    system
        A service for all users, with a user of its own, a sandbox, and its state in
        /var/lib/gossamer. Only root may; without it root gets it, too.
    force
        Write over a file that this command did not write.
    no_start
        Only write the files.
    print_only
        Only print the file of the service.
    """
    parse_links(links)
    system = is_for_all_users(system)
    sourced = sourced_of(options)
    file, is_named = config_file_of(os.environ, options.config)
    environment = _environment_of(sourced, file if is_named else None, system=system)
    if print_only:
        shown = Launchd() if sys.platform == "darwin" else Systemd(system=system)
        print(shown.text(environment), end="")
        return 0
    manager = manager_here(system=system)
    _require_rights(system)
    root = SYSTEM_STATE_DIR if system else sourced.settings.state_dir
    _require_run(StateDir(root), manager, links)
    for line in manager.install(links, environment, force=force, starts=not no_start):
        print(printable(line))
    place = manager.environment_file if system and isinstance(manager, Systemd) else None
    _tell_of_variables(place)
    if place is not None and not is_named and file.exists():
        print(
            printable(
                f"{file} does not hold in the service, which sees no home folder: put its settings "
                f"as {ENVIRONMENT_PREFIX}... variables into {place}"
            )
        )
    return 0


def _require_run(state_dir: StateDir, manager: Systemd | Launchd, links: tuple[str, ...]) -> None:
    """Raises ConfigError or ServiceError where a service would find no run, or another node."""
    if not links and not state_dir.has_run() and not manager.knows_links():
        raise ConfigError(
            [f"there is no run in {state_dir.root}: name the link of one, or found one there first "
             "(`gossamer start`)"]
        )  # fmt: skip
    if not manager.file.exists() and state_dir.is_in_use():
        raise ServiceError(
            f"a node that is no service runs on {state_dir.root}: stop it first (`gossamer leave`)"
        )


def _environment_of(sourced: Sourced, file: Path | None, *, system: bool) -> dict[str, str]:
    """Returns the variables that the file of the service names.

    Args:
        file: of the settings; None: the usual one.

    Raises:
        ConfigError: a service for all users cannot use one of these places.
    """
    environment = {}
    place = sourced.places.get("state_dir", "/")
    if not place.startswith("/"):  # not from the file
        if system:
            raise ConfigError(
                [f"{place}: the service for all users has its state in {SYSTEM_STATE_DIR}; give "
                 "the command without it"]
            )  # fmt: skip
        environment["GOSSAMER_STATE_DIR"] = str(sourced.settings.state_dir)
    if file is not None:
        if system and is_hidden(str(file)):
            raise ConfigError(
                [f"{file} lies in a home folder, which a service for all users does not see: put "
                 "it where every user can read it, such as /etc/gossamer.toml"]
            )  # fmt: skip
        environment[CONFIG_VARIABLE] = str(file)
    return environment


def uninstall(*, system: bool = False) -> int:
    """Stop the service and remove it; state and settings stay.

    Parameters
    ----------
    system
        The service for all users; for root it is that one anyway.
    """
    system = is_for_all_users(system)
    manager = manager_here(system=system)
    _require_rights(system)
    if not manager.uninstall():
        raise ServiceError(f"there is no service: {manager.file} does not exist")
    print(f"removed: {printable(str(manager.file))}")
    return 0


def status(*, system: bool = False) -> int:
    """Show how the service is, as the service manager sees it.

    `gossamer status` shows what the node does.

    Parameters
    ----------
    system
        The service for all users; for root it is that one anyway.
    """
    return manager_here(system=is_for_all_users(system)).status()


def logs(*, follow: bool = False, lines: int = 50, system: bool = False) -> int:
    """Show the newest lines of the service's log.

    Parameters
    ----------
    follow
        Go on with each line that comes, until Ctrl-C.
    lines
        Number of lines to begin with.
    system
        The service for all users; for root it is that one anyway.
    """
    if not 0 <= lines <= LINES_MAX:
        raise ConfigError([f"--lines: {lines} is not allowed: 0 to {LINES_MAX:,}"])
    return manager_here(system=is_for_all_users(system)).logs(lines=lines, follow=follow)


def is_for_all_users(system: bool = False) -> bool:
    """Returns whether the service is the machine's: root has no other one."""
    return system or (os.geteuid() == 0 and sys.platform != "darwin")


def _require_rights(system: bool) -> None:
    if system and os.geteuid() != 0:
        raise ConfigError(["--system: only root may install or remove a service for all users"])


def _tell_of_variables(place: Path | None) -> None:
    """Says which settings of this shell the service does not get.

    Args:
        place: file of variables that the service reads; None: the config file is the place.
    """
    names = [ENVIRONMENT_PREFIX + field.upper() for field in Settings.__struct_fields__]
    left = [name for name in names if os.environ.get(name) and name != "GOSSAMER_STATE_DIR"]
    if left:
        where = "the config file (gossamer config edit)" if place is None else printable(str(place))
        print(
            f"these variables do not hold in the service: {', '.join(left)}; put them into {where}"
        )
