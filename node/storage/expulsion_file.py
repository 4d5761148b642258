"""The files of votes in an invite-only run: all that this node holds, and its operator's wishes.

expulsions   the votes that this node knows, and those that have put somebody out
voted/       one empty file for each target that the operator wants out, named by its key in
             hex. While it lies there, the node votes.
"""

from __future__ import annotations

from pathlib import Path

from gossamer.node.base.disk_health import (
    DiskError,
    DiskHealth,
    disk_error,
    make_folder_of_orders,
    sync_directory,
    write_atomically,
)
from gossamer.node.storage.bounded_file import open_file
from gossamer.node.storage.order_lock import alone_in
from gossamer.node.storage.roll_file import DamagedRollError
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PUBLIC_KEY_BYTES
from gossamer.protocol.wire.expulsion_messages import (
    EXPULSIONS_BYTES_MAX,
    VOTES_MAX,
    SavedExpulsions,
    decode_saved,
    encode_saved,
)


class TooManyWishesError(Exception):
    """The operator has as many votes as the others keep."""


class ExpulsionFile:
    """The files in one state directory."""

    def __init__(self, root: Path, health: DiskHealth | None = None) -> None:
        self.path = root / "expulsions"
        self.voted_path = root / "voted"
        self._health = health or DiskHealth()

    def read(self) -> SavedExpulsions | None:
        """Returns what was held, whose signatures are not checked; None without a file.

        Raises:
            DamagedRollError: the file cannot be read.
        """
        try:
            with open_file(self.path) as file:
                return decode_saved(file.read(EXPULSIONS_BYTES_MAX + 1))
        except FileNotFoundError:
            return None
        except (OSError, RemoteProtocolError) as error:
            raise DamagedRollError(f"{self.path} is damaged: {error}") from error

    def write(self, saved: SavedExpulsions) -> None:
        """Replaces the file. Raises DiskError."""
        write_atomically(self.path, encode_saved(saved))

    def save(self, saved: SavedExpulsions) -> bool:
        """Replaces the file, and returns whether the disk took it. A disk that does not take it
        does not end the node."""
        try:
            self.write(saved)
        except DiskError as error:
            self._health.failed("expulsions", error)
            return False
        self._health.wrote("expulsions")
        return True

    def wishes(self) -> list[bytes]:
        """Returns the keys that the operator wants out, at most `VOTES_MAX`."""
        try:
            names = sorted(path.name for path in self.voted_path.iterdir())
        except OSError:
            return []
        found = []
        for name in names:
            try:
                key = bytes.fromhex(name)
            except ValueError:
                continue  # `gossamer revoke` writes no such file
            if len(key) == PUBLIC_KEY_BYTES:
                found.append(key)
        return found[:VOTES_MAX]

    def wish(self, target: bytes) -> None:
        """Leaves a wish for the node.

        Raises:
            TooManyWishesError: there are as many already.
            DiskError, OSError: the disk does not take it.
        """
        make_folder_of_orders(self.voted_path)
        with alone_in(self.voted_path):
            wishes = self.wishes()
            if target not in wishes and len(wishes) >= VOTES_MAX:
                raise TooManyWishesError
            write_atomically(self.voted_path / target.hex(), b"", is_order=True)

    def withdraw(self, target: bytes) -> bool:
        """Takes a wish back. Returns whether there was one.

        Raises:
            DiskError: the disk does not let it go; the node goes on to vote.
        """
        is_there = target in self.wishes()
        path = self.voted_path / target.hex()
        if is_there:
            try:
                path.unlink(missing_ok=True)
                sync_directory(self.voted_path)
            except OSError as error:
                raise disk_error(path, 0, error) from error
        return is_there
