"""`gossamer reset` and `gossamer uninstall`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gossamer.node.base.settings.default_places import NoHomeError, default_config_file, expanded
from gossamer.node.base.settings.settings import ConfigError, config_file_of
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.commands.machine.service import SYSTEM_STATE_DIR, is_for_all_users
from gossamer.node.commands.options import NO_OPTIONS, State, StateOptions, settings_of, sourced_of
from gossamer.node.commands.questions import require_yes
from gossamer.node.service.managers import Launchd, ServiceError, Systemd, manager_here
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.storage.state_names import HELD_NAME, bytes_to_erase, erase

COMPLETIONS = (
    ".local/share/bash-completion/completions/gossamer",
    ".zsh/completions/_cyclopts_gossamer",
    ".config/fish/completions/gossamer.fish",
)
"""Files that `gossamer --install-completion` writes, in the home folder: bash, zsh, fish."""


def reset(*, yes: bool = False, options: State = NO_OPTIONS) -> int:
    """Remove the run from this machine, and keep the node's identity.

    The node must not run. It is then free for another run, or joins the same one anew. Work that no
    round has taken is lost.

    Parameters
    ----------
    yes
        Do not ask.
    """
    return _erase(settings_of(options).state_dir, yes=yes, keep_identity=True)


def uninstall(
    *, yes: bool = False, keep_identity: bool = False, options: State = NO_OPTIONS
) -> int:
    """Remove everything that Gossamer has put on this machine.

    That is the service, the state with the node's identity, and the settings; for root also the
    state of the service for all users. It says at the end how to remove the program itself. The
    node must not run, unless its service does.

    Parameters
    ----------
    yes
        Do not ask.
    keep_identity
        Keep the identity; gossamer identity backup puts it elsewhere.
    """
    settings, places = sourced_of(options)
    root = settings.state_dir
    _require_state_dir(StateDir(root.resolve()))
    folders = [root, *_of_the_machine(root, is_named="state_dir" in places)]
    sizes = [
        f"{printable(str(folder))} "
        f"({format_bytes(bytes_to_erase(folder, keep_identity=keep_identity))})"
        for folder in folders
    ]
    identity = "" if keep_identity else " and its identity, which nobody can give back"
    if not require_yes(
        f"Remove the service, the settings, and {', '.join(sizes)}{identity}?", yes=yes
    ):
        print("nothing is removed")
        return 1
    _remove_service()
    for folder in folders:
        _erase(folder, yes=True, keep_identity=keep_identity)
    _remove_settings(options)
    _remove_completion()
    print(f"the program itself: {_how_to_remove()}")
    return 0


def _erase(folder: Path, *, yes: bool, keep_identity: bool) -> int:
    """Raises StateDirInUseError while a node runs."""
    # systemd makes a link for a user of its own (DynamicUser).
    state_dir = StateDir(folder.resolve())
    root = printable(str(state_dir.root))
    if not state_dir.root.exists():
        print(f"there is no {root}")
        return 0
    _require_state_dir(state_dir)
    size = format_bytes(bytes_to_erase(state_dir.root, keep_identity=keep_identity))
    with state_dir.locked(is_to_erase=True):
        question = f"Remove the run in {root} ({size})? The identity stays."
        if not require_yes(question, yes=yes):
            print("nothing is removed")
            return 1
        erased = erase(state_dir, keep_identity=keep_identity)
    print(f"{erased.num_bytes:,} bytes are freed in {root}")
    if erased.left:
        print(f"left there, because no node wrote it: {printable(', '.join(erased.left))}")
    elif not keep_identity:
        (state_dir.root / HELD_NAME).unlink(missing_ok=True)
        state_dir.root.rmdir()
        if folder.is_symlink():
            folder.unlink()
    return 0


def _require_state_dir(state_dir: StateDir) -> None:
    """Raises ConfigError for a folder that is there and holds nothing that a node or its owner's
    orders left."""
    if state_dir.root.exists() and not _is_state_dir(state_dir):
        root = printable(str(state_dir.root))
        raise ConfigError([f"{root} is no state directory of a node: nothing is removed"])


def _is_state_dir(state_dir: StateDir) -> bool:
    """Returns whether a folder is there and holds something that a node or its owner's orders
    left."""
    signs = (state_dir.lock_path, state_dir.identity_path, state_dir.limits_path)
    return any(path.exists() for path in signs)


def _of_the_machine(root: Path, *, is_named: bool) -> list[Path]:
    """Returns the state directory of the service for all users if it goes with `root`, else
    nothing.

    It goes where its service goes. It also goes where root names no other directory: `gossamer
    service uninstall` may have removed the service before.

    Args:
        is_named: whether a setting names `root`.
    """
    if root == SYSTEM_STATE_DIR or not _is_state_dir(StateDir(SYSTEM_STATE_DIR.resolve())):
        return []
    manager = _manager()
    is_there = manager is not None and manager.file.exists()
    return [SYSTEM_STATE_DIR] if is_for_all_users() and (is_there or not is_named) else []


def _manager() -> Systemd | Launchd | None:
    """Returns the service manager. Without one, or a folder for its file, there is no service."""
    try:
        return manager_here(system=is_for_all_users())
    except (ServiceError, NoHomeError):
        return None


def _remove_service() -> None:
    manager = _manager()
    if manager is None:
        return
    if manager.uninstall():
        print(f"removed: {printable(str(manager.file))}")
    for line in manager.remove_rest():
        print(printable(line))


def _remove_settings(options: StateOptions) -> None:
    """Removes the platform's own files of settings; one that was named stays."""
    try:
        file, is_named = config_file_of(os.environ, options.config)
        folder = default_config_file().parent
    except NoHomeError:
        return  # they would lie in the home folder
    for name in ("config.toml", "config.toml.draft", "gossamer.env"):
        path = folder / name
        if path.exists():
            path.unlink()
            print(f"removed: {printable(str(path))}")
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    if is_named and file.exists():
        print(f"left: {printable(str(file))}, which you named")


def _remove_completion() -> None:
    """Removes what `gossamer --install-completion` wrote. The line that loads it stays in a file of
    the owner's, and does nothing without it."""
    try:
        home = expanded("~")
    except NoHomeError:
        return
    for path in COMPLETIONS:
        if (home / path).is_file():
            (home / path).unlink()
            print(
                f"removed: {printable(str(home / path))}; the start-up file of your shell may have "
                "a line about it"
            )


def _how_to_remove() -> str:
    """Returns the command that removes the program, by the place where it lies."""
    prefix = Path(sys.prefix)
    if "pipx" in prefix.parts:
        return "pipx uninstall gossamer"
    if "uv" in prefix.parts and "tools" in prefix.parts:
        return "uv tool uninstall gossamer"
    if prefix != Path(sys.base_prefix):
        return f"remove {printable(str(prefix))}, or {sys.executable} -m pip uninstall gossamer"
    return f"{sys.executable} -m pip uninstall gossamer"
