"""The files of commit records: ``<round>-<head>`` in one folder, each behind its BLAKE3 digest.

A record that the disk does not take waits in memory, and is written with the next one. So does a
record that got further votes: a file that is durable is replaced by one that is durable as well.
Otherwise a power cut could leave an empty one in its place. A thread waits for that.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from gossamer.node.base.disk_health import (
    DiskError,
    DiskHealth,
    disk_error,
    remove_quietly,
    sync_files,
)
from gossamer.node.storage.bounded_file import read_digested
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.limits import MIB
from gossamer.protocol.wire.statements import Signed

GROWN_BYTES_MAX = 8 * MIB
"""Bytes of records with further votes that wait in memory: some thousand rounds, which a page or
two of records may bring at once. Beyond that the oldest go to the disk at once, and a power cut may
take them."""

VOTED_ROUNDS_MAX = 64
"""Rounds whose votes wait in `FurtherVotes`. They are taken at the end of each round of this node;
in a longer pause votes of older rounds are left out."""

log = structlog.get_logger("chain")


class RecordFiles:
    """The records of one chain. Writing is for one caller at a time; threads may read meanwhile."""

    def __init__(
        self, directory: Path, health: DiskHealth, check_place: Callable[[], None]
    ) -> None:
        """`check_place`: called before records are written. It raises DiskError where the directory
        is another node's by now."""
        self._check_place = check_place
        self.problem: DiskError | None = None
        """The reason why records wait; None if all are on disk."""
        self._directory = directory
        self._health = health
        self._waiting: dict[Digest, tuple[str, bytes]] = {}
        """Files with their records that are not on disk: it did not take them, or they are just
        coming."""
        self._grown: OrderedDict[Digest, tuple[str, bytes]] = OrderedDict()
        """Files that are on disk without the further votes of these records."""
        self._grown_bytes = 0

    def path_of(self, entry: Entry) -> str:
        """Returns the file of a round's record."""
        return self._path(entry.round, entry.head)

    def _path(self, round_number: int, head: Digest) -> str:
        # Not a `Path`: to make one takes as long as to write the file.
        return f"{self._directory}/{round_number:010d}-{head.hex()}"

    def put(self, head: Digest, round_number: int, record: bytes) -> None:
        """Takes an encoded record, which `write_waiting` writes."""
        self._waiting[head] = self._path(round_number, head), record

    def put_grown(self, head: Digest, round_number: int, record: bytes) -> None:
        """Takes a known record with further votes, which `write_grown` writes."""
        if head in self._waiting:
            self.put(head, round_number, record)
            return
        self._ungrown(head)
        self._grown[head] = self._path(round_number, head), record
        self._grown_bytes += len(record)
        while self._grown_bytes > GROWN_BYTES_MAX:
            oldest, (path, grown) = next(iter(self._grown.items()))
            self._waiting[oldest] = path, grown
            self._ungrown(oldest)

    def _ungrown(self, head: Digest) -> None:
        if (known := self._grown.pop(head, None)) is not None:
            self._grown_bytes -= len(known[1])

    def read(self, entry: Entry) -> bytes:
        """Returns an encoded record. OSError, or MalformedError if the file is damaged."""
        waiting = self._grown.get(entry.head) or self._waiting.get(entry.head)
        return read_digested(self.path_of(entry)) if waiting is None else waiting[1]

    def drop(self, head: Digest) -> None:
        """Forgets a record that waits. Its file, if it has one, stays."""
        self._waiting.pop(head, None)
        self._ungrown(head)

    def remove(self, entry: Entry) -> None:
        """Forgets a record, on disk too."""
        self.drop(entry.head)
        remove_quietly(self.path_of(entry))

    def write_waiting(self) -> None:
        """Writes the records that wait. `problem` says what went wrong."""
        try:
            self._check_place()
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

    def write_grown(self, adding: threading.Lock) -> None:
        """Writes the records with further votes. A disk that does not take one keeps the earlier
        record, and the votes stay in memory.

        Args:
            adding: the lock under which all else here is called. It is held for moments.
        """
        with adding:  # the event loop may take another record meanwhile
            all_grown = list(self._grown.items())
        for head, grown in all_grown:
            path, record = grown
            folder, _, name = path.rpartition("/")
            temporary = Path(folder, f".{name}.grown")
            try:
                self._check_place()
                temporary.write_bytes(digest_of(record) + record)
                sync_files([temporary])
                with adding:
                    if self._grown.get(head) is grown:  # nor forgotten, nor with still more votes
                        os.replace(temporary, path)
                        self._ungrown(head)
            except (OSError, DiskError) as error:
                log.debug("further votes of a round are in memory only", problem=str(error))
                return
            finally:
                remove_quietly(temporary)


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


def tell_damaged(found: Iterable[tuple[Path, Exception] | None]) -> None:
    """Logs the files that the chain could not read, in one line: a bad disk has many."""
    damaged = [each for each in found if each is not None]
    if damaged:
        path, error = damaged[0]
        log.warning(
            "committed headers on disk are damaged and left out: check the disk. Peers that have "
            "them bring them; without such a peer a back-up of this folder does",
            headers=len(damaged),
            first_file=str(path),
            first_error=str(error),
        )


class FurtherVotes:
    """Votes that this node hears of rounds whose records it has, until they are in these records.
    The event loop adds them, checked, and a thread takes them.

    A record has as many votes as its author needed when it committed. The others are heard a moment
    later. They belong into the record: a node that is started again, and one that comes back and
    learns the rounds from this one, would otherwise know fewer signers of them.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._votes: dict[Digest, dict[str, Signed]] = {}

    def add(self, head: Digest, signed: Signed) -> None:
        """Takes a checked vote of a member of a round."""
        with self._changing:
            self._votes.setdefault(head, {})[signed.author] = signed
            if len(self._votes) > VOTED_ROUNDS_MAX:
                del self._votes[next(iter(self._votes))]

    def take(self, but: Digest | None) -> dict[Digest, tuple[Signed, ...]]:
        """Returns the votes by round. They are forgotten here, but those of one round."""
        with self._changing:
            taken = {head: votes for head, votes in self._votes.items() if head != but}
            self._votes = {head: votes for head, votes in self._votes.items() if head == but}
        return {head: tuple(votes.values()) for head, votes in taken.items()}
