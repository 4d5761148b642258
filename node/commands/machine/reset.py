"""`gossamer reset` and `gossamer uninstall`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gossamer.node.base.default_places import NoHomeError, default_config_file
from gossamer.node.base.printable import printable
from gossamer.node.base.settings import ConfigError, config_file_of
from gossamer.node.base.units import format_bytes
from gossamer.node.commands.machine.service import SYSTEM_STATE_DIR, is_for_all_users
from gossamer.node.commands.options import State, StateOptions, settings_of
from gossamer.node.commands.questions import require_yes
from gossamer.node.service.managers import ServiceError, manager_here
from gossamer.node.storage.erasing import HELD_NAME, bytes_to_erase, erase
from gossamer.node.storage.state_dir import StateDir


def reset(*, yes: bool = False, options: State = None) -> int:
    """Remove the run from this machine, and keep the node's identity.

    The node must not run. It is then free for another run, or joins the same one anew. Work that no
    round has taken is lost.

    Parameters
    ----------
    yes
        Do not ask.
    """
    return _erase(settings_of(options).state_dir, yes=yes, keep_identity=True)


def uninstall(*, yes: bool = False, keep_identity: bool = False, options: State = None) -> int:
    """Remove everything that Gossamer has put on this machine.

    That is the service, the state with the node's identity, and the settings. It says at the end
    how to remove the program itself. The node must not run, unless its service does.

    Parameters
    ----------
    yes
        Do not ask.
    keep_identity
        Keep the identity; gossamer identity backup puts it elsewhere.
    """
    root = settings_of(options).state_dir
    _require_state_dir(StateDir(root.resolve()))
    size = format_bytes(bytes_to_erase(root, keep_identity=keep_identity))
    identity = "" if keep_identity else " and its identity, which nobody can give back"
    if not require_yes(
        f"Remove the service, the settings, and {printable(str(root))} ({size}){identity}?", yes=yes
    ):
        print("nothing is removed")
        return 1
    had_system_service = _remove_service()
    _erase(root, yes=True, keep_identity=keep_identity)
    if had_system_service and root != SYSTEM_STATE_DIR:
        _erase(SYSTEM_STATE_DIR, yes=True, keep_identity=keep_identity)
    _remove_settings(options)
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
    with state_dir.locked():
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
    signs = (state_dir.lock_path, state_dir.identity_path, state_dir.limits_path)
    if state_dir.root.exists() and not any(path.exists() for path in signs):
        root = printable(str(state_dir.root))
        raise ConfigError([f"{root} is no state directory of a node: nothing is removed"])


def _remove_service() -> bool:
    """Returns whether there was a service for all users."""
    is_system = is_for_all_users()
    try:
        manager = manager_here(system=is_system)
    except (ServiceError, NoHomeError):
        return False  # without a manager, or a folder for its file, there is no service
    was_there = manager.uninstall()
    if was_there:
        print(f"removed: {printable(str(manager.file))}")
    for line in manager.remove_rest():
        print(printable(line))
    return was_there and is_system


def _remove_settings(options: StateOptions | None) -> None:
    """Removes the platform's own files of settings; one that was named stays."""
    config = options.config if options is not None else None
    try:
        file, is_named = config_file_of(os.environ, config)
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
