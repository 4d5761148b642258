"""Data that the founder adds to the run while it goes on: on this disk, and among the peers.

The founder's node cuts its corpus piece by piece (`runs.founding.cutting`), and signs what it has
added so far (`wire.statements.MoreData`). Gossip brings the statement to the others. Each node
fetches the list of the parts, which is a block, and the index of each part that it lacks. It
appends them to its `RunData` in their order, and keeps the newest statement for the rest of the
run, over restarts:

    more_data     the signed statement

A statement whose blocks cannot be had changes nothing: a node trains on the data that it knows. No
rule of the chain depends on how many parts a node knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import trio

from gossamer.node.base.disk_health import DiskError, DiskHealth, write_atomically
from gossamer.node.base.threads import RunInThread
from gossamer.node.network.identity import verify
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.storage.block_files import BlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.data_parts import PartList, decode_part, decode_parts
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.wire.envelopes import decode_signed, open_signed
from gossamer.protocol.wire.statements import MoreData, Signed, version_of

RETRY_SECONDS = 5.0
"""Pause between attempts to get the blocks of a statement. Their author has them, and may be away;
the node trains on what it has meanwhile."""

FETCHED_TOGETHER = 16
"""Indexes of parts in one fetch: 16 times 45 bytes a shard, some hundred kilobytes."""

_FILE_BYTES_MAX = 1024
"""A signed statement has some 200 bytes."""

_PIN = "data parts"

log = structlog.get_logger("data")


class MoreDataFile:
    """The newest statement, in one state directory."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._path = root / "more_data"
        self._manifest = manifest

    def write(self, signed: Signed) -> None:
        """Keeps a statement in place of the one before. Raises DiskError."""
        write_atomically(self._path, to_msgpack(signed))

    def read(self) -> tuple[Signed, MoreData] | None:
        """Returns the statement, checked as if a peer had brought it; None if there is none.

        Raises:
            OSError, RemoteProtocolError: the file cannot be read, or is nothing that the founder of
                the run could have signed.
        """
        data = read_bounded(self._path, _FILE_BYTES_MAX)
        if data is None:
            return None
        signed = decode_signed(data)
        statement = open_signed(signed, self._manifest.run_id, verify)
        if not isinstance(statement, MoreData) or signed.author != self._manifest.founder:
            raise ForgedError("it is no word on added data by the founder of the run")
        return signed, statement


class AddedData:
    """The parts that were added to the run, as far as this node knows.

    It has more than 12 attributes: a statement is heard, fetched, added and written, and each step
    says how far it has come.
    """

    def __init__(
        self,
        manifest: Manifest,
        file: MoreDataFile,
        store: BlockStore,
        blocks: BlockService,
        sources: Callable[[], Sequence[PeerId]],
        health: DiskHealth,
    ) -> None:
        """`sources`: gives the peers that may be asked for blocks."""
        self._manifest = manifest
        self._file = file
        self._store = store
        self._blocks = blocks
        self._sources = sources
        self._health = health
        self._data: RunData | None = None
        self._newest: tuple[Signed, MoreData] | None = None
        self._has_news = trio.Event()
        self._has_grown = trio.Event()
        self._added: MoreData | None = None
        """The statement whose parts are all in the data."""
        self._refused: MoreData | None = None
        """A statement whose blocks are no parts of this run."""
        self._written: Signed | None = None

    @property
    def newest(self) -> MoreData | None:
        """The newest statement of the founder that was heard."""
        return None if self._newest is None else self._newest[1]

    def heard(self, signed: Signed, statement: MoreData) -> bool:
        """Takes a checked statement of the founder. Returns whether it is the newest one."""
        newest = self.newest
        if newest is not None and version_of(statement) <= version_of(newest):
            return False
        self._newest = signed, statement
        self._has_news.set()
        return True

    def load(self, data: RunData) -> None:
        """Appends to `data` what this node had in its last life, before it begins.

        What it lacks of that, and all that it hears, `run` appends.
        """
        self._data = data
        try:
            found = self._file.read()
        except (OSError, RemoteProtocolError) as error:
            log.warning("the word on added data on disk is left out", error=str(error))
            return
        if found is None:
            return
        self._written = found[0]
        self.heard(*found)
        statement = self.newest
        assert statement is not None
        digest = Digest(statement.parts_digest)
        if self._store.has(digest):
            self._pin([digest])
            try:
                self._append(statement)
            except BlockError as error:
                log.debug("added data are not here yet", error=str(error))
            except RemoteProtocolError as error:
                self._refuse(statement, str(error))

    async def run(
        self, gossip: Gossip, notify: Callable[[], None], run_in_thread: RunInThread
    ) -> None:
        """Appends what was heard, keeps it, and tells other peers, until cancelled.

        Args:
            notify: is called when there are more data.
        """
        while True:
            if self._newest is not None:
                newest = self._newest
                if self._written != newest[0]:  # first: a founder says nothing that it forgets
                    await run_in_thread(lambda newest=newest: self._write(newest[0]))  # type: ignore[misc]
                gossip.keep_posted(*newest)
                before = self._num_parts
                await self._add(newest[1])
                if self._num_parts > before:
                    self._has_grown.set()
                    self._has_grown = trio.Event()
                    notify()
            with trio.move_on_after(RETRY_SECONDS):
                await self._has_news.wait()
            self._has_news = trio.Event()

    async def wait_for_parts(self, num_parts: int) -> None:
        """Waits until so many parts are in the data."""
        while self._num_parts < num_parts:
            await self._has_grown.wait()

    @property
    def _num_parts(self) -> int:
        return 0 if self._data is None else len(self._data.parts.parts)

    def _write(self, signed: Signed) -> None:
        """Keeps a statement; in a thread."""
        with self._health.writing("more_data"):
            self._file.write(signed)
            self._written = signed

    async def _add(self, statement: MoreData) -> None:
        """Fetches the parts of a statement and appends them, as far as they can be had now."""
        if statement in (self._added, self._refused):
            return
        digest = Digest(statement.parts_digest)
        try:
            self._pin([digest])
            await self._fetch([digest])
            parts = decode_parts(self._store.get(digest))
            digests = _indexes(parts)
            self._pin([digest, *digests])
            for first in range(0, len(digests), FETCHED_TOGETHER):
                await self._fetch(digests[first : first + FETCHED_TOGETHER])
            self._append(statement)
        except (FetchError, DiskError, BlockError) as error:
            log.debug("added data cannot be had yet", error=str(error))
        except RemoteProtocolError as error:
            self._refuse(statement, str(error))

    async def _fetch(self, digests: Sequence[Digest]) -> None:
        await self._blocks.fetch_checked(digests, self._sources, passes=1)

    def _append(self, statement: MoreData) -> None:
        """Appends the parts of a statement whose blocks are here.

        Raises:
            BlockError: a block is not here.
            RemoteProtocolError: they are no parts of this run.
        """
        data = self._data
        assert data is not None
        parts = decode_parts(self._store.get(Digest(statement.parts_digest)))
        if (len(parts.parts), parts.num_tokens) != (statement.number, statement.num_tokens):
            raise MalformedError("the list of parts does not fit the founder's statement")
        if not parts.continues(data.parts):
            raise MalformedError("it changes parts that were added before")
        self._pin([Digest(statement.parts_digest), *_indexes(parts)])
        for part in parts.parts[len(data.parts.parts) :]:
            index = decode_part(self._store.get(Digest(part.index_digest)), part)
            data.add(part, index.shards, data.shards_each(self._manifest, part))
        data.expected_tokens = max(
            data.num_tokens, self._manifest.data.num_tokens + statement.expected_tokens
        )
        self._added = statement
        log.info(
            "the founder has added data to the run",
            parts=statement.number,
            tokens=data.num_tokens,
            expected_tokens=data.expected_tokens,
            shards=len(data.shards),
        )

    def _refuse(self, statement: MoreData, reason: str) -> None:
        self._refused = statement
        log.warning(
            "data that the founder added are left out; this node trains on what it had",
            number=statement.number,
            reason=reason,
        )

    def _pin(self, digests: Sequence[Digest]) -> None:
        """Keeps these blocks, and those of the parts that are in the data already."""
        known = () if self._data is None else _indexes(self._data.parts)
        self._store.pin(_PIN, list(dict.fromkeys((*known, *digests))))


def _indexes(parts: PartList) -> list[Digest]:
    return [Digest(part.index_digest) for part in parts.parts]
