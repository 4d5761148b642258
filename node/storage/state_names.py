"""The names of all that a node writes into its state directory, and what each of them has to be."""

from __future__ import annotations

import stat
from pathlib import Path

from gossamer.node.storage import manifest_files
from gossamer.node.storage.state_dir import StateDirError

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
    *("more_data", "names", "noticed", "optimizer", "paused", "peers.msgpack", "pinned_head"),
    *("port", "roll", "roll.copy", "samples", "seeds", "starting", "token"),
)
"""Everything else that a node writes into its state directory."""


def require_kinds(root: Path) -> None:
    """Refuses a directory where something else stands in the place of a file or a folder.

    To read a FIFO waits for ever, and a folder cannot be replaced by a file. A link to a file or a
    folder is as good as that.

    Raises:
        StateDirError: it names the first one, and says what to do.
    """
    for name in sorted((*RUN_NAMES, *KEPT_NAMES, HELD_NAME)):
        path = root / name
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # there is none; or the one that needs it says why it cannot be read
        wanted, is_wanted = "file", stat.S_ISREG(mode)
        if name in _FOLDER_NAMES:
            wanted, is_wanted = "folder", stat.S_ISDIR(mode)
        if not is_wanted:
            raise StateDirError(
                f"{path} has to be a {wanted}, and is {_kind_of(mode)}: move it away, and start "
                "the node again"
            )


def _kind_of(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a FIFO" if stat.S_ISFIFO(mode) else "a device or a socket"
