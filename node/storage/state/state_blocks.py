"""The blocks of committed states and of the rounds between them: which they are, and their content.

    state of a head     parameters and momentum in chunks, the ledger, and the index of all of them
    update of a round   the averaged chunks, and the index of these

A commit record names the two indices and the ledger by digest. An index names the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog

from gossamer.node.base.threads import map_pieces, num_piece_threads
from gossamer.node.storage.block_files import BlockError, CorruptBlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.protocol.accounting.ledger import Ledger, decode_ledger
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, short
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.state.chain import (
    ChunkAverage,
    Commit,
    Header,
    UpdateIndex,
    decode_header,
    decode_update_index,
)
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, StateIndex, chunk_bytes, decode_state_index
from gossamer.protocol.state.sync_sets import SyncSets

_WAY_PIN = "way to a head"

log = structlog.get_logger("state")


class CannotRebuildError(Exception):
    """Blocks of the wanted state are missing or damaged here. Other peers may have them."""


class DamagedBlocksError(CannotRebuildError):
    """This disk lost or damaged a block. The block counts as missing now, so it can be fetched."""


def _cannot_rebuild(what: str, error: Exception) -> CannotRebuildError:
    kind = DamagedBlocksError if isinstance(error, BlockError) else CannotRebuildError
    return kind(f"{what}: {error}")


@dataclass(frozen=True)
class StateVectors:
    """Parameters and outer momentum, each (num_parameters,), and the digests of their blocks."""

    parameters: FloatVector
    momentum: FloatVector
    index: StateIndex | None
    """Digests of the blocks; None if the vectors are no state yet."""


class WholeState(NamedTuple):
    """The state of a committed round, as it is on disk."""

    entry: Entry
    vectors: StateVectors
    ledger: Ledger

    @property
    def digests(self) -> list[Digest]:
        """The digests of all its blocks, its index included."""
        assert self.vectors.index is not None
        return _state_digests(self.entry, self.vectors.index, self.ledger.digest)


class StateBlocks:
    """Reads and writes the blocks of states and updates. Every call may touch the disk.

    It has more than 15 public methods: states, updates and their parts are each named, found, read
    and written.
    """

    def __init__(
        self,
        store: BlockStore,
        chain: ChainStore,
        plan: ChunkPlan,
        sync_sets: SyncSets,
        *,
        may_lack: bool,
    ) -> None:
        """
        Args:
            plan: of the state's chunks.
            may_lack: whether a round may have chunks without an average, as with shared steps.
        """
        self._store = store
        self._chain = chain
        self.plan = plan
        self._sync_sets = sync_sets
        self._may_lack = may_lack
        self._held: list[Digest] = []

    # Names

    def entry(self, head: Digest) -> Entry:
        """Returns the entry of a head. CannotRebuildError: it was forgotten meanwhile."""
        try:
            return self._chain.entry(head)
        except KeyError:
            raise CannotRebuildError(f"head {short(head)} is not known any more") from None

    def way(self, base: Digest, head: Digest) -> list[Digest]:
        """Returns the heads after one head up to another one, oldest first. CannotRebuildError:
        the way between was forgotten meanwhile."""
        way = self._chain.path_between(base, head)
        if way is None:
            raise CannotRebuildError(f"the way to {short(head)} is not known any more")
        return way

    def commit(self, head: Digest) -> Commit:
        """Returns the commit record of a head.

        Raises:
            CannotRebuildError: its file is damaged or gone, or the head was forgotten meanwhile.
        """
        try:
            return self._chain.commit(head)
        except (KeyError, OSError, RemoteProtocolError) as error:
            raise CannotRebuildError(f"header {short(head)}: {error}") from error

    def header(self, head: Digest) -> Header:
        """Returns the header of a head, with the error of `commit`."""
        return decode_header(self.commit(head).header)

    def of_state(self, head: Digest) -> list[Digest]:
        """Returns the digests of all blocks of a head's state, its index included.

        Raises:
            CannotRebuildError: the index is not here or damaged, or the head was forgotten.
        """
        entry = self.entry(head)
        return _state_digests(entry, self._state_index(entry), self._ledger_digest(entry))

    def of_update(self, head: Digest) -> list[Digest]:
        """Returns the digests of a round's averaged chunks.

        Raises:
            CannotRebuildError: the index is not here or damaged.
        """
        return [Digest(average.digest) for average in self.update_index(self.header(head)).averages]

    def has_state(self, head: Digest) -> bool:
        """Returns whether every block of this head's state is here."""
        try:
            return not self._store.missing(self.of_state(head))
        except CannotRebuildError as error:
            if isinstance(error.__cause__, CorruptBlockError):
                log.warning("a checkpoint on disk is of no use", problem=str(error))
            return False

    def has_averages(self, head: Digest) -> bool:
        """Returns whether every averaged chunk of this round is here."""
        try:
            return not self._store.missing(self.of_update(head))
        except CannotRebuildError:
            return False

    def _ledger_digest(self, entry: Entry) -> Digest | None:
        return None if entry.round == 0 else Digest(self.header(entry.head).ledger_digest)

    # States

    def _state_index(self, entry: Entry) -> StateIndex:
        """Reads the index of a head's state. Raises CannotRebuildError."""
        try:
            return decode_state_index(self._store.get(entry.state_digest), self.plan)
        except (BlockError, RemoteProtocolError) as error:
            raise _cannot_rebuild(f"state of round {entry.round}", error) from error

    def read_state(
        self, entry: Entry, parameters: FloatVector, momentum: FloatVector
    ) -> WholeState:
        """Reads a head's state into two vectors, each (num_parameters,).

        Raises:
            CannotRebuildError: a block is missing or damaged. The vectors hold a part of the state.
        """
        index, ledger = self._state_index(entry), Ledger()
        try:
            if (ledger_digest := self._ledger_digest(entry)) is not None:
                ledger = decode_ledger(self._store.get(ledger_digest))
            for vector, digests in ((parameters, index.parameters), (momentum, index.momentum)):
                for chunk, digest in enumerate(digests):
                    values = np.frombuffer(self._store.get(Digest(digest)), dtype="<f4")
                    part = vector[self.plan.range_of(chunk)]
                    if values.size != part.size:  # one value would fill the chunk
                        raise MalformedError(f"a chunk of {values.size} values, not {part.size}")
                    part[:] = values
        except (BlockError, RemoteProtocolError, ValueError) as error:
            raise _cannot_rebuild(f"state of round {entry.round}", error) from error
        return WholeState(entry, StateVectors(parameters, momentum, index), ledger)

    # Updates

    def update_index(self, header: Header) -> UpdateIndex:
        """Reads the index of a round's averaged chunks. Raises CannotRebuildError."""
        try:
            data = self._store.get(Digest(header.update_digest))
            return decode_update_index(
                data,
                self._sync_sets.of_round(header.round).plan.num_chunks,
                len(header.members),
                may_lack=self._may_lack,
            )
        except (BlockError, RemoteProtocolError) as error:
            raise _cannot_rebuild(f"averages of round {header.round}", error) from error

    def read_update(self, header: Header, update: UpdateIndex) -> list[bytes]:
        """Reads the averaged chunks of a round. Raises CannotRebuildError."""
        return [self.read_average(header, average) for average in update.averages]

    def read_average(self, header: Header, average: ChunkAverage) -> bytes:
        """Reads one averaged chunk of a round. Raises CannotRebuildError."""
        try:
            return self._store.get(Digest(average.digest))
        except BlockError as error:
            raise _cannot_rebuild(f"round {header.round}", error) from error

    def write_update(self, update: UpdateIndex, averages: Sequence[Payload]) -> None:
        """Writes the index of a round and the averaged chunks that are given. Raises DiskError.

        Args:
            averages: of the first chunks, in order; none if all are here.
        """
        for payload, average in zip(averages, update.averages, strict=False):
            self._store.put(payload, expected=Digest(average.digest))
        self._store.put(to_msgpack(update))

    # Blocks that are damaged or fetched

    def remove_damaged(self, state: Digest | None, steps: Sequence[Digest]) -> None:
        """Reads what is here of a state and of the averages of some rounds. Blocks that the disk
        damaged are removed.

        A damaged index is removed as well. What it names is read only when the index is back.

        Args:
            state: the head whose state is read; None for none.
            steps: the heads of the rounds.
        """
        if state is not None:
            self._check_each(self.of_state, state)
        for step in steps:
            self._check_each(self.of_update, step)

    def _check_each(self, blocks_of: Callable[[Digest], list[Digest]], head: Digest) -> None:
        with contextlib.suppress(CannotRebuildError):
            for digest in blocks_of(head):
                with contextlib.suppress(BlockError):
                    self._store.check(digest)

    def hold(self, digests: Sequence[Digest]) -> None:
        """Keeps blocks that are fetched for a state which is being taken over, until `release`."""
        self._held += digests
        self._store.pin(_WAY_PIN, self._held)

    def release(self) -> None:
        """Allows the eviction of the held blocks, except of those that the state needs."""
        self._held = []
        self._store.unpin(_WAY_PIN)


def _state_digests(entry: Entry, index: StateIndex, ledger: Digest | None) -> list[Digest]:
    """Returns the digests of all blocks of a state, its index included. `ledger`: its digest; None
    for the run's first state, which has none."""
    digests = [entry.state_digest, *(Digest(d) for d in (*index.parameters, *index.momentum))]
    return digests if ledger is None else [*digests, ledger]


def update_digests(header: Header, update: UpdateIndex) -> list[Digest]:
    """Returns the digests of all blocks of a round, the index included."""
    return [Digest(header.update_digest), *(Digest(a.digest) for a in update.averages)]


def write_state(store: BlockStore, plan: ChunkPlan, vectors: StateVectors, ledger: Ledger) -> None:
    """Writes the blocks of a state that are not in the store yet, in threads. Raises DiskError."""
    index = vectors.index
    assert index is not None
    both = ((vectors.parameters, index.parameters), (vectors.momentum, index.momentum))

    def write(chunk: int) -> None:
        for vector, digests in both:
            digest = Digest(digests[chunk])
            if not store.has(digest):
                store.put(chunk_bytes(vector, plan, chunk), expected=digest)

    for _ in map_pieces(write, range(plan.num_chunks), num_piece_threads(vectors.parameters.size)):
        pass
    store.put(to_msgpack(ledger))
    store.put(to_msgpack(index))
