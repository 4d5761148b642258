"""Removes what a node has written, and only that: a state directory may hold files of its owner."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from gossamer.node.base.disk_health import TEMPORARY_SUFFIX
from gossamer.node.storage import manifest_files
from gossamer.node.storage.disk_use import bytes_beside
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.storage.state_names import HELD_NAME, KEPT_NAMES, RUN_NAMES


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
