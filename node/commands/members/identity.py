"""`gossamer id`, and `gossamer identity backup | restore`."""

from __future__ import annotations

from pathlib import Path

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.base.terminal.printable import printable
from gossamer.node.commands.options import NO_OPTIONS, State, state_dir_of
from gossamer.node.network.identity import Identity, IdentityError, read_backup


def show_id(*, options: State = NO_OPTIONS) -> int:
    """Show the id of this node, which a founder needs to admit it.

    A node that never ran gets its identity now, and keeps it.
    """
    state_dir = state_dir_of(options)
    state_dir.create()
    print(Identity.load_or_create(state_dir.identity_path).peer_id)
    return 0


def backup(file: Path, *, force: bool = False, options: State = NO_OPTIONS) -> int:
    """Copy the node's identity to a file.

    The file is for its owner alone (mode 0600). A program that has it can be this node: keep it as
    you keep a password.

    Parameters
    ----------
    file
        File to write.
    force
        Write over a file that exists.
    """
    path = state_dir_of(options).identity_path
    try:
        identity = Identity.load(path)
    except FileNotFoundError:
        raise IdentityError(
            f"there is no identity in {path.parent}: a node gets one at its first start, or by "
            "`gossamer id`"
        ) from None
    if not force and (file.exists() or file.is_symlink()):
        raise IdentityError(f"{file} exists already: name another file, or give --force")
    folder = file.absolute().parent
    if not folder.is_dir():
        raise IdentityError(f"there is no folder {folder}: make it, or name another file")
    if file.is_dir():
        raise IdentityError(f"{file} is a folder: name a file in it")
    write_atomically(file.absolute(), identity.pem(), mode=0o600)
    print(f"{identity.peer_id} is copied to {printable(str(file))}: it is secret")
    return 0


def restore(file: Path, *, force: bool = False, options: State = NO_OPTIONS) -> int:
    """Give this node the identity of a back-up.

    The node must not run. Never let two nodes run with one identity.

    Parameters
    ----------
    file
        File from gossamer identity backup.
    force
        Replace another identity that is here; without a back-up that one is lost.
    """
    identity = read_backup(file)
    state_dir = state_dir_of(options)
    with state_dir.locked():
        path = state_dir.identity_path
        if path.exists():
            if not force and Identity.load(path).peer_id != identity.peer_id:
                raise IdentityError(
                    f"{path.parent} has another identity, {Identity.load(path).peer_id}: back it "
                    "up with `gossamer identity backup`, and give --force to replace it"
                )
            path.chmod(0o600)
        write_atomically(path, identity.pem(), mode=0o600)
    print(f"this node is {identity.peer_id} now")
    return 0
