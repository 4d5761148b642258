"""One export at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Makes a folder, and keeps other exports of this machine out of it until the block ends.

    Two exports in one folder would write the same files, which then have parts of two states. The
    lock ends with the process. A file system without locks is used without one.

    Raises:
        BlockingIOError: another export writes there; `strerror` says what to do.
        OSError: the folder cannot be made or opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            advice = "another export writes there. Give this one again when that has ended"
            raise BlockingIOError(error.errno, advice) from None
        except OSError:
            pass  # no locks here
        yield
    finally:
        os.close(descriptor)
