"""The files of an invite-only run: the roll, the operator's revocations, and the pinned head.

    roll           all entries and revocations that this node knows
    roll.copy      the same behind its digest: a founder that is alone has it from nobody else
    revoked/       revocations that `gossamer revoke` has signed, one a file, for the node to take
    pinned_head    the head that the invitation or link named, in hex

Writing in the state directory needs the rights of its owner, so a revocation there is the owner's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gossamer.node.base.disk_health import (
    DiskError,
    DiskHealth,
    make_folder_of_orders,
    remove_quietly,
    write_atomically,
)
from gossamer.node.storage.bounded_file import open_file, read_digested, write_digested
from gossamer.node.storage.order_lock import alone_in
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import DIGEST_BYTES, Digest
from gossamer.protocol.policy.roll import NO_PAGE, Roll
from gossamer.protocol.wire.invitation_messages import (
    ROLL_BYTES_MAX,
    Revocation,
    RollPage,
    decode_page,
    decode_revocation,
    encode,
)

_REVOCATION_BYTES_MAX = 1024
REVOCATIONS_AT_ONCE_MAX = 64
"""Files that one look takes; the next look takes the rest."""


class DamagedRollError(Exception):
    """The file of the roll cannot be used; the text says why."""


class RollFile:
    """The files in one state directory."""

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
            DamagedRollError: the file cannot be read or is no roll.
        """
        try:
            with open_file(self.path) as file:
                return decode_page(file.read(ROLL_BYTES_MAX + 1), ROLL_BYTES_MAX)
        except FileNotFoundError:
            return None
        except (OSError, RemoteProtocolError) as error:
            raise DamagedRollError(f"{self.path} is damaged: {error}") from error

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
            DamagedRollError, RemoteProtocolError: the file is damaged, and the copy is of no use.
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
        except (DamagedRollError, RemoteProtocolError) as error:
            if copy is None:
                raise
            problem = str(error)
        roll.add(copy)
        self.needs_writing = True
        return copy, problem

    def write(self, page: RollPage) -> None:
        """Replaces the roll. Raises DiskError."""
        data = encode(page)
        write_digested(self.copy_path, data)
        write_atomically(self.path, data)

    def save(self, page: RollPage) -> bool:
        """Replaces the roll, and returns whether the disk took it. A disk that does not take it
        does not end the node."""
        try:
            self.write(page)
        except DiskError as error:
            self._health.failed("roll", error)
            return False
        self._health.wrote("roll")
        return True

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
        write_atomically(path, encode(revocation), is_order=True)
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


def write_pinned_head(root: Path, head: Digest) -> None:
    """Keeps the head that a link named. Raises DiskError."""
    write_atomically(root / "pinned_head", f"{head.hex()}\n".encode())


def read_pinned_head(root: Path) -> Digest | None:
    """Returns the head that the link named by which this node joined; None if it named none, or
    the file is damaged."""
    try:
        with open_file(root / "pinned_head") as file:
            head = bytes.fromhex(file.read(4 * DIGEST_BYTES).decode("ascii").strip())
    except (OSError, ValueError):
        return None
    return Digest(head) if len(head) == DIGEST_BYTES else None
