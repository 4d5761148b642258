"""Room on the disk for documents that cannot be read where they lie, because they are packed.

Documents are read in random order, and a compressed stream can only be read from its beginning. So
`scan_corpus` unpacks each such file once into one file without a name, which goes away with the
process, however that ends. It takes as many bytes as the text has.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

from gossamer.protocol.limits import MIB
from gossamer.trainer.text.sources.corpus_errors import CorpusError, reason_of

# The token shards, and everything else on this disk, need room as well.
DISK_RESERVE_BYTES = 256 * MIB
# The disk is asked again after so many bytes: others fill it meanwhile.
_CHECK_BYTES = 64 * MIB
_WRITE_BYTES = MIB


class Spool:
    """A file of texts behind one another. Nothing is created before the first text."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: on the disk to use; None: the system's place for temporary files."""
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._descriptor: int | None = None
        self._buffer = bytearray()
        self._written = 0
        self._checked = 0

    @property
    def num_bytes(self) -> int:
        return self._written + len(self._buffer)

    def require_room(self, num_bytes: int) -> None:
        """Requires that so many bytes more fit on the disk. Raises CorpusError: they do not."""
        free = shutil.disk_usage(self._folder).free - DISK_RESERVE_BYTES
        if num_bytes > free:
            raise CorpusError(
                f"the packed files of the corpus take {num_bytes:,} bytes more while the run "
                f"is founded, and {self._folder} has room for {max(0, free):,} besides the "
                f"{DISK_RESERVE_BYTES // MIB} MiB that stay free: make room there, choose "
                "another disk (--state-dir), or name fewer packed files"
            )

    def add(self, text: bytes) -> int:
        """Keeps a text and returns its offset. Raises CorpusError: the disk takes no more."""
        offset = self.num_bytes
        self._buffer += text
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()
        return offset

    def cut(self, num_bytes: int) -> None:
        """Forgets what lies behind the first `num_bytes`."""
        if num_bytes < self.num_bytes:
            self._write()
            self._written = num_bytes

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Returns a text. Raises OSError: the disk fails."""
        if self._buffer:
            self._write()
        assert self._descriptor is not None, "nothing was added"
        return os.pread(self._descriptor, num_bytes, offset)

    def _write(self) -> None:
        if self._written - self._checked >= _CHECK_BYTES:
            self.require_room(len(self._buffer))
            self._checked = self._written
        try:
            if self._descriptor is None:
                self._descriptor, name = tempfile.mkstemp(dir=self._folder, prefix="unpacked-")
                weakref.finalize(self, os.close, self._descriptor)
                os.unlink(name)
            view = memoryview(self._buffer)
            while view:
                done = os.pwrite(self._descriptor, view, self._written)
                self._written += done
                view = view[done:]
        except OSError as error:
            raise CorpusError(
                f"cannot unpack the corpus into {self._folder}: {reason_of(error)}; make room "
                "there, or choose another disk (--state-dir)"
            ) from error
        self._buffer = bytearray()
