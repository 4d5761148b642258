"""Where a state directory lies, and the size of what lies in it besides the blocks, which have
their own count."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def bytes_beside(root: Path, blocks: Path | None = None) -> int:
    """Returns the sum of the sizes of all files below `root` that are not below `blocks`.

    It blocks for as long as the disk needs. Files that go meanwhile are not counted.
    """
    total = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if Path(folder, name) != blocks]
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def existing_parent(path: Path) -> Path:
    """Returns the nearest folder above that exists, or the path itself."""
    while not path.exists():
        path = path.parent
    return path
