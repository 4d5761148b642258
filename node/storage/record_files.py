"""The files of commit records: ``<round>-<head>`` in one folder, each behind its BLAKE3 digest.

A record that the disk does not take waits in memory, and is written with the next one.
"""

from __future__ import annotations

import os
from pathlib import Path

from gossamer.node.base.disk_health import (
    DiskError,
    DiskHealth,
    disk_error,
    remove_quietly,
    sync_files,
)
from gossamer.node.storage.bounded_file import read_digested
from gossamer.node.storage.chain_tree import Entry
from gossamer.protocol.ids import Digest, digest_of


class RecordFiles:
    """The records of one chain. Writing is for one caller at a time; threads may read meanwhile."""

    def __init__(self, directory: Path, health: DiskHealth) -> None:
        self.problem: DiskError | None = None
        """The reason why records wait; None if all are on disk."""
        self._directory = directory
        self._health = health
        self._waiting: dict[Digest, tuple[str, bytes]] = {}
        """Files with their records that are not on disk: it did not take them, or they are just
        coming."""

    def path_of(self, entry: Entry) -> str:
        """Returns the file of a round's record."""
        return self._path(entry.round, entry.head)

    def _path(self, round_number: int, head: Digest) -> str:
        # Not a `Path`: to make one takes as long as to write the file.
        return f"{self._directory}/{round_number:010d}-{head.hex()}"

    def put(self, head: Digest, round_number: int, record: bytes) -> None:
        """Takes an encoded record, which `write_waiting` writes."""
        self._waiting[head] = self._path(round_number, head), record

    def read(self, entry: Entry) -> bytes:
        """Returns an encoded record. OSError, or MalformedError if the file is damaged."""
        waiting = self._waiting.get(entry.head)
        return read_digested(self.path_of(entry)) if waiting is None else waiting[1]

    def drop(self, head: Digest) -> None:
        """Forgets a record that waits. Its file, if it has one, stays."""
        self._waiting.pop(head, None)

    def remove(self, entry: Entry) -> None:
        """Forgets a record, on disk too."""
        self.drop(entry.head)
        remove_quietly(self.path_of(entry))

    def write_waiting(self) -> None:
        """Writes the records that wait. `problem` says what went wrong."""
        try:
            for head, (path, record) in list(self._waiting.items()):
                _replace(path, digest_of(record) + record)
                del self._waiting[head]
        except DiskError as error:
            self.problem = error
            self._health.failed("chain", error)
        else:
            self.problem = None
            self._health.wrote("chain")

    def sync(self, entry: Entry) -> None:
        """Makes a record durable: it survives a power cut from now on. DiskError."""
        sync_files([Path(self.path_of(entry))])


def _replace(path: str, data: bytes) -> None:
    """Replaces a file; it survives this process, and a power cut after `sync`. DiskError."""
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        remove_quietly(temporary)
        raise disk_error(Path(path), len(data), error) from error
