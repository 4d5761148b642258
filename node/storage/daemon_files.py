"""The files by which commands reach the daemon of a state directory.

They tell where it answers, the secret that orders need, and what it does before it can answer. The
daemon removes them when it ends, and those of a crash when it starts (`StateDir.locked`).
"""

from __future__ import annotations

import contextlib
import os

from gossamer.node.base.disk_health import TEMPORARY_SUFFIX, remove_quietly, write_atomically
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.node.storage.state_dir import StateDir, StateDirError, unreadable

TOKEN_BYTES = 32
"""Random bytes of the secret for orders: nobody guesses it."""

_FILE_BYTES_MAX = 256


class DaemonFiles:
    """Reads and writes them."""

    def __init__(self, state_dir: StateDir) -> None:
        self._of = state_dir

    def write_api(self, address: str) -> None:
        """Leaves the HTTP endpoint's HOST:PORT for `gossamer status` and its like. DiskError."""
        write_atomically(self._of.api_path, f"{address}\n".encode())
        remove_quietly(self._of.starting_path)

    def read_api(self) -> str | None:
        """HOST:PORT of the daemon that runs here, or of one that was killed; None if none is."""
        try:
            data = read_bounded(self._of.api_path, _FILE_BYTES_MAX)
        except OSError as error:
            raise unreadable(self._of.api_path, error) from error
        return None if data is None else data.decode("utf-8", errors="replace").strip()

    def write_starting(self, text: str) -> None:
        """Leaves a word for `gossamer status` on what the daemon does before it can answer. Nothing
        depends on it: it is not synced, and a disk that takes nothing is not reported."""
        with contextlib.suppress(OSError):
            temporary = self._of.root / f".{self._of.starting_path.name}{TEMPORARY_SUFFIX}"
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, self._of.starting_path)

    def read_starting(self) -> str | None:
        """Returns the word of a daemon that is starting here, or None if none is."""
        with contextlib.suppress(OSError):
            pid = (read_bounded(self._of.lock_path, _FILE_BYTES_MAX) or b"").strip()
            data = read_bounded(self._of.starting_path, _FILE_BYTES_MAX)
            if data is not None and pid.isdigit() and int(pid) > 0:
                os.kill(int(pid), 0)  # asks only whether it lives
                return data.decode("utf-8", errors="replace")
        return None

    def new_token(self) -> str:
        """Makes the secret that orders to this daemon need, and leaves it for the commands of the
        same user (0600). Each start has another one. DiskError."""
        import secrets  # here: commands only read the token, and `secrets` loads OpenSSL

        token = secrets.token_hex(TOKEN_BYTES)
        write_atomically(self._of.token_path, f"{token}\n".encode(), mode=0o600)
        return token

    def read_token(self) -> str:
        """The secret of the daemon that runs here.

        Raises:
            StateDirError: this user may not read it, or there is none.
        """
        try:
            data = read_bounded(self._of.token_path, _FILE_BYTES_MAX)
        except OSError as error:
            raise unreadable(self._of.token_path, error) from error
        if data is None:
            raise StateDirError(
                f"{self._of.token_path} is missing, and orders need it: the node is just starting, "
                "or an older version of Gossamer runs. Try again, or end the node with a signal"
            )
        return data.decode("ascii", errors="replace").strip()
