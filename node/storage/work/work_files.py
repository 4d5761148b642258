"""The files behind the account of work: `pending`, and the vectors of offers.

    work/journal       the account as of its newest event, see `work_journal`
    work/pending       `pending` and the account as of then
    work/offers/<n>    the vector of offer n

A file is what `work_journal.encoded` gives: a digest, the header with the account, and the vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import structlog

from gossamer.node.base.disk_health import disk_error, remove_quietly, write_atomically
from gossamer.node.storage.bounded_file import open_file
from gossamer.node.storage.work.work_journal import (
    VERSION,
    FileHeader,
    encoded,
    front_of,
    write_with_digest,
)
from gossamer.protocol.ids import DIGEST_BYTES, digest_of
from gossamer.protocol.state.digest import FloatVector

log = structlog.get_logger("work")


@dataclass(frozen=True)
class LeftBehind:
    """The files of an earlier life, as far as they can be read."""

    header: FileHeader
    """The header of the newest event."""
    pending_number: int
    """Number of the `pending` on disk, 0 without one."""
    vector: FloatVector | None
    """`pending` as it is on disk; None without one."""

    @property
    def fits(self) -> bool:
        """Returns whether the newest event goes on from the `pending` on disk."""
        return self.header.pending == self.pending_number


class WorkFiles:
    """Reads and writes the files of one directory. One caller at a time."""

    def __init__(self, directory: Path, num_elements: int) -> None:
        """
        Args:
            num_elements: length of `pending` and of each offer's vector.
        """
        self.journal_path = directory / "journal"
        self._pending_path = directory / "pending"
        self._offers_path = directory / "offers"
        self._num_elements = num_elements
        self.is_damaged = False
        """Whether `read_left_behind` found a file that it could not read."""
        self._was_told = False
        """Whether it was said that the disk does not take offers."""
        self._offers_path.mkdir(parents=True, exist_ok=True)

    # Offers

    def has_offer(self, number: int) -> bool:
        """Returns whether the vector of an offer is on disk."""
        return (self._offers_path / str(number)).exists()

    def write_offer(
        self, number: int, header: FileHeader, pieces: Iterable[FloatVector], kept: Sequence[int]
    ) -> None:
        """Writes the vector of an offer and removes all that are not `kept`.

        A disk that does not take it does not end the node: after a split the work may be lost.

        Args:
            pieces: of the vector, in order. All are taken, also if the disk takes none of them.
        """
        names = {str(n) for n in kept}
        path = self._offers_path / str(number)
        remaining = iter(pieces)
        try:
            for old in self._offers_path.iterdir():
                if old.name not in names:
                    remove_quietly(old)
            write_with_digest(path, front_of(header), remaining, self._num_elements)
        except OSError as error:
            remove_quietly(path)
            problem = str(disk_error(path, self._num_elements * 4, error))
            tell = log.debug if self._was_told else log.warning
            tell("the work of this round is lost if the round is undone", problem=problem)
            self._was_told = True
            for _ in remaining:
                pass
        else:
            self._was_told = False

    def read_offer(self, number: int | None) -> FloatVector | None:
        """Reads the vector of an offer; None if it is not kept any more or damaged."""
        if number is None:
            return None
        try:
            return self._read(self._offers_path / str(number))[1]
        except FileNotFoundError:
            log.debug("the vector of an offer is not kept any more", offer=number)
        except (OSError, ValueError) as error:
            log.warning("the vector of an offer is damaged on disk", problem=str(error))
        return None

    # The account

    def write_pending(self, header: FileHeader, pending: FloatVector) -> None:
        """Writes `pending` and the account durably. DiskError leaves the old file."""
        write_atomically(self._pending_path, *encoded(header, pending))

    def read_left_behind(self) -> LeftBehind | None:
        """Reads the files of an earlier life; None if there is no account in them.

        A damaged file is reported and left out.
        """
        journal, _ = self._read_if_good(self.journal_path)
        saved, vector = self._read_if_good(self._pending_path)
        number = 0 if saved is None else saved.pending
        if saved is not None and (journal is None or journal.event < saved.event):
            return LeftBehind(saved, number, vector)
        return None if journal is None else LeftBehind(journal, number, vector)

    def _read_if_good(self, path: Path) -> tuple[FileHeader | None, FloatVector | None]:
        try:
            return self._read(path)
        except FileNotFoundError:
            return None, None
        except (OSError, ValueError) as error:
            self.is_damaged = True
            log.warning("the account of work on disk is damaged and left out", problem=str(error))
            return None, None

    def _read(self, path: Path) -> tuple[FileHeader, FloatVector]:
        """Reads a file that `encoded` gave.

        Raises:
            FileNotFoundError, OSError: it cannot be read.
            ValueError: it is damaged, or of another version or model.
        """
        with open_file(path) as file:
            content = memoryview(file.read())
        data = content[DIGEST_BYTES:]
        if bytes(content[:DIGEST_BYTES]) != digest_of(data):
            raise ValueError(f"{path} does not fit its digest")
        end = 4 + int.from_bytes(data[:4])
        header = msgspec.msgpack.decode(data[4:end], type=FileHeader)  # its error is a ValueError
        if header.version != VERSION:
            raise ValueError(f"{path} is of version {header.version}, not {VERSION}")
        vector = np.frombuffer(data[end:], dtype="<f4")
        if vector.size == 0:
            return header, np.zeros(self._num_elements, np.float32)
        if vector.size != self._num_elements or not np.isfinite(vector).all():
            raise ValueError(f"{path} is of another model or damaged")
        return header, vector.astype(np.float32, copy=False)
