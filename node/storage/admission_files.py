"""The files of an invite-only run: the roll, votes, the operator's orders, and the pinned head.

    roll           all entries and revocations that this node knows
    roll.copy      the same behind its digest: a founder that is alone has it from nobody else
    revoked/       revocations that `gossamer revoke` has signed, one a file, for the node to take
    expulsions     the votes that this node knows, and those that have put somebody out
    voted/         one empty file for each target that the operator wants out, named by its key in
                   hex. While it lies there, the node votes.
    pinned_head    the head that the invitation or link named, in hex

Writing in the state directory needs the rights of its owner, so a revocation there is the owner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from gossamer.node.base.disk_health import (
    DiskHealth,
    disk_error,
    make_folder_of_orders,
    remove_quietly,
    sync_directory,
    write_atomically,
)
from gossamer.node.storage.bounded_file import (
    open_file,
    read_digested,
    read_hex_digest,
    write_digested,
)
from gossamer.node.storage.order_lock import alone_in
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import PUBLIC_KEY_BYTES, Digest
from gossamer.protocol.policy.members.roll import NO_PAGE, Roll
from gossamer.protocol.wire.expulsion_messages import (
    EXPULSIONS_BYTES_MAX,
    VOTES_MAX,
    SavedExpulsions,
    decode_saved,
)
from gossamer.protocol.wire.invitation_messages import (
    ROLL_BYTES_MAX,
    Revocation,
    RollPage,
    decode_page,
    decode_revocation,
)

_REVOCATION_BYTES_MAX = 1024
REVOCATIONS_AT_ONCE_MAX = 64
"""Files that one look takes; the next look takes the rest."""

_Content = TypeVar("_Content")


def _read(path: Path, bytes_max: int, decode: Callable[[bytes], _Content]) -> _Content | None:
    """Returns the content of a file; None without it. MalformedError: it cannot be used."""
    try:
        with open_file(path) as file:
            return decode(file.read(bytes_max + 1))
    except FileNotFoundError:
        return None
    except (OSError, RemoteProtocolError) as error:
        raise MalformedError(f"{path} is damaged: {error}") from error


def _is_taken(health: DiskHealth, what: str, write: Callable[[], None]) -> bool:
    """Writes files of a kind, and returns whether the disk took them. A disk that does not take
    them does not end the node."""
    with health.writing(what):
        write()
        return True
    return False


class RollFile:
    """The roll and the revocations in one state directory."""

    def __init__(self, root: Path, health: DiskHealth | None = None) -> None:
        self.path = root / "roll"
        self.copy_path = root / "roll.copy"
        self.revoked_path = root / "revoked"
        self._health = health or DiskHealth()
        self.needs_writing = False
        """Whether `read_into` found one of the two files damaged, or missing beside the other."""

    def read(self) -> RollPage | None:
        """Returns the pieces of the roll, whose signatures are not checked; None without a file.

        Raises:
            MalformedError: the file cannot be read, or is no roll.
        """
        return _read(self.path, ROLL_BYTES_MAX, lambda data: decode_page(data, ROLL_BYTES_MAX))

    def _read_copy(self) -> RollPage | None:
        """Returns what the copy has; None without a whole one."""
        with suppress(OSError, RemoteProtocolError):
            return decode_page(read_digested(self.copy_path), ROLL_BYTES_MAX)
        return None

    def read_into(self, roll: Roll) -> tuple[RollPage, str]:
        """Adds what is on the disk to a roll, from the copy if the file is damaged or was lost.

        Returns:
            What is on the disk, and for people why the file was not used; empty if it was.

        Raises:
            RemoteProtocolError: the file is damaged, and the copy is of no use.
        """
        copy = self._read_copy()
        try:
            page = self.read()
            if page is not None:
                roll.add(page)
                self.needs_writing = copy is None
                return page, ""
            if copy is None:
                return NO_PAGE, ""
            problem = f"{self.path} is missing"
        except RemoteProtocolError as error:
            if copy is None:
                raise
            problem = str(error)
        roll.add(copy)
        self.needs_writing = True
        return copy, problem

    def write(self, page: RollPage) -> None:
        """Replaces the roll. Raises DiskError."""
        data = to_msgpack(page)
        write_digested(self.copy_path, data)
        write_atomically(self.path, data)

    def save(self, page: RollPage) -> bool:
        """Replaces the roll. Returns as `_is_taken` does."""
        return _is_taken(self._health, "roll", lambda: self.write(page))

    @contextmanager
    def ordering(self) -> Iterator[None]:
        """Keeps other commands from leaving revocations. Raises DiskError, OSError."""
        make_folder_of_orders(self.revoked_path)
        with alone_in(self.revoked_path):
            yield

    def order(self, revocation: Revocation) -> Path:
        """Leaves a revocation for the node, and returns its file. Raises DiskError, OSError."""
        make_folder_of_orders(self.revoked_path)
        path = self.revoked_path / revocation.digest.hex()
        write_atomically(path, to_msgpack(revocation), is_order=True)
        return path

    def orders(self) -> dict[Path, Revocation]:
        """Returns the revocations that were left, by their files. The files stay until the roll
        with them is on the disk (`remove_orders`)."""
        orders: dict[Path, Revocation] = {}
        try:
            paths = sorted(self.revoked_path.iterdir())
        except OSError:
            return {}
        for path in paths:
            if path.name.startswith("."):
                continue  # it is being written
            if len(orders) == REVOCATIONS_AT_ONCE_MAX:
                break
            try:
                with open_file(path) as file:
                    orders[path] = decode_revocation(file.read(_REVOCATION_BYTES_MAX))
            except OSError:
                continue  # a later look may be able to read it
            except RemoteProtocolError:
                remove_quietly(path)  # `gossamer revoke` writes no such file
        return orders

    def remove_orders(self, paths: Iterable[Path]) -> None:
        """Removes the files of revocations that the roll on the disk has."""
        for path in paths:
            remove_quietly(path)


class TooManyWishesError(Exception):
    """The operator has as many votes as the others keep."""


class ExpulsionFile:
    """The votes and the operator's wishes in one state directory."""

    def __init__(self, root: Path, health: DiskHealth | None = None) -> None:
        self.path = root / "expulsions"
        self.voted_path = root / "voted"
        self._health = health or DiskHealth()

    def read(self) -> SavedExpulsions | None:
        """Returns what was held, whose signatures are not checked; None without a file.

        Raises:
            MalformedError: the file cannot be read, or has no votes.
        """
        return _read(self.path, EXPULSIONS_BYTES_MAX, decode_saved)

    def write(self, saved: SavedExpulsions) -> None:
        """Replaces the file. Raises DiskError."""
        write_atomically(self.path, to_msgpack(saved))

    def save(self, saved: SavedExpulsions) -> bool:
        """Replaces the file. Returns as `_is_taken` does."""
        return _is_taken(self._health, "expulsions", lambda: self.write(saved))

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


def write_pinned_head(root: Path, head: Digest) -> None:
    """Keeps the head that a link named. Raises DiskError."""
    write_atomically(root / "pinned_head", f"{head.hex()}\n".encode())


def read_pinned_head(root: Path) -> Digest | None:
    """Returns the head that the link named by which this node joined; None if it named none, or
    the file is damaged."""
    with suppress(OSError, ValueError):
        return read_hex_digest(root / "pinned_head")
    return None
