"""Blocks on disk: files named by the BLAKE3 digest of their content.

Layout under the root, one file a block::

    aa/<64 hexadecimal digits>      the block whose digest begins with aa
    tmp/...                         being written; removed at the next start

A block is written to ``tmp`` and renamed, so a file with a block's name was written in full. It may
have been damaged since, therefore each read is checked against the digest. A damaged block is
removed, counted and reported as `CorruptBlockError`. The caller can fetch it again.

The quota makes the store a cache: `put` evicts the least recently used blocks until the rest fits,
except pinned ones. Pins live in memory only. A part that needs blocks after a restart pins them
again before any block is put.

A failing disk costs blocks, not the process: a block that cannot be written is a `DiskError`, one
that cannot be read is a missing block, and one that cannot be removed stays.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from gossamer.node.base.disk_health import (
    DiskFullError,
    disk_error,
    remove_quietly,
    sync_directory,
    sync_files,
)
from gossamer.node.storage.block_files import (
    CorruptBlockError,
    MissingBlockError,
    digest_of_file,
    files_under,
    path_of,
    pieces_of,
)
from gossamer.node.storage.block_index import BlockIndex
from gossamer.protocol import limits
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import Digest, digest_of, short

Buffer = bytes | bytearray | memoryview


class BlockStore(BlockIndex):
    """Content-addressed blocks in a folder. Thread-safe.

    Calls that read, write or remove blocks wait for the disk. What `BlockIndex` has is answered
    from memory.

    One process has the folder to itself: the daemon locks its state directory. The constructor
    scans the folder, removes what a crash left half-written, and takes the order of use from the
    times of the files.

    Attributes:
        verify_failures: number of blocks found damaged since the start.
    """

    def __init__(
        self,
        root: Path,
        quota_bytes: int,
        *,
        read_only: bool = False,
        check_place: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            quota_bytes: limit of the sum of the blocks' sizes, as far as pins allow.
            read_only: nothing is written or removed, because the folder belongs to another process.
            check_place: called before a folder that vanished is made anew. It raises DiskError
                where that would be the wrong place, such as below a disk that was removed.
        """
        super().__init__()
        self._read_only = read_only
        self._check_place = check_place
        self.root = root
        self.quota_bytes = quota_bytes
        self.reserved_bytes = 0
        """Bytes of pinned blocks for which there is room beside the quota: what every node of the
        run has to have for good."""
        self.verify_failures = 0
        self.has_lost = False
        """Whether blocks were forgotten, since `find_again`, because their files were gone."""
        self._moving = threading.Lock()
        """Lock that is held while one file of a block is renamed or removed and the index follows.
        It is held for one file at a time, so a small block that the event loop puts waits for one
        removal."""
        self._evicting = threading.Lock()
        """Lock that is held while blocks beyond the quota are chosen, so that threads which put
        blocks at the same time do not each evict for all of them."""
        self._tmp_names = itertools.count()
        self._tmp = root / "tmp"
        self._scan()

    def path(self, digest: Digest) -> Path:
        """The file of the block, if it is here. Reading it directly skips the check."""
        return path_of(self.root, digest)

    def cached_bytes(self) -> int:
        """The part of `used_bytes` that counts against the quota."""
        return self.used_bytes() - self.reserved_bytes

    def put(self, data: Buffer, *, expected: Digest | None = None) -> Digest:
        """Stores a block, and evicts others if the quota is passed. A block that is here stays.

        A block survives the process, and not every power cut: what a power cut damages is found
        when it is read. `sync` makes a block durable that no other node has.

        Raises:
            ForgedError: the content does not have the `expected` digest; nothing was written.
            DiskError: the disk does not take the block, a full disk not even after the eviction of
                all blocks without pins. Nothing is left of the block.
            ValueError: it is empty, or larger than `BLOCK_BYTES_MAX`.
        """
        assert not self._read_only
        num_bytes = memoryview(data).nbytes
        if not 0 < num_bytes <= limits.BLOCK_BYTES_MAX:
            raise ValueError(f"a block has 1 to {limits.BLOCK_BYTES_MAX} bytes, not {num_bytes}")
        digest = digest_of(data)
        if expected is not None and digest != expected:
            raise ForgedError(f"block {short(expected)} has the digest {short(digest)}")
        if self._use(digest):
            return digest
        try:
            self._write(digest, data)
        except DiskFullError:
            # Blocks without pins are a cache: a checkpoint takes precedence.
            if not self._remove_all(self._victims(num_bytes, None)):
                raise
            self._write(digest, data)
        self.evict(keep=digest)
        return digest

    def sync(self, digests: Iterable[Digest] | None = None) -> None:
        """Makes blocks durable: they survive a power cut from now on.

        Args:
            digests: of blocks that are here; None: all of them.

        Raises:
            DiskError: the disk does not do it, or has lost one of them.
        """
        wanted = self._digests() if digests is None else digests
        sync_files(self.path(digest) for digest in wanted)
        try:
            sync_directory(self.root)
        except OSError as error:
            raise disk_error(self._tmp, 0, error) from error

    def get(self, digest: Digest) -> bytes:
        """Returns the block's content, checked.

        Raises:
            MissingBlockError: it is not here.
            CorruptBlockError: it was damaged on disk. The file is removed; fetch the block again.
        """
        with self._open(digest) as file, self._reading(digest):
            data = b"".join(pieces_of(file))
            if digest_of(data) != digest:
                self._raise_damaged(digest, file)
        self._touch(digest)
        return data

    def open_block(self, digest: Digest) -> BinaryIO:
        """Returns the block's file, checked and at its beginning, for reading in pieces.

        The caller closes it. It can be read to its end even if the block is evicted meanwhile.

        Raises:
            MissingBlockError, CorruptBlockError: as for `get`.
        """
        file = self._open(digest)
        try:
            with self._reading(digest):
                if digest_of_file(file) != digest:
                    self._raise_damaged(digest, file)
                file.seek(0)
        except BaseException:
            file.close()
            raise
        self._touch(digest)
        return file

    def check(self, digest: Digest) -> None:
        """Reads the block without keeping it. Raises as `get` does."""
        self.open_block(digest).close()

    def discard(self, name: str) -> None:
        """Unpins the blocks of a name and deletes those that no other name pins. Use it for blocks
        that no peer will ask for again."""
        for digest, num_bytes in self._unpin_and_forget(name).items():
            self._remove(digest, num_bytes)

    def forget_lost(self) -> int:
        """Looks for the file of every block and forgets those without one; returns their number.

        It is called after an error of the disk, when folders may have been deleted or restored, or
        the disk may tell nothing of a file.
        """
        # `Path.exists` raises where the disk fails.
        digests = self._digests()
        missed = [digest for digest in digests if not os.path.exists(self.path(digest))]
        return sum(self._forget_if_gone(digest) for digest in missed)

    def evict(self, *, keep: Digest | None = None) -> int:
        """Removes the least recently used blocks until the quota holds or all others are pinned.

        Args:
            keep: a block that stays.

        Returns:
            The bytes freed; 0 if the disk did not let go of a file.
        """
        with self._evicting:
            victims = self._victims(self.cached_bytes() - self.quota_bytes, keep)
        return self._remove_all(victims)

    def find_again(self) -> None:
        """Finds blocks that were forgotten because the disk did not have them, and that it has
        again. They count as the least recently used ones, and are checked when they are read. It
        blocks for as long as the disk needs."""
        self.has_lost = False
        for path, digest, status in files_under(self.root):
            with self._moving:
                if 0 < status.st_size <= limits.BLOCK_BYTES_MAX and os.path.exists(path):
                    self._restore(digest, status.st_size)

    def _scan(self) -> None:
        if not self._read_only:
            self._tmp.mkdir(parents=True, exist_ok=True)
            for leftover in self._tmp.iterdir():
                remove_quietly(leftover)
        found: list[tuple[int, Digest, int]] = []
        for path, digest, status in files_under(self.root):
            if 0 < status.st_size <= limits.BLOCK_BYTES_MAX:
                found.append((status.st_mtime_ns, digest, status.st_size))
            elif not self._read_only:  # a power cut can leave an empty file
                remove_quietly(path)
        for _, digest, num_bytes in sorted(found):
            self._add(digest, num_bytes)

    def _write(self, digest: Digest, data: Buffer) -> None:
        """Writes and renames a file. A DiskError leaves nothing behind."""
        target = self.path(digest)
        num_bytes = memoryview(data).nbytes
        try:
            self._write_file(target, digest, data)
        except FileNotFoundError:
            # The folder of blocks was deleted, perhaps to make room.
            self._check_place()
            try:
                self.root.mkdir(exist_ok=True)
                self._tmp.mkdir(exist_ok=True)
                self._write_file(target, digest, data)
            except OSError as error:
                raise disk_error(target, num_bytes, error) from error
        except OSError as error:
            raise disk_error(target, num_bytes, error) from error

    def _write_file(self, target: Path, digest: Digest, data: Buffer) -> None:
        """Raises OSError."""
        temporary = self._tmp / str(next(self._tmp_names))
        num_bytes = memoryview(data).nbytes
        try:
            with open(temporary, "wb", buffering=0) as file:
                rest = memoryview(data).cast("B")
                while rest:
                    rest = rest[file.write(rest) :]
            with self._moving:
                try:
                    os.replace(temporary, target)
                except FileNotFoundError:  # the first block in this folder
                    target.parent.mkdir(exist_ok=True)
                    os.replace(temporary, target)
                self._add(digest, num_bytes)
        except BaseException:
            remove_quietly(temporary)
            raise

    def _victims(self, num_bytes: int, keep: Digest | None) -> dict[Digest, int]:
        """Forgets blocks of so many bytes, the oldest use first. Their files are to be removed."""
        if num_bytes <= 0 or self._read_only:
            return {}
        return self._forget_oldest(num_bytes, keep)

    def _remove_all(self, victims: dict[Digest, int]) -> int:
        """Returns the bytes freed; 0 if the disk did not let go of a file."""
        removed = [digest for digest, size in victims.items() if self._remove(digest, size)]
        return sum(victims.values()) if len(removed) == len(victims) else 0

    def _remove(self, digest: Digest, num_bytes: int) -> bool:
        """Removes the file of a block that the index has just forgotten.

        Returns:
            False if the disk does not let go of the file. Then the block stays.
        """
        with self._moving:
            if self.has(digest):
                return True  # another thread has put the block again since
            try:
                if self._read_only:
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
                self.path(digest).unlink(missing_ok=True)
            except OSError:
                self._restore(digest, num_bytes)
                return False
            return True

    def _forget_if_gone(self, digest: Digest) -> bool:
        """Forgets a block without a file. Another thread may have put it again meanwhile."""
        with self._moving:
            if os.path.exists(self.path(digest)):
                return False
            num_bytes = self._forget(digest)
            self.has_lost = self.has_lost or num_bytes is not None
            return num_bytes is not None

    def _open(self, digest: Digest) -> BinaryIO:
        """Opens the file, which is not checked yet."""
        if not self.has(digest):
            raise MissingBlockError(f"block {short(digest)} is not in {self.root}")
        with self._reading(digest):
            try:
                file = open(self.path(digest), "rb", buffering=0)  # noqa: SIM115 - returned
            except FileNotFoundError:  # evicted since, or deleted by another program
                self._forget_if_gone(digest)
                raise MissingBlockError(f"block {short(digest)} is gone from {self.root}") from None
        return file

    @contextlib.contextmanager
    def _reading(self, digest: Digest) -> Iterator[None]:
        """Makes MissingBlockError of an error of the disk, and the block counts as missing. The
        file stays: it may be good when the disk is back."""
        try:
            yield
        except OSError as error:
            self._forget(digest)
            raise MissingBlockError(f"block {self.path(digest)}: {error.strerror}") from error

    def _touch(self, digest: Digest) -> None:
        """Notes that the block was used, in memory and for the next start."""
        if self._read_only:
            return
        with contextlib.suppress(OSError):  # evicted since, or on a read-only disk
            os.utime(self.path(digest))
        self._use(digest)

    def _raise_damaged(self, digest: Digest, file: BinaryIO) -> NoReturn:
        path = self.path(digest)
        with self._moving:
            self.verify_failures += 1
            # A good copy may have replaced the bad one since it was opened.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    self._forget(digest)  # of no use, even if it cannot be removed
                    if not self._read_only:
                        remove_quietly(path)
        raise CorruptBlockError(
            f"block {short(digest)} was damaged on disk and has been removed ({path}); "
            "it has to be fetched again, and the disk may need a check"
        )
