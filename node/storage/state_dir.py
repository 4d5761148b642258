"""The state directory: one per run and identity, and everything that must outlive the process.

    identity.key       Ed25519 key, 0600                     (`identity`)
    format             number of the format of this directory (`FORMAT`)
    lock               flock while a daemon runs; its pid is inside
    api                HOST:PORT of the running daemon's HTTP endpoint (`daemon_files`)
    token              secret that orders to the running daemon need, 0600
    port, seeds        addresses of this node and of peers   (`address_files`)
    starting           what the daemon does that has no endpoint yet, for people
    paused             the owner's order to pause            (`owner_orders`)
    noticed            the run of which the owner was told that it is finished (`notices`)
    limits             the limits that the owner set on the running node (`owner_orders`)
    losses             the curve of losses that the owner sees (`owner_files`)
    logs/              curves for TensorBoard and wandb       (`log_places`)
    samples            texts of the model that the owner sees (`owner_files`)
    names              the names of members that were seen    (`owner_files`)
    manifest.msgpack   the `SignedManifest` of the run        (`manifest_files`)
    manifest.copy      the same once more
    peers.msgpack      addresses of peers seen, newest first
    head               the newest committed header
    chain/             committed headers
    blocks/            what is addressed by its digest        (`blocks`)
    own/               this node's own text, where all train on theirs (`own_data`)
    work/              work that no round has taken          (`work_files`)
    incarnation        the number of this node's life        (`incarnation`)
    roll, expulsions   members of an invite-only run, and votes (`admission_files`)
    rollbacks/, revoked/, voted/    orders of the owner      (`heads.rollbacks`, `admission_files`)
    extension, more_data    the founder's newest words       (`heads.extensions`, `more_data`)
    trainer/           the only folder that the trainer writes to: temporary files, caches, and
        optimizer      the moments of AdamW or Muon, or with shared steps the momentum

Files are replaced as a whole and reach the disk before the old ones go (`write_atomically`),
so that a process killed at any instant leaves either the old content or the new.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.node.base.disk_health import (
    TEMPORARY_SUFFIX,
    DiskError,
    DiskHealth,
    disk_error,
    remove_quietly,
    write_atomically,
)
from gossamer.node.storage.address_files import AddressFiles
from gossamer.node.storage.bounded_file import read_bounded, read_hex_digest
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.storage.manifest_files import ManifestFiles
from gossamer.protocol.errors import RemoteProtocolError, VersionError
from gossamer.protocol.ids import Digest

if TYPE_CHECKING:
    from gossamer.protocol.manifest import Manifest, SignedManifest

_SMALL_FILE_BYTES_MAX = 256

ASKED_SECONDS = 0.25
"""Wait for the lock: a command that asks whether a node runs here has it for a moment
(`StateDir.is_in_use`), longer on a busy machine."""

FORMAT = 1
"""The format that this version writes, and the only one that it reads. A directory of release 0.2
has no such file, and its run is refused by the version in the manifest."""

_FOLDERS = ("work", "own", "rollbacks", "revoked", "voted")
"""Folders in which files are replaced atomically. The chain clears its own; other folders may be
the owner's."""


class StateDirError(Exception):
    """The state directory cannot be used; the message says why and what to do."""


def unreadable(path: Path, error: OSError) -> StateDirError:
    """Returns the error of a file that this user may not read, that is none or too large, or that
    the disk does not give."""
    advice = f"Move {path.name} away, and try again"
    if error.errno not in (errno.EINVAL, errno.EISDIR, errno.EFBIG):
        advice = _advice(error, "Give --state-dir the directory of a node that is yours")
    return StateDirError(f"{path} cannot be read: {error.strerror or error}. {advice}")


def _advice(error: OSError, otherwise: str) -> str:
    """Returns what to do about an error that may be the disk's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space on the disk"
    return "Check the disk: the system's log says more" if error.errno == errno.EIO else otherwise


class StateDirInUseError(StateDirError):
    """Another daemon holds the directory. `pid` is its process, or None where it is unknown."""

    def __init__(self, root: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"{root} is in use by {holder}: a state directory belongs to one daemon. "
            "Stop that one (`gossamer leave`), or give this one its own --state-dir"
        )
        self.pid = pid


class StateDir:
    """Names and opens what lies in a state directory. Creating one touches nothing.

    `health` says how writing to it goes.

    It has more than 12 attributes: nearly each is the path of a file.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.health = DiskHealth()
        self._lock_descriptor: int | None = None
        self.identity_path = root / "identity.key"
        self.format_path = root / "format"
        self.lock_path = root / "lock"
        self.api_path = root / "api"
        self.token_path = root / "token"
        self.addresses = AddressFiles(root)
        self.starting_path = root / "starting"
        self.paused_path = root / "paused"
        self.losses_path = root / "losses"
        self.samples_path = root / "samples"
        self.names_path = root / "names"
        self.noticed_path = root / "noticed"
        self.limits_path = root / "limits"
        self.manifest_files = ManifestFiles(root)
        self.manifest_path = self.manifest_files.path
        self.known_peers_path = root / "peers.msgpack"
        self.head_path = root / "head"
        self.chain_path = root / "chain"
        self.blocks_path = root / "blocks"
        self.own_path = root / "own"
        self.trainer_path = root / "trainer"
        self.optimizer_path = self.trainer_path / "optimizer"

    def create(self) -> None:
        """Creates the directory where needed. StateDirError."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StateDirError:
        advice = _advice(error, "Give --state-dir a directory that you may write to")
        return StateDirError(
            f"{self.root} cannot be used as state directory: {error.strerror}. {advice}"
        )

    @contextlib.contextmanager
    def locked(self, *, is_to_erase: bool = False) -> Iterator[None]:
        """Creates the directory where needed and holds it for this process.

        The lock is the kernel's: it ends with the process, however that ends. Leftovers of a
        crash (half-written temporary files, the address of the dead daemon) are removed.

        Args:
            is_to_erase: nothing is written. So what is here can be removed from a full disk.

        Raises:
            StateDirInUseError: another process holds it.
            StateDirError, DiskError: it cannot be created, written or locked, or a later version
                wrote it.
        """
        from gossamer.node.storage.order_lock import lock_within  # not for `gossamer status`

        self.create()
        try:
            descriptor = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            try:
                lock_within(descriptor, ASKED_SECONDS)
            except BlockingIOError:
                raise StateDirInUseError(self.root, _read_pid(descriptor)) from None
            except OSError as error:
                raise StateDirError(
                    f"{self.root} cannot be locked: {error.strerror}. "
                    "Give --state-dir a directory on a local disk"
                ) from error
            has_format = self._has_format()
            if not is_to_erase:
                self._prepare(descriptor, has_format)
            self._lock_descriptor = descriptor
            try:
                yield
            finally:
                self._lock_descriptor = None
                remove_quietly(self.api_path)
                remove_quietly(self.token_path)
                remove_quietly(self.starting_path)
                # Emptied, not removed: a file that a waiting process has open must stay the lock.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def _prepare(self, descriptor: int, has_format: bool) -> None:
        """Writes this process's pid, and brings the directory into order. Raises DiskError."""
        pid = f"{os.getpid()}\n".encode()
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, pid, 0)
            self._remove_leftovers()
            self.trainer_path.mkdir(mode=0o700, exist_ok=True)
            if not has_format:
                write_atomically(self.format_path, f"{FORMAT}\n".encode())
        except OSError as error:
            path = Path(error.filename or self.lock_path)
            raise disk_error(path, len(pid), error) from error

    def is_in_use(self) -> bool:
        """Returns whether a daemon holds the directory now, as far as this user can tell."""
        try:
            descriptor = os.open(self.lock_path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def is_read_only(self) -> bool:
        """Returns whether the file system of the directory is mounted for reading only."""
        try:
            return bool(os.statvfs(self.root).f_flag & os.ST_RDONLY)
        except OSError:
            return False

    def require_ours(self) -> None:
        """Raises DiskError where a directory that we locked was deleted, moved away or replaced.

        Another daemon may have it by now, whose files must not be touched.
        """
        if self._lock_descriptor is None:
            return
        try:
            is_ours = os.path.samestat(os.fstat(self._lock_descriptor), self.lock_path.stat())
        except OSError as error:
            raise disk_error(self.lock_path, 0, error) from error
        if not is_ours:
            raise DiskError(
                f"{self.root} was deleted and made anew, and is not this node's any more: stop "
                "this node and start it again"
            )

    def _remove_leftovers(self) -> None:
        self.api_path.unlink(missing_ok=True)
        self.token_path.unlink(missing_ok=True)
        self.starting_path.unlink(missing_ok=True)
        for folder in (self.root, *(self.root / name for name in _FOLDERS)):
            for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
                leftover.unlink(missing_ok=True)

    def _has_format(self) -> bool:
        """Returns whether the directory says that it has this format.

        Raises:
            StateDirError: it is of a later version, or the file cannot be read.
        """
        try:
            text = (read_bounded(self.format_path, _SMALL_FILE_BYTES_MAX) or b"").strip()
        except OSError as error:
            raise unreadable(self.format_path, error) from error
        number = int(text) if text.isdigit() else 0
        if number > FORMAT:
            raise StateDirError(
                f"{self.root} was written by a newer version of Gossamer (format {number}; this "
                f"version knows up to {FORMAT}): install that version, or give this one its own "
                "--state-dir"
            )
        return number == FORMAT

    def has_run(self) -> bool:
        """Returns whether a run was founded or joined here."""
        return self.manifest_files.exist()

    def read_manifest(self) -> SignedManifest | None:
        """The run's signed manifest, or None in a new directory. Where both files are damaged, its
        signature may be wrong.

        Raises:
            StateDirError: both files are damaged or cannot be read, or of a later version.
        """
        self._has_format()
        try:
            return self.manifest_files.read()
        except VersionError as error:
            raise StateDirError(f"{self.root} holds {error}") from error
        except RemoteProtocolError as error:
            raise self.damaged_manifest(error) from error
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self.damaged_manifest(error) from error
            raise unreadable(self.manifest_path, error) from error

    def damaged_manifest(self, error: Exception) -> StateDirError:
        """Returns the error that says what to do without a manifest."""
        return StateDirError(
            f"{self.manifest_path} is damaged ({error}) and has no whole copy beside it. If other "
            f"members run, move {self.root} away and join the run again; identity.key may be "
            "copied into the new directory. Otherwise bring manifest.msgpack back from a backup: "
            "any earlier copy of it will do"
        )

    def require_manifest(self) -> SignedManifest:
        """Returns the manifest of the run here. Raises StateDirError if there is no run, or as
        `read_manifest` does."""
        signed = self.read_manifest()
        if signed is None:
            raise StateDirError(
                f"there is no run in {self.root}; name another directory with --state-dir"
            )
        return signed

    def read_head(self) -> Digest | None:
        """Returns the committed head that was written last; None without one.

        Raises:
            OSError, ValueError: the file cannot be read, or is damaged.
        """
        try:
            return read_hex_digest(self.head_path)
        except FileNotFoundError:
            return None

    def newest_head(self) -> Digest | None:
        """Returns the committed head that was written last; None if none can be read.

        A reader beside a running node asks for it before it opens the chain: the node writes a
        round's record before the head.
        """
        try:
            return self.read_head()
        except (OSError, ValueError):
            return None  # the chain tells it too

    def write_manifest(self, signed: SignedManifest) -> None:
        """Binds the directory to a run, for good.

        Raises:
            StateDirError: it is already bound to another run.
            DiskError: it was not written.
        """
        self.require_run(_manifest_of(signed).run_id)
        self.manifest_files.write(signed)

    def run_id(self) -> Digest | None:
        """Returns the id of the run that lies here, if any. Raises StateDirError as `read_manifest`
        does."""
        signed = self.read_manifest()
        return None if signed is None else _manifest_of(signed).run_id

    def require_run(self, run_id: bytes) -> None:
        """Refuses a directory that belongs to another run (StateDirError). A new one is fine."""
        here = self.run_id()
        if here is not None and here != run_id:
            raise StateDirError(
                f"{self.root} holds run {here.hex()[:10]}..., not {run_id.hex()[:10]}...: a state "
                "directory belongs to one run. Give this run its own --state-dir"
            )

    def known_peers(self) -> KnownPeers:
        return KnownPeers(self.known_peers_path)


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, _SMALL_FILE_BYTES_MAX, 0).strip()
    return int(text) if text.isdigit() else None


def _manifest_of(signed: SignedManifest) -> Manifest:
    # Here: the commands that ask a running node know where it answers, and read no manifest.
    from gossamer.protocol.manifest import decode_manifest

    return decode_manifest(signed.manifest)
