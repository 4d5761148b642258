"""The committed state on disk: the order in which it is written, and what of the past is kept.

On disk the state is a *checkpoint* of some round, that is all its blocks, and the averaged chunks
of the rounds after it. A block is named by its digest. So a checkpoint is complete exactly if every
block of its index is here, and no other mark of that could be wrong. The order of writing is:
averaged chunks, commit record, checkpoint if one is due, then the `head` file. A process that is
killed in between finds the newest head that it can rebuild at its next start.

`retention` says how long older blocks are kept, for newcomers and for peers that are behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from gossamer.node.base.disk_health import DiskError, write_atomically
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.node.storage.state.retention import Retention
from gossamer.node.storage.state.state_blocks import (
    CannotRebuildError,
    StateBlocks,
    WholeState,
    update_digests,
    write_state,
)
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.state.chain import Header, UpdateIndex

log = structlog.get_logger("state")


class StateOnDisk:
    """Writes the state as far as the rules say, and knows whether all of it is on disk.

    Changed by one thread at a time: the lock is the committed state's.
    """

    def __init__(
        self,
        blocks: StateBlocks,
        store: BlockStore,
        chain: ChainStore,
        state_dir: StateDir,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: local seconds."""
        self._blocks = blocks
        self._store = store
        self._chain = chain
        self._state_dir = state_dir
        self.retention = Retention(store, clock)
        self.is_whole = True
        """Whether everything of the newest state is on disk."""

    def write_averages(
        self, head: Digest, header: Header, update: UpdateIndex, averages: Sequence[Payload]
    ) -> DiskError | None:
        """Writes the averaged chunks of a round, before its record. Returns what went wrong."""
        try:
            self._state_dir.require_ours()
            # They are pinned first, so that blocks which others put meanwhile do not evict them.
            self.retention.add_update(head, header.round, update_digests(header, update))
            self._blocks.write_update(update, averages)
        except DiskError as error:
            return error
        return None

    def end_round(self, problem: DiskError | None, state: WholeState, *, is_due: bool) -> None:
        """Writes what follows the record of a round: a checkpoint if one is due, and the head.

        A disk that fails does not undo the commit: the next round tries to bring all of the state
        to disk again.

        Args:
            problem: with the averages or the record.
        """
        with self._or_in_memory():
            if problem is not None:
                raise problem
            if not self.is_whole:
                self._write_anew(state)
                return
            if is_due:
                self.write_checkpoint(state)
            self._chain.sync(state.entry.head)  # before the head, which is durable, names it
            self._write_head(state.entry.head)

    def write_whole(self, state: WholeState) -> None:
        """Writes a checkpoint, and what the disk has not taken before. DiskError."""
        was_whole = self.is_whole
        self.write_missing(state)
        if was_whole:
            self.write_checkpoint(state)

    def write_missing(self, state: WholeState) -> None:
        """Writes what the disk has not taken before. DiskError."""
        if problem := self._chain.write_waiting():
            raise problem
        if not self.is_whole:
            self._write_anew(state)

    def _write_anew(self, state: WholeState) -> None:
        """Brings all of the state to a disk that did not take some of it. DiskError."""
        # Averages of some rounds may be missing, even some that were here before.
        self._store.forget_lost()
        self.write_checkpoint(state)
        head = state.entry.head
        if head not in (self._chain.genesis, self._chain.root):  # these have no records
            self._chain.sync(head)
            self._write_head(head)
        self.is_whole = True
        self._state_dir.health.wrote("state")

    def begin(self, state: WholeState) -> None:
        """Writes the run's first state. A disk that does not take it does not end the node."""
        with self._or_in_memory():
            self.write_checkpoint(state)

    def write_checkpoint(self, state: WholeState) -> None:
        """Writes all blocks of a state. DiskError leaves the older checkpoints as they are, and no
        block of this one."""
        self._state_dir.require_ours()
        self.retention.hold_checkpoint(state.entry, state.digests)
        try:
            write_state(self._store, self._blocks.plan, state.vectors, state.ledger)
        except DiskError:
            # Its blocks would stay for good, a part of a state at each try, and fill the disk.
            self.retention.give_up_checkpoint(state.entry)
            raise
        self.retention.add_checkpoint(state.entry, self._way_to(state.entry))

    def found_checkpoint(self, state: WholeState) -> None:
        """Keeps a state whose blocks are all here."""
        self.retention.hold_checkpoint(state.entry, state.digests)
        self.retention.add_loaded_checkpoint(state.entry, self._way_to(state.entry))

    def _way_to(self, entry: Entry) -> frozenset[Digest]:
        """The heads on the way to a checkpoint, as far back as one is kept."""
        first = min((each.round for each in self.retention.checkpoints), default=entry.round)
        return frozenset(self._chain.ancestors(entry.head, entry.round - first))

    def keep_older(self, heads: Sequence[Digest]) -> None:
        """See `CommittedState.keep_older`."""
        for head in heads:
            # First: the averages that led to the older checkpoint are not kept.
            if self._blocks.has_state(head):
                entry = self._chain.entry(head)
                self.retention.add_older_checkpoint(entry, self._blocks.of_state(head))
                return
            try:
                header = self._blocks.header(head)
                update = self._blocks.update_index(header)
            except CannotRebuildError:
                return
            self.retention.add_update(head, header.round, update_digests(header, update))

    def keep_head(self, head: Digest) -> None:
        """See `CommittedState.keep_head`."""
        with self._or_in_memory():
            self._write_head(head)

    def head_on_disk(self) -> Digest | None:
        """Reads the head that was written last; None if there is none or its file is damaged."""
        try:
            return self._state_dir.read_head()
        except (OSError, ValueError) as error:
            log.warning("the head file is damaged; the chain is used instead", problem=str(error))
            return None

    def _write_head(self, head: Digest) -> None:
        write_atomically(self._state_dir.head_path, f"{head.hex()}\n".encode())

    @contextmanager
    def _or_in_memory(self) -> Iterator[None]:
        """A DiskError of its block ends no more than the block: the state is in memory only."""
        try:
            yield
        except DiskError as error:
            self.is_whole = False
            self._state_dir.health.failed("state", error)
