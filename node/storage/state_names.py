"""The names of all that a node writes into its state directory: what each has to be, and the
removal of these and nothing else. A state directory may hold files of its owner.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

from gossamer.node.base.disk_health import TEMPORARY_SUFFIX
from gossamer.node.storage import manifest_files
from gossamer.node.storage.disk_use import bytes_beside
from gossamer.node.storage.state_dir import StateDir, StateDirError, unreadable

IDENTITY_NAMES = ("identity.key", "incarnation")
"""The key, and the number of its lives: other peers believe the highest number."""

OWNER_NAMES = ("limits",)
"""The owner's word on this machine, which holds for its next run too."""

KEPT_NAMES = (*IDENTITY_NAMES, *OWNER_NAMES)
"""What stays with the identity."""

HELD_NAME = "lock"
"""It stays while this process holds it: a file that a waiting process has open is the lock."""

_FOLDER_NAMES = (
    *("blocks", "chain", "cutting", "logs", "own", "revoked", "rollbacks", "trainer", "voted"),
    "work",
)

RUN_NAMES = (
    *_FOLDER_NAMES,
    *("api", "corpus_rest", "expulsions", "extension", "format", "head", "losses"),
    *manifest_files.NAMES,
    *("more_data", "names", "noticed", "paused", "peers.msgpack", "pinned_head"),
    *("port", "roll", "roll.copy", "samples", "seeds", "starting", "token"),
    "optimizer",
)
"""Everything else that a node writes into its state directory. Only release 0.2, whose runs have to
be reset, has put `optimizer` there."""

_INNER_FILE_NAMES = (*("chain/checkpoints", "chain/start"), *("work/journal", "work/pending"))

_INNER_FOLDER_NAMES = (
    *("work/offers", "blocks/tmp"),
    *(f"blocks/{first:02x}" for first in range(256)),
)
"""Blocks lie in folders by the first byte of their digest."""

_READ_AT_START = ("blocks", "chain", "work")
"""Folders without which no node starts. Others may be unreadable, as those of orders are that root
could not give away."""


def require_kinds(root: Path) -> None:
    """Refuses a directory where something else stands in the place of a file or a folder, also
    within its folders. Only what the trainer writes may be anything: it makes that anew.

    To read a FIFO waits for ever, and a folder cannot be replaced by a file. A link to a file or a
    folder is as good as that.

    Raises:
        StateDirError: it names the first one, or the first folder without which no node starts and
            that cannot be read. It says what to do.
    """
    folder_names = {*_FOLDER_NAMES, *_INNER_FOLDER_NAMES}
    names = (*RUN_NAMES, *KEPT_NAMES, HELD_NAME, *_INNER_FILE_NAMES, *_INNER_FOLDER_NAMES)
    for name in sorted(names):
        path = root / name
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # there is none; or the one that needs it says why it cannot be read
        wanted, is_wanted = "file", stat.S_ISREG(mode)
        if name in folder_names:
            wanted, is_wanted = "folder", stat.S_ISDIR(mode)
        if not is_wanted:
            raise StateDirError(
                f"{path} has to be a {wanted}, and is {_kind_of(mode)}: move it away, and start "
                "the node again"
            )
        if name in _READ_AT_START:
            try:
                os.scandir(path).close()
            except OSError as error:
                raise unreadable(path, error) from error


def _kind_of(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a FIFO" if stat.S_ISFIFO(mode) else "a device or a socket"


class Erased(NamedTuple):
    """The result of an erasure."""

    num_bytes: int
    left: tuple[str, ...]
    """Names in the directory that no node wrote, or that could not be removed; sorted."""


def bytes_to_erase(root: Path, *, keep_identity: bool) -> int:
    """Returns the bytes that `erase` would free."""
    return sum(_bytes_of(path) for path in _ours(root, keep_identity))


def erase(state_dir: StateDir, *, keep_identity: bool) -> Erased:
    """Removes the files of a node. The caller holds the lock of the directory.

    A link in the place of a folder, such as `blocks` on another disk, stays, and its folder is
    emptied.

    Raises:
        OSError: a file cannot be removed. Those before it are gone; another try goes on.
    """
    root = state_dir.root
    num_bytes = 0
    # The manifest first: what is left after a crash is then a directory without a run.
    for path in sorted(
        _ours(root, keep_identity), key=lambda path: path.name not in manifest_files.NAMES
    ):
        size = _bytes_of(path)
        if path.is_dir():
            for inner in list(path.iterdir()) if path.is_symlink() else ():
                _remove(inner)
            if not path.is_symlink():
                shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        num_bytes += size
    kept = {HELD_NAME, *(KEPT_NAMES if keep_identity else ())}
    return Erased(num_bytes, tuple(sorted(p.name for p in root.iterdir() if p.name not in kept)))


def _ours(root: Path, keep_identity: bool) -> list[Path]:
    names = {*RUN_NAMES, *(() if keep_identity else KEPT_NAMES)}
    if not root.is_dir():
        return []
    return [
        path
        for path in root.iterdir()
        if path.name in names
        or (path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX))
    ]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _bytes_of(path: Path) -> int:
    if path.is_dir():
        return bytes_beside(path.resolve())
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
