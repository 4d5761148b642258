"""A member's parts of a round, kept for auditors of its sums (`policy.auditing.sum_audits`).

The commit of a round changes the work that went into it, and an auditor says which chunk it wants
only when the averages are signed. So all parts are kept for some rounds. Where sums travel they are
as large as the model, 4 bytes a parameter, and nobody asks for most of them. So they lie in a file,
which goes with them. A process that is killed leaves it, and the next life removes it
(`StateDir`): nobody asks that one for them.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from gossamer.node.base.disk_health import TEMPORARY_SUFFIX, remove_quietly
from gossamer.protocol.codecs.chunk_values import Buffer

log = structlog.get_logger("work")


class KeptParts:
    """The parts of one round. Its methods may run in any thread.

    The file is removed when nobody has this object any more: another thread may be reading a part
    when the parts are forgotten.
    """

    def __init__(self, directory: Path, parts: Callable[[], Iterable[Buffer]]) -> None:
        """Writes the parts. Blocks for as long as the disk needs.

        Args:
            parts: gives them in the order of their chunks. It is called again if the disk takes
                nothing.
        """
        self._path = directory / f".parts.{os.urandom(8).hex()}{TEMPORARY_SUFFIX}"
        weakref.finalize(self, remove_quietly, self._path)
        self._places = [0]
        """Where each part begins in the file, and where the last one ends."""
        self._in_memory: list[bytes] | None = None
        try:
            self._write(parts())
        except OSError as error:
            log.debug("the parts of a round are kept in memory", problem=str(error))
            remove_quietly(self._path)
            self._in_memory = [bytes(part) for part in parts()]

    @property
    def are_in_memory(self) -> bool:
        """Returns whether the disk took nothing, so that the parts take memory."""
        return self._in_memory is not None

    def part(self, chunk: int) -> bytes | None:
        """Returns the part of a chunk. Blocks for as long as the disk needs.

        None: the disk does not give it back.
        """
        if self._in_memory is not None:
            return self._in_memory[chunk]
        start, stop = self._places[chunk : chunk + 2]
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                found = file.read(stop - start)
            if len(found) < stop - start:
                raise OSError("the file is too short")
        except OSError as error:
            log.warning("a part that was kept for auditors cannot be read", problem=str(error))
            return None
        return found

    def _write(self, parts: Iterable[Buffer]) -> None:
        """Writes all parts, in order. Raises OSError."""
        with open(self._path, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            for part in parts:
                file.write(part)
                self._places.append(self._places[-1] + len(part))
