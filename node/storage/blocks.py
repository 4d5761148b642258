"""Blocks on disk: files named by the BLAKE3 digest of their content.

Layout under the root, one file a block::

    aa/<64 hexadecimal digits>      the block whose digest begins with aa
    tmp/...                         being written; removed at the next start

A block is written to ``tmp`` and renamed, so a file with a block's name was written in full. It may
still have been damaged since, therefore every read is checked against the digest. A damaged block
is removed, counted and reported as `CorruptBlockError`: whoever wanted it fetches it again.

The quota makes the store a cache: `put` evicts the blocks that were used least recently until the
rest fits, but never one that somebody pinned. Pins live in memory only; who needs blocks over a
restart pins them again before anything is put.

A disk that fails costs blocks, not the process: what cannot be written is a `DiskError`, what
cannot be read is a missing block, and what cannot be removed stays.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from blake3 import blake3

from gossamer.node.base.disk_health import DiskFullError, disk_error, remove_quietly, sync_directory
from gossamer.protocol import limits
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, digest_of, short

Buffer = bytes | bytearray | memoryview

# Bytes read from a file at once.
_READ_BYTES = 256 * limits.KIB


class BlockError(Exception):
    """Base of the store's errors. The text is for people."""


class MissingBlockError(BlockError):
    """The store does not have that block."""


class CorruptBlockError(BlockError):
    """The file of a block did not hold its content any more. It has been removed."""


class BlockStore:
    """Content-addressed blocks in a folder. Thread-safe; every call may touch the disk.

    One process has the folder to itself (the daemon's lock on its state directory sees to that).
    Opening it scans the folder, removes what a crash left half-written, and takes the order of use
    from the files' times.

    Attributes:
        verify_failures: blocks that were found damaged, since the start.
        evictions: blocks evicted for the quota or a full disk, since the start.
    """

    def __init__(
        self,
        root: Path,
        quota_bytes: int,
        *,
        read_only: bool = False,
        check_place: Callable[[], None] = lambda: None,
    ) -> None:
        """`quota_bytes` limits the sum of the blocks' sizes, as far as pins allow.

        `read_only` looks at a folder that another process has: nothing is written or removed.
        `check_place` is called before a folder that vanished is made anew; it raises DiskError
        where that would be the wrong place, such as below a disk that was removed.
        """
        self._read_only = read_only
        self._check_place = check_place
        self.root = root
        self.quota_bytes = quota_bytes
        self.verify_failures = 0
        self.evictions = 0
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Digest, int] = OrderedDict()  # least recently used first
        self._used_bytes = 0
        self._pins: dict[str, frozenset[Digest]] = {}
        self._pin_counts: Counter[Digest] = Counter()
        self._tmp_names = itertools.count()
        self._tmp = root / "tmp"
        self._scan()

    def path(self, digest: Digest) -> Path:
        """Where the block is, or would be. Reading it directly skips the check."""
        name = digest.hex()
        return self.root / name[:2] / name

    def has(self, digest: Digest) -> bool:
        """Whether the block is here; does not read it."""
        with self._lock:
            return digest in self._sizes

    def size(self, digest: Digest) -> int | None:
        """Bytes of the block, or None when it is not here."""
        with self._lock:
            return self._sizes.get(digest)

    def missing(self, digests: Iterable[Digest]) -> list[Digest]:
        """Those that are not here, each once, in their order."""
        with self._lock:
            return [digest for digest in dict.fromkeys(digests) if digest not in self._sizes]

    def used_bytes(self) -> int:
        """Sum of the blocks' sizes."""
        with self._lock:
            return self._used_bytes

    def num_blocks(self) -> int:
        """Blocks here."""
        with self._lock:
            return len(self._sizes)

    def num_pinned(self) -> int:
        """Blocks here that are pinned."""
        with self._lock:
            return sum(1 for digest in self._pin_counts if digest in self._sizes)

    def put(self, data: Buffer, *, expected: Digest | None = None, durable: bool = False) -> Digest:
        """Store a block and evict others if that passes the quota. Nothing happens if it is here.

        With `durable` the block survives a power cut once the call is back (fsync of the file and
        its folder); without, it survives the process.

        Raises:
            ForgedError: the content does not have the `expected` digest; nothing was written.
            DiskError: the disk does not take it, full ones not even after evicting what is not
                pinned; nothing is left of the block.
            ValueError: empty, or over `BLOCK_BYTES_MAX`.
        """
        assert not self._read_only
        num_bytes = memoryview(data).nbytes
        if not 0 < num_bytes <= limits.BLOCK_BYTES_MAX:
            raise ValueError(f"a block has 1 to {limits.BLOCK_BYTES_MAX} bytes, not {num_bytes}")
        digest = digest_of(data)
        if expected is not None and digest != expected:
            raise ForgedError(f"block {short(expected)} has the digest {short(digest)}")
        with self._lock:
            known = digest in self._sizes
            if known:
                self._sizes.move_to_end(digest)
        if known and not durable:
            return digest
        try:
            self._write(digest, data, durable=durable)
        except DiskFullError:
            # Blocks that nobody pinned are a cache: a checkpoint goes before them.
            if not self._evict_bytes(num_bytes):
                raise
            self._write(digest, data, durable=durable)
        self._evict_bytes(self._used_bytes - self.quota_bytes, keep=digest)
        return digest

    def get(self, digest: Digest) -> bytes:
        """The block's content, checked.

        Raises:
            MissingBlockError: not here.
            CorruptBlockError: damaged on disk; the file is gone now, fetch the block again.
        """
        with self._open(digest) as file:
            data = b"".join(_pieces(file))
            if digest_of(data) != digest:
                self._raise_damaged(digest, file)
        self._touch(digest)
        return data

    def open_block(self, digest: Digest) -> BinaryIO:
        """The block's file, checked and at its beginning, for reading it piece by piece.

        The caller closes it. It can be read to its end even when the block is evicted meanwhile.

        Raises:
            MissingBlockError: not here.
            CorruptBlockError: as for `get`.
        """
        file = self._open(digest)
        try:
            if _digest_of_file(file) != digest:
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

    def delete(self, digest: Digest) -> None:
        """Remove a block, pinned or not. Nothing happens when it is not here."""
        with self._lock:
            self._remove(digest)

    def pin(self, name: str, digests: Iterable[Digest]) -> None:
        """Keep these blocks from eviction until `unpin(name)`; replaces what `name` pinned before.

        They need not be here yet: pin before fetching.
        """
        pinned = frozenset(digests)
        with self._lock:
            self._drop_pins(name)
            self._pins[name] = pinned
            self._pin_counts.update(pinned)

    def unpin(self, name: str) -> None:
        """Allow eviction again. Nothing happens when there is no such name."""
        with self._lock:
            self._drop_pins(name)

    def discard(self, name: str) -> None:
        """Unpin, and delete the blocks that nothing else pins: nobody will want them again."""
        with self._lock:
            blocks = self._pins.get(name, frozenset())
            self._drop_pins(name)
            for digest in blocks:
                if digest not in self._pin_counts:
                    self._remove(digest)

    def forget_lost(self) -> int:
        """Looks for the file of every block and forgets those that are gone; returns how many.

        For after a trouble with the disk, when somebody may have deleted or restored folders.
        """
        with self._lock:
            known = list(self._sizes)
        missed = [digest for digest in known if not self.path(digest).exists()]
        with self._lock:
            return sum(self._forget_if_gone(digest) for digest in missed)

    def evict(self) -> int:
        """Remove the least recently used blocks until the quota holds or all others are pinned.

        Returns the bytes freed.
        """
        return self._evict_bytes(self._used_bytes - self.quota_bytes)

    def _scan(self) -> None:
        if not self._read_only:
            self._tmp.mkdir(parents=True, exist_ok=True)
            for leftover in self._tmp.iterdir():
                leftover.unlink()
        found: list[tuple[int, Digest, int]] = []
        for folder in self.root.iterdir() if self.root.exists() else ():
            if folder == self._tmp or not folder.is_dir():
                continue
            for entry in os.scandir(folder):
                digest = _digest_from_name(entry.name)
                if digest is None or self.path(digest) != Path(entry.path):
                    continue  # not ours
                status = entry.stat()
                if 0 < status.st_size <= limits.BLOCK_BYTES_MAX:
                    found.append((status.st_mtime_ns, digest, status.st_size))
                elif not self._read_only:  # a power cut can leave an empty file
                    os.unlink(entry.path)
        for _, digest, num_bytes in sorted(found):
            self._sizes[digest] = num_bytes
            self._used_bytes += num_bytes

    def _write(self, digest: Digest, data: Buffer, *, durable: bool) -> None:
        """Write and rename; leaves nothing behind when it fails with a DiskError."""
        target = self.path(digest)
        num_bytes = memoryview(data).nbytes
        try:
            self._write_file(target, digest, data, durable=durable)
        except FileNotFoundError:
            # Somebody deleted the folder of blocks, perhaps to have room.
            self._check_place()
            try:
                self.root.mkdir(exist_ok=True)
                self._tmp.mkdir(exist_ok=True)
                self._write_file(target, digest, data, durable=durable)
            except OSError as error:
                raise disk_error(target, num_bytes, error) from error
        except OSError as error:
            raise disk_error(target, num_bytes, error) from error

    def _write_file(self, target: Path, digest: Digest, data: Buffer, *, durable: bool) -> None:
        """Raises OSError."""
        temporary = self._tmp / str(next(self._tmp_names))
        num_bytes = memoryview(data).nbytes
        try:
            with open(temporary, "wb", buffering=0) as file:
                rest = memoryview(data).cast("B")
                while rest:
                    rest = rest[file.write(rest) :]
                if durable:
                    os.fsync(file.fileno())
            target.parent.mkdir(exist_ok=True)
            with self._lock:
                os.replace(temporary, target)
                self._used_bytes += num_bytes - self._sizes.pop(digest, 0)
                self._sizes[digest] = num_bytes
        except BaseException:
            remove_quietly(temporary)
            raise
        if durable:
            sync_directory(target.parent)
            sync_directory(self.root)

    def _evict_bytes(self, num_bytes: int, keep: Digest | None = None) -> int:
        """Free at least `num_bytes` if pins (and `keep`) allow; returns how many were freed."""
        if num_bytes <= 0:
            return 0
        victims: list[Digest] = []
        freed_bytes = 0
        with self._lock:
            for digest, size in self._sizes.items():
                if freed_bytes >= num_bytes:
                    break
                if digest not in self._pin_counts and digest != keep:
                    victims.append(digest)
                    freed_bytes += size
            removed = [digest for digest in victims if self._remove(digest)]
            self.evictions += len(removed)
        return freed_bytes if len(removed) == len(victims) else 0

    def _remove(self, digest: Digest) -> bool:
        """False if the disk does not let go of the file: then it stays."""
        if self._read_only:
            return False
        try:
            self.path(digest).unlink(missing_ok=True)
        except OSError:
            return False
        self._forget(digest)
        return True

    def _forget_if_gone(self, digest: Digest) -> bool:
        """Another thread may have put the block again since its file was missed."""
        is_gone = digest in self._sizes and not os.path.exists(self.path(digest))
        if is_gone:
            self._forget(digest)
        return is_gone

    def _forget(self, digest: Digest) -> None:
        self._used_bytes -= self._sizes.pop(digest, 0)

    def _open(self, digest: Digest) -> BinaryIO:
        """The file, not yet checked."""
        if not self.has(digest):
            raise MissingBlockError(f"block {short(digest)} is not in {self.root}")
        try:
            return open(self.path(digest), "rb", buffering=0)
        except FileNotFoundError:  # evicted since, or somebody tidied up behind our back
            with self._lock:
                self._forget_if_gone(digest)
            raise MissingBlockError(f"block {short(digest)} is gone from {self.root}") from None
        except OSError as error:
            with self._lock:
                self._forget(digest)
            raise MissingBlockError(f"block {self.path(digest)}: {error.strerror}") from error

    def _touch(self, digest: Digest) -> None:
        """Note that the block was used, in memory and for the next start."""
        if self._read_only:
            return
        with contextlib.suppress(OSError):  # evicted since, or on a read-only disk
            os.utime(self.path(digest))
        with self._lock:
            if digest in self._sizes:
                self._sizes.move_to_end(digest)

    def _raise_damaged(self, digest: Digest, file: BinaryIO) -> NoReturn:
        path = self.path(digest)
        with self._lock:
            self.verify_failures += 1
            # A good copy may have been put in its place since we opened the bad one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    self._remove(digest)
                    self._forget(digest)  # of no use, even where it cannot be removed
        raise CorruptBlockError(
            f"block {short(digest)} was damaged on disk and has been removed ({path}); "
            "it has to be fetched again, and the disk may need a check"
        )

    def _drop_pins(self, name: str) -> None:
        for digest in self._pins.pop(name, ()):
            self._pin_counts[digest] -= 1
            if not self._pin_counts[digest]:
                del self._pin_counts[digest]


def _digest_from_name(name: str) -> Digest | None:
    try:
        raw = bytes.fromhex(name)
    except ValueError:
        return None
    return Digest(raw) if len(raw) == DIGEST_BYTES else None


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """The content as far as a block may reach, and one piece more. Ends where the disk fails."""
    num_bytes = 0
    while num_bytes <= limits.BLOCK_BYTES_MAX:
        try:
            piece = file.read(_READ_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:
                return  # what we have so far will not fit the digest
            raise
        if not piece:
            return
        num_bytes += len(piece)
        yield piece


def _digest_of_file(file: BinaryIO) -> Digest:
    hasher = blake3()
    for piece in _pieces(file):
        hasher.update(piece)
    return Digest(hasher.digest())
