"""Writing to a disk that may be full, read-only, broken or gone: one error in words, one report.

A write that fails raises `DiskError` and leaves what was there before. Nothing dies of it: the node
goes on with what it has in memory, `DiskHealth` says so once, and once more when all is well again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import structlog

TEMPORARY_SUFFIX = ".tmp"

_FULL = (errno.ENOSPC, errno.EDQUOT)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENODEV)


class DiskError(Exception):
    """A write did not succeed. The earlier file is untouched; the text says what to do."""


class DiskFullError(DiskError):
    """There is no room for a write: on the disk, or in the user's quota."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        try:
            free = f", {shutil.disk_usage(path.parent).free:,} are free"
        except OSError:
            free = ""
        super().__init__(
            f"the disk is full: {num_bytes:,} bytes for {path} did not fit{free}. Free some space "
            "or use a smaller --cache-bytes; what was committed before is safe"
        )


def disk_error(path: Path, num_bytes: int, error: OSError) -> DiskError:
    """Returns the error that says in words why `num_bytes` could not be written to `path`."""
    if error.errno in _FULL:
        return DiskFullError(path, num_bytes)
    if error.errno == errno.EROFS:
        return DiskError(
            f"the disk is read-only: {path} cannot be written. Mount it for writing again; after "
            "an error of the disk the system's log says more. What was committed before is safe"
        )
    if error.errno == errno.EFBIG:
        return DiskError(
            f"{path} is larger than the system lets this program write. Raise the limit of the "
            "size of files (`ulimit -f unlimited`); what was committed before is safe"
        )
    if error.errno in _GONE:
        return DiskError(
            f"{path.parent} is gone: deleted, or on a disk that was removed. Bring it back, or "
            "stop this node and start it again"
        )
    return DiskError(
        f"the disk fails: {path} cannot be written ({error.strerror}). Check the disk and the "
        "rights on the directory; what was committed before is safe"
    )


def write_atomically(
    path: Path,
    *parts: bytes | bytearray | memoryview,
    mode: int = 0o600,
    is_order: bool = False,
) -> None:
    """Replaces the file at once and durably: a reader, and a crash, see the old or the new content.

    The content is the parts one after the other; they are not copied.

    The bytes and then the directory entry are synced, so when this returns the new content
    survives a power cut. Blocks for as long as the disk needs.

    Args:
        is_order: a command leaves the file for the node of its folder, see `hand_over`.

    Raises:
        DiskError: the old file is untouched and, as far as the disk lets us, nothing is left
            beside it.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}{TEMPORARY_SUFFIX}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            if is_order:
                hand_over(descriptor, path.parent)
            with open(descriptor, "wb", buffering=0, closefd=False) as file:
                for part in parts:
                    view = memoryview(part).cast("B")
                    while view.nbytes:
                        view = view[file.write(view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException as error:
        remove_quietly(temporary)
        if isinstance(error, OSError):
            num_bytes = sum(memoryview(part).nbytes for part in parts)
            raise disk_error(path, num_bytes, error) from error
        raise


def hand_over(descriptor: int, folder: Path) -> None:
    """Gives what a command of root makes in a folder to the owner of the folder.

    The node of a service for all users has a user of its own, as which nobody can give a command.
    It could not read what belongs to root. Where the system does not let root do it, as in some
    containers, the file stays root's. Raises OSError: the folder is gone.
    """
    owner = os.stat(folder)
    if os.geteuid() == 0 != owner.st_uid:
        with contextlib.suppress(OSError):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def make_folder_of_orders(folder: Path) -> None:
    """Makes a folder in which commands leave orders for the node, if it is not there. See
    `hand_over`; one that an earlier version has left as root's is given away, too. Raises
    OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not os.geteuid() == 0 == os.lstat(folder).st_uid:
        return
    # By its descriptor: another user could put something else into its place meanwhile.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        hand_over(descriptor, folder.parent)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Makes renames and removals in the directory durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(paths: Iterable[Path]) -> None:
    """Makes files durable that were written without it, and their entries in their folders: they
    survive a power cut from now on. Blocks for as long as the disk needs. Raises DiskError."""
    folders: dict[Path, Path] = {}
    for path in paths:
        num_bytes = 0
        try:
            with open(path, "rb", buffering=0) as file:
                num_bytes = os.fstat(file.fileno()).st_size
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(path, num_bytes, error) from error
        folders[path.parent] = path
    for folder, path in folders.items():
        try:
            sync_directory(folder)
        except OSError as error:
            raise disk_error(path, 0, error) from error


def remove_quietly(path: Path | str) -> None:
    """Removes a file that is not needed, if the disk allows it. There may be none."""
    with contextlib.suppress(OSError):
        os.unlink(path)


class DiskHealth:
    """The newest failure to write, by kind of file. The first trouble is logged, and its end.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._noting = threading.Lock()
        self._problems: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """The reason for people why files are not written; None if all is well."""
        return next(iter(self._problems.copy().values()), None)

    def problem_of(self, what: str) -> str:
        """The reason why files of this kind are not written; empty if the newest ones were."""
        with self._noting:
            return self._problems.get(what, "")

    @contextlib.contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Notes how a block writes files of this kind. Its DiskError ends the block, and no more:
        a disk that does not take it does not end the node."""
        try:
            yield
        except DiskError as error:
            self.failed(what, error)
        else:
            self.wrote(what)

    def failed(self, what: str, error: DiskError) -> None:
        """Files of this kind cannot be written; they are kept in memory, or done without."""
        with self._noting:
            is_news = not self._problems
            self._problems[what] = str(error)
        log = _log()
        if is_news:
            log.error("the node goes on in memory: the disk takes nothing", problem=str(error))
        else:
            log.debug("not written", what=what, problem=str(error))

    def wrote(self, what: str) -> None:
        """A file of this kind was written."""
        with self._noting:
            is_news = self._problems.pop(what, None) is not None and not self._problems
        if is_news:
            _log().info("the disk takes everything again")


def _log() -> structlog.stdlib.BoundLogger:
    # Commands that only ask a node read its files, too, and do without the 50 ms of structlog.
    import structlog

    logger: structlog.stdlib.BoundLogger = structlog.get_logger("disk")
    return logger
