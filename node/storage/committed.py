"""The committed state of the run: parameters, momentum, ledger and head, in memory and on disk.

On disk the state is a *checkpoint* (all its blocks) of some round, and the averaged chunks of the
rounds after it. Everything is a block named by its digest, so a checkpoint is complete exactly if
every block of its index is there; there is no other mark that could be wrong. The order of writing
is: averaged chunks, commit record, checkpoint where one is due, then the `head` file. A process
killed in between finds, at its next start, the newest head that it can rebuild.

`retention` says how long older ones are kept, for newcomers and peers that fell behind.

Everything that changes the state is synchronous and may take long for large models, so callers use
a thread. Several threads may come at once: a ring's driver that was left still takes its outer step
while the rounds of others are replayed. One lock of the state lets one of them work at a time. An
outer step whose round was left, or whose parent is not the head any more, is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from gossamer.node.base.disk_health import DiskError, write_atomically
from gossamer.node.storage.blocks import BlockError, BlockStore, CorruptBlockError
from gossamer.node.storage.chain_store import ChainStore, Entry
from gossamer.node.storage.next_state import NextState, StateVectors
from gossamer.node.storage.retention import Retention
from gossamer.node.storage.shared_parameters import SharedParameters
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.accounting.ledger import Ledger, apply_spans, decode_ledger, encode_ledger
from gossamer.protocol.codecs.payloads import SetPayloads, SignPayloads, SumPayloads
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, digest_of, short
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.rounds.proposal import Parent, Proposal
from gossamer.protocol.rounds.ring import Payload
from gossamer.protocol.state.chain import (
    ChunkAverage,
    Commit,
    Header,
    Member,
    UpdateIndex,
    decode_update_index,
    encode_update_index,
)
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import (
    FloatVector,
    StateIndex,
    chunk_bytes,
    decode_state_index,
    encode_state_index,
    index_of,
)
from gossamer.protocol.state.sync_sets import SyncSets

_WAY_PIN = "way to a head"

log = structlog.get_logger("state")


class CannotRebuildError(Exception):
    """Blocks that the wanted state needs are not here (or damaged); others may have them."""


@dataclass(frozen=True)
class Replayed:
    """One committed round whose result was applied from its blocks."""

    header: Header
    update: UpdateIndex


class CommittedState:
    """Holds the state of `head`.

    Methods that change the state wait for the state's lock, so they belong into a thread. The event
    loop reads single attributes, each of which is replaced at once.
    """

    def __init__(
        self,
        manifest: Manifest,
        base: FloatVector,
        store: BlockStore,
        chain: ChainStore,
        state_dir: StateDir,
        *,
        read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            base: (num_parameters,), what the trainer works from: the committed parameters, or with
                shared steps those of the newest step.
            clock: local seconds; the older checkpoints are kept by it.
        """
        self._changing = threading.RLock()
        """Held by the thread that writes the vectors, the next ones included."""
        self._read_only = read_only
        self._manifest = manifest
        self._store = store
        self.chain = chain
        self._state_dir = state_dir
        self.plan = ChunkPlan(manifest.model.num_parameters, manifest.outer.chunk_elements)
        """Of the state's blocks."""
        self._next = NextState(manifest, self.plan, base)
        self.parameters = base
        if self._next.shared_parameters is not None:
            self.parameters = np.zeros_like(base)
        self.momentum: FloatVector = np.zeros_like(base)
        self.index: StateIndex | None = None
        self.head = chain.genesis
        self.ledger = Ledger()
        self._retention = Retention(store, clock)
        self._held: list[Digest] = []
        self.is_loaded = False
        self.tuned: tuple[float, float] | None = None
        """(learning rate, momentum) that the newest round chose, see `NextState.tuned`; None too
        while there was none in this life."""
        self._is_on_disk = True

    @property
    def sync_sets(self) -> SyncSets:
        return self._next.sync_sets

    @property
    def payloads(self) -> SumPayloads | SetPayloads | SignPayloads:
        return self._next.payloads

    @property
    def shared_parameters(self) -> SharedParameters | None:
        """With shared steps: the parameters between two commits."""
        return self._next.shared_parameters

    @property
    def entry(self) -> Entry:
        return self.chain.entry(self.head)

    @property
    def parent(self) -> Parent:
        """What the next round starts from."""
        entry = self.entry
        return Parent(entry.head, entry.round, entry.tokens_total, self.ledger)

    def newest_ledger(self) -> Ledger:
        """Returns `ledger`, for parts that ask again and again."""
        return self.ledger

    @property
    def checkpoint_round(self) -> int:
        checkpoints = self.checkpoints
        return checkpoints[-1].round if checkpoints else 0

    @property
    def checkpoints(self) -> tuple[Entry, ...]:
        """That are kept, the oldest first."""
        return self._retention.checkpoints

    # The outer step

    def compute(
        self,
        parent: Digest,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Digest | None:
        """Takes the outer step from `parent` into the next vectors, see `NextState.compute`.

        Args:
            is_wanted: asked in this thread when it is its turn; False drops the step.

        Returns:
            The state digest. None for a step that was dropped: it is not wanted any more, or
            `parent` is not the committed head any more.
        """
        with self._changing:
            if self.head != parent or not is_wanted():
                return None
            return self._compute(averages, masks, members)

    def _compute(
        self, averages: Sequence[Payload], masks: Sequence[int], members: Sequence[Member]
    ) -> Digest:
        present = StateVectors(self.parameters, self.momentum, self.index)
        return self._next.compute(present, self.entry.round + 1, averages, masks, members).digest

    def install(self, commit: Commit, proposal: Proposal, averages: Sequence[Payload]) -> None:
        """Makes the computed state the committed one, in memory and on disk.

        The outer step is taken again if the next vectors hold another state by now.

        A disk that does not take it does not undo the commit: the disk's health says so, and the
        next commit tries to bring everything to disk again.
        """
        header, update = proposal.header, proposal.update
        with self._changing:
            assert header.parent == self.head
            index = self._next.vectors.index
            if index is None or index.digest != header.state_digest:
                masks = [average.mask() for average in update.averages]
                self._compute(averages, masks, header.members)
            self._apply(commit, header, update, proposal.ledger, averages)

    # Shared steps

    def begin_steps(self, round_number: int) -> None:
        """The shared steps of a round begin at the committed parameters."""
        assert self.shared_parameters is not None
        with self._changing:
            self.shared_parameters.begin(round_number, self.parameters)

    def take_step(self, round_number: int, step: int, average: Payload) -> None:
        """Takes a shared step of a round, see `SharedParameters.take`. MalformedError."""
        assert self.shared_parameters is not None
        with self._changing:
            self.shared_parameters.take(round_number, step, average)

    def _apply(
        self,
        commit: Commit,
        header: Header,
        update: UpdateIndex,
        ledger: Ledger,
        averages: Sequence[Payload],
    ) -> None:
        """The next buffers become the state; then it goes to disk, as far as the rules say.

        `averages` are the averaged chunks that are not in the store yet.
        """
        index = self._next.vectors.index
        assert index is not None
        assert index.digest == header.state_digest
        head = digest_of(commit.header)
        if self._read_only:
            self._become_next(head, ledger)
            return
        problem: DiskError | None = None
        try:
            self._state_dir.require_ours()
            # Pinned first: what others put into the store meanwhile must not evict them.
            self._retention.add_update(head, header.round, _update_digests(header, update))
            for payload, average in zip(averages, update.averages, strict=False):
                self._store.put(payload, expected=Digest(average.digest))
            self._store.put(encode_update_index(update))
        except DiskError as error:
            problem = error
        self.chain.add(commit, header)
        problem = problem or self.chain.problem
        self._become_next(head, ledger)
        try:
            if problem is not None:
                raise problem
            if not self._is_on_disk:
                # Averages of some round may be missing, also some that were there before.
                self._store.forget_lost()
                self.checkpoint()
            elif header.round % self._manifest.rounds.checkpoint_rounds == 0:
                self.checkpoint()
            write_atomically(self._state_dir.head_path, f"{head.hex()}\n".encode())
        except DiskError as error:
            self._note_in_memory_only(error)
        else:
            self._is_on_disk = True
            self._state_dir.health.wrote("state")

    def _note_in_memory_only(self, error: DiskError) -> None:
        self._is_on_disk = False
        self._state_dir.health.failed("state", error)

    def _become_next(self, head: Digest, ledger: Ledger) -> None:
        new = self._next.vectors
        np.copyto(self.parameters, new.parameters)
        self.momentum, new.momentum = new.momentum, self.momentum
        self.index, new.index = new.index, None
        self.tuned = self._next.tuned
        self.ledger = ledger
        self.head = head

    def checkpoint(self) -> None:
        """Writes the whole state as blocks. Raises DiskError; what was there before stays."""
        with self._changing:
            assert self.index is not None
            self._state_dir.require_ours()
            entry = self.entry
            blocks = _state_digests(entry, self.index, self.ledger)
            self._retention.hold_checkpoint(entry, blocks)
            for vector, digests in (
                (self.parameters, self.index.parameters),
                (self.momentum, self.index.momentum),
            ):
                for chunk, digest in enumerate(digests):
                    if not self._store.has(Digest(digest)):
                        self._store.put(
                            chunk_bytes(vector, self.plan, chunk), expected=Digest(digest)
                        )
            self._store.put(encode_ledger(self.ledger))
            self._store.put(encode_state_index(self.index))
            self._retention.add_checkpoint(entry)

    # Rebuilding

    def set_genesis(self, parameters: FloatVector) -> None:
        """Starts the run's first state from its initial weights.

        Raises:
            ForgedError: they are not the weights that the manifest's genesis digest names.
        """
        with self._changing:
            momentum = np.zeros_like(parameters)
            index = index_of(parameters, momentum, self.plan)
            if index.digest != self._manifest.genesis_digest:
                raise ForgedError("these are not the initial weights of the run")
            self._become(
                self.chain.entry(self.chain.genesis), parameters, momentum, index, Ledger()
            )
            try:
                self.checkpoint()
            except DiskError as error:
                self._note_in_memory_only(error)

    def _become(
        self,
        entry: Entry,
        parameters: FloatVector,
        momentum: FloatVector,
        index: StateIndex,
        ledger: Ledger,
    ) -> None:
        if parameters is not self.parameters:
            np.copyto(self.parameters, parameters)
        if momentum is not self.momentum:
            np.copyto(self.momentum, momentum)
        self.index, self.ledger, self.head = index, ledger, entry.head
        self.tuned = None
        self.is_loaded = True

    def has_checkpoint(self, head: Digest) -> bool:
        """Whether every block of this head's state is here."""
        try:
            return not self._store.missing(self.state_blocks(head))
        except CannotRebuildError as error:
            if isinstance(error.__cause__, CorruptBlockError):
                log.warning("a checkpoint on disk is of no use", problem=str(error))
            return False
        except KeyError:
            return False

    def state_blocks(self, head: Digest) -> list[Digest]:
        """All blocks of a head's state, its index (which must be here) and ledger included."""
        entry = self.chain.entry(head)
        index = self._state_index(entry)
        digests = [Digest(d) for d in (*index.parameters, *index.momentum)]
        ledger = self._ledger_digest(entry)
        return digests if ledger is None else [*digests, ledger]

    def load_checkpoint(self, head: Digest) -> None:
        """Becomes the state of a head from its blocks.

        Raises:
            CannotRebuildError: a block is missing or damaged; the present state is as it was.
        """
        with self._changing:
            entry = self.chain.entry(head)
            index = self._state_index(entry)
            ledger, new = Ledger(), self._next.vectors
            new.index = None  # of what is overwritten now
            try:
                if (ledger_digest := self._ledger_digest(entry)) is not None:
                    ledger = decode_ledger(self._store.get(ledger_digest))
                for vector, digests in (
                    (new.parameters, index.parameters),
                    (new.momentum, index.momentum),
                ):
                    for chunk, digest in enumerate(digests):
                        values = np.frombuffer(self._store.get(Digest(digest)), dtype="<f4")
                        vector[self.plan.range_of(chunk)] = values
            except (BlockError, RemoteProtocolError, ValueError) as error:
                raise CannotRebuildError(f"state of round {entry.round}: {error}") from error
            self._become(entry, new.parameters, new.momentum, index, ledger)
            self._retention.hold_checkpoint(entry, _state_digests(entry, index, ledger))
            self._retention.add_checkpoint(entry)

    def averages_of(self, header: Header) -> tuple[ChunkAverage, ...]:
        """Who is in each average of a committed round. Raises CannotRebuildError."""
        return self._update_index(header).averages

    def update_blocks(self, head: Digest) -> list[Digest]:
        """Blocks of the averaged chunks of a round, whose update index must be here."""
        return [
            Digest(average.digest) for average in self._update_index(self.header(head)).averages
        ]

    def header(self, head: Digest) -> Header:
        """The header of a known head. CannotRebuildError if its file is damaged or gone, or if the
        head was forgotten meanwhile."""
        try:
            return self.chain.header(head)
        except (KeyError, OSError, RemoteProtocolError) as error:
            raise CannotRebuildError(f"header {short(head)}: {error}") from error

    def replay(self, head: Digest) -> Replayed:
        """Applies the committed round `head`, a child of the present head, from its blocks.

        Raises:
            CannotRebuildError: a block is missing or damaged, or the result is not the state that
                the header names (then the header lies, or this machine computes wrongly).
        """
        with self._changing:
            header = self.header(head)
            assert header.parent == self.head
            commit = self.chain.commit(head)
            update = self._update_index(header)
            try:
                averages = [self._store.get(Digest(average.digest)) for average in update.averages]
                masks = [average.mask() for average in update.averages]
                state_digest = self._compute(averages, masks, header.members)
            except (BlockError, RemoteProtocolError) as error:
                raise CannotRebuildError(f"round {header.round}: {error}") from error
            ledger = apply_spans(self.ledger, header.spans)
            if state_digest != header.state_digest or ledger.digest != header.ledger_digest:
                raise CannotRebuildError(
                    f"round {header.round} leads to state {short(state_digest)}, and its header "
                    f"says {short(header.state_digest)}"
                )
            self._apply(commit, header, update, ledger, ())
            return Replayed(header, update)

    def hold(self, digests: Sequence[Digest]) -> None:
        """Keeps what was fetched for a state that is being taken over, until `release`."""
        self._held += digests
        self._store.pin(_WAY_PIN, self._held)

    def release(self) -> None:
        """What `hold` kept and the state did not need may be evicted again."""
        self._held = []
        self._store.unpin(_WAY_PIN)

    def head_on_disk(self) -> Digest | None:
        """The head that was written last; None if there is none, or a damaged one."""
        try:
            written = bytes.fromhex(self._state_dir.head_path.read_text().strip())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("the head file is damaged; the chain tells", problem=str(error))
            return None
        return Digest(written)

    def keep_older(self, heads: Sequence[Digest]) -> None:
        """After a restart: of these heads, the newest first, all up to one that has a checkpoint
        here are held for those who are behind."""
        with self._changing:
            for head in heads:
                try:
                    header = self.header(head)
                    update = self._update_index(header)
                except CannotRebuildError:
                    return
                self._retention.add_update(head, header.round, _update_digests(header, update))
                if self.has_checkpoint(head):
                    entry = self.chain.entry(head)
                    self._retention.add_older_checkpoint(entry, self.state_blocks(head))
                    return

    def _state_index(self, entry: Entry) -> StateIndex:
        try:
            return decode_state_index(self._store.get(entry.state_digest), self.plan)
        except (BlockError, RemoteProtocolError) as error:
            raise CannotRebuildError(f"state of round {entry.round}: {error}") from error

    def _ledger_digest(self, entry: Entry) -> Digest | None:
        return None if entry.round == 0 else Digest(self.header(entry.head).ledger_digest)

    def _update_index(self, header: Header) -> UpdateIndex:
        try:
            data = self._store.get(Digest(header.update_digest))
            return decode_update_index(
                data,
                self.sync_sets.of_round(header.round).plan.num_chunks,
                len(header.members),
                may_lack=self.shared_parameters is not None,
            )
        except (BlockError, RemoteProtocolError) as error:
            raise CannotRebuildError(f"averages of round {header.round}: {error}") from error


def chunks_with(averages: Sequence[ChunkAverage], position: int) -> list[bool]:
    """For each chunk whether the member at a ring position is in its average."""
    return [bool(average.mask() >> position & 1) for average in averages]


def _state_digests(entry: Entry, index: StateIndex, ledger: Ledger) -> list[Digest]:
    digests = [Digest(d) for d in (*index.parameters, *index.momentum)]
    return [entry.state_digest, ledger.digest, *digests]


def _update_digests(header: Header, update: UpdateIndex) -> list[Digest]:
    return [Digest(header.update_digest), *(Digest(f.digest) for f in update.averages)]
