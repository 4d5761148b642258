"""The committed state of the run: parameters, momentum, ledger and head, in memory and on disk.

`state_on_disk` has the order in which it is written.

All changes of the state are synchronous and may take long with large models, so callers use a
thread. Several threads may come at once: the driver of a ring that was left may still take its
outer step while rounds of others are replayed. The lock of the state lets one of them work at a
time. An outer step is dropped if its round was left or its parent is not the head any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from gossamer.node.network.identity import verify
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.state.next_state import NextState, ring_rules_of
from gossamer.node.storage.state.state_blocks import (
    CannotRebuildError,
    StateBlocks,
    StateVectors,
    WholeState,
)
from gossamer.node.storage.state.state_on_disk import StateOnDisk
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.accounting.ledger import Ledger, apply_spans
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, short
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.rounds.commit import Parent, Proposal
from gossamer.protocol.rounds.commit_proof import check_averages, open_ring
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.rounds.ring.ring_signatures import MemberSignatures
from gossamer.protocol.standing import Standing
from gossamer.protocol.state.chain import Commit, Header, Member, UpdateIndex, decode_header
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, StateIndex, index_of
from gossamer.protocol.state.outer_momentum import OuterRates
from gossamer.protocol.state.run_end import RunEnd

log = structlog.get_logger("state")


@dataclass(frozen=True)
class Replayed:
    """A committed round that was applied from its blocks."""

    header: Header
    update: UpdateIndex


class CommittedState:
    """Holds the state of `head`.

    Methods that change the state wait for the lock of the state, so call them in a thread. The
    event loop reads single attributes, each of which is replaced at once.

    It has more than 15 public methods and 12 attributes: all that changes the state takes the one
    lock here, and what is read without it is an attribute of its own.
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
            base: (num_parameters,), the vector that the trainer reads: the committed parameters,
                or with shared steps those of the newest step.
            clock: local seconds, for the age of checkpoints.
        """
        self._changing = threading.RLock()
        """Lock that the thread holds which writes the vectors, those of the next state included."""
        self._read_only = read_only
        self._manifest = manifest
        self.end = RunEnd(manifest.model, manifest.inner, manifest.outer)
        self.chain = chain
        self._rounds = KnownRounds(chain)
        """Has the newest rounds in memory: with a probation, a state follows from their records
        too, and a record that the disk does not give just now would lead to another state."""
        self.plan = ChunkPlan(manifest.model.num_parameters, manifest.outer.chunk_elements)
        """The chunks of the state's blocks."""
        self._next = NextState(manifest, self.plan, base)
        self.sync_sets, self.payloads = self._next.sync_sets, self._next.payloads
        self.ring_rules = ring_rules_of(manifest, self.payloads)
        """The values that the manifest demands of every roster."""
        self.shared_parameters = self._next.shared_parameters
        """The parameters between two commits; None without shared steps."""
        has_shared_steps = self.shared_parameters is not None
        self.blocks = StateBlocks(
            store, chain, self.plan, self.sync_sets, may_lack=has_shared_steps
        )
        self.parameters = np.zeros_like(base) if has_shared_steps else base
        self.momentum: FloatVector = np.zeros_like(base)
        self.index: StateIndex | None = None
        self.head = chain.genesis
        self.ledger = Ledger()
        self._disk = StateOnDisk(self.blocks, store, chain, state_dir, clock)
        self.is_loaded = False
        self.tuned: OuterRates | None = None
        """Of the newest round of this life, see `NextState.tuned`."""

    @property
    def begins_with_drawn_weights(self) -> bool:
        """Whether every peer can draw the first state from the run's seed. Otherwise its blocks
        come from the founder."""
        model = self._manifest.model
        return bool(model.lora) or not model.imported

    @property
    def is_finished(self) -> bool:
        """Whether no round follows the committed head."""
        entry = self.entry
        return self.is_loaded and self.end.is_over_after(entry.round, entry.tokens_total)

    def has_other_ring(self, number: int, ring_id: Digest) -> bool:
        """Returns whether a committed round is known to be another ring's."""
        return self._rounds.ring_of(number, self.head) not in (b"", ring_id)

    @property
    def entry(self) -> Entry:
        return self.chain.entry(self.head)

    @property
    def newest_credits(self) -> Mapping[PeerId, int]:
        """The tokens of each contributor of the committed round; none at the run's first state, and
        where the record of the round cannot be read."""
        return self._rounds.credits_of(self.head) if self.entry.round else {}

    @property
    def parent(self) -> Parent:
        """The start of the next round."""
        entry = self.entry
        return Parent(entry.head, entry.round, entry.tokens_total, self.ledger)

    @property
    def checkpoint_round(self) -> int:
        checkpoints = self.checkpoints
        return checkpoints[-1].round if checkpoints else 0

    @property
    def checkpoints(self) -> tuple[Entry, ...]:
        """The checkpoints that are kept, see `Retention.checkpoints`."""
        return self._disk.retention.checkpoints

    # The outer step

    def compute(
        self,
        parent: Digest,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Digest | None:
        """Takes the outer step from `parent`, see `NextState.compute`.

        Args:
            is_wanted: asked in this thread once it holds the lock; False drops the step.

        Returns:
            The state digest; None for a step that was dropped, because it is not wanted any more
            or `parent` is not the committed head any more.
        """
        with self._changing:
            if self.head != parent or not is_wanted():
                return None
            return self._compute(averages, masks, members)

    def _compute(
        self, averages: Sequence[Payload], masks: Sequence[int], members: Sequence[Member]
    ) -> Digest:
        number = self.entry.round + 1
        standing = self._standing_of([PeerId(member.peer_id) for member in members])
        return self._next.compute(self._present, number, averages, masks, members, standing).digest

    def _standing_of(self, members: Sequence[PeerId]) -> Standing | None:
        """The standing of a ring's members after the present head; None without a probation."""
        needed = self._manifest.rounds.probation
        if not needed:
            return None
        return self._rounds.standing_of(members, self.head, needed)

    @property
    def _whole(self) -> WholeState:
        return WholeState(self.entry, self._present, self.ledger)

    @property
    def _present(self) -> StateVectors:
        return StateVectors(self.parameters, self.momentum, self.index)

    def install(self, commit: Commit, proposal: Proposal, averages: Sequence[Payload]) -> None:
        """Makes the computed state the committed one, in memory and on disk.

        The outer step is computed again if another one was computed since. A failing disk
        does not undo the commit: the disk's health says so, and the next commit tries to bring all
        of the state to disk again.
        """
        header, update = proposal.header, proposal.update
        with self._changing:
            assert header.parent == self.head
            index = self._next.index
            if index is None or index.digest != header.state_digest:
                masks = [average.mask() for average in update.averages]
                self._compute(averages, masks, header.members)
            self._apply(commit, header, update, proposal.ledger, averages)

    # Shared steps

    def begin_steps(self, round_number: int, members: Sequence[PeerId] = ()) -> None:
        """Begins the shared steps of a round at the committed parameters.

        Args:
            members: of the ring that takes them, by ring position; none before there is a ring.
        """
        assert self.shared_parameters is not None
        with self._changing:
            standing = self._standing_of(members) if members else None
            self.shared_parameters.begin(round_number, self.parameters, standing)

    def take_step(self, round_number: int, chunk: int, average: Payload) -> None:
        """Takes a shared step of a round, or a part, see `SharedParameters.take`.
        MalformedError."""
        assert self.shared_parameters is not None
        with self._changing:
            self.shared_parameters.take(round_number, chunk, average)

    def _apply(
        self,
        commit: Commit,
        header: Header,
        update: UpdateIndex,
        ledger: Ledger,
        averages: Sequence[Payload],
    ) -> None:
        """Makes the next state the present one and writes it to disk, as far as the rules say.

        Args:
            averages: the averaged chunks that are not in the store yet.
        """
        index = self._next.index
        assert index is not None
        assert index.digest == header.state_digest
        head = digest_of(commit.header)
        self._rounds.remember(head, commit, header)
        if self._read_only:
            self._become_next(head, ledger)
            return
        problem = self._disk.write_averages(head, header, update, averages)
        self.chain.add(commit, header)
        self._become_next(head, ledger)
        is_due = header.round % self._manifest.rounds.checkpoint_rounds == 0
        self._disk.end_round(problem or self.chain.problem, self._whole, is_due=is_due)

    def keep_head(self) -> None:
        """Writes the head of a state that was loaded as a whole, so that the next life begins with
        it. A disk that does not take it does not end the node."""
        with self._changing:
            self._disk.keep_head(self.head)

    def _become_next(self, head: Digest, ledger: Ledger) -> None:
        self.index = self._next.apply(self._present)
        self.tuned = self._next.tuned
        if self.tuned is not None and self.tuned.scale < 1.0:
            log.warning(
                "a round's average was far longer than its members' own work, and is cut to it",
                factor=self.tuned.scale,
            )
        self.ledger = ledger
        self.head = head

    def checkpoint(self) -> None:
        """Writes the whole state as blocks, and what the disk has not taken before. DiskError
        leaves the older checkpoints as they are."""
        with self._changing:
            self._disk.write_whole(self._whole)

    def write_missing(self) -> None:
        """Writes what the disk has not taken before. DiskError."""
        with self._changing:
            self._disk.write_missing(self._whole)

    @property
    def is_on_disk(self) -> bool:
        """Returns whether the disk has taken the present state, and all records."""
        return self._disk.is_whole and self.chain.problem is None

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
            entry, vectors = (
                self.chain.entry(self.chain.genesis),
                StateVectors(parameters, momentum, index),
            )
            self._become(WholeState(entry, vectors, Ledger()))
            self._disk.begin(self._whole)

    def _become(self, state: WholeState) -> None:
        np.copyto(self.parameters, state.vectors.parameters)
        np.copyto(self.momentum, state.vectors.momentum)
        self._next.begin_anew(self.parameters)
        self.index, self.ledger, self.head = state.vectors.index, state.ledger, state.entry.head
        self.tuned = None
        self.is_loaded = True
        if self._manifest.rounds.probation:
            for head in self._rounds.newest(self.head):
                self._rounds.credits_of(head)

    def load_checkpoint(self, head: Digest) -> None:
        """Reads the state of a head from its blocks and makes it the present one.

        Raises:
            CannotRebuildError: a block is missing or damaged, or the head was forgotten meanwhile.
                The present state is unchanged.
        """
        with self._changing:
            entry = self.blocks.entry(head)
            self._next.forget()
            momentum = np.empty_like(self.momentum)
            self._become(self.blocks.read_state(entry, self._next.spare, momentum))
            self._disk.found_checkpoint(self._whole)

    def replay(self, head: Digest) -> Replayed:
        """Applies the committed round `head`, a child of the present head, from its blocks.

        Raises:
            CannotRebuildError: a block is missing or damaged, or the result is not the state that
                the header names: the header lies, or this machine computes wrongly.
        """
        with self._changing:
            commit = self.blocks.commit(head)
            header = decode_header(commit.header)
            assert header.parent == self.head
            update = self.blocks.update_index(header)
            averages = self.blocks.read_update(header, update)
            masks = [average.mask() for average in update.averages]
            try:
                # The signatures were checked when the record was taken.
                ring = open_ring(commit, self._manifest.run_id, lambda *_: True, self.ring_rules)
                plan = self.sync_sets.of_round(header.round).plan
                signed = MemberSignatures(self._manifest.run_id, ring, verify)
                check_averages(header, ring, self.payloads, plan, averages, masks, signed)
                state_digest = self._compute(averages, masks, header.members)
            except RemoteProtocolError as error:
                raise CannotRebuildError(f"round {header.round}: {error}") from error
            ledger = apply_spans(self.ledger, header.spans)
            if state_digest != header.state_digest or ledger.digest != header.ledger_digest:
                raise CannotRebuildError(
                    f"round {header.round} leads to state {short(state_digest)}, and its header "
                    f"says {short(header.state_digest)}"
                )
            self._apply(commit, header, update, ledger, ())
            return Replayed(header, update)

    def head_on_disk(self) -> Digest | None:
        """Reads the head that was written last; None if there is none or its file is damaged."""
        return self._disk.head_on_disk()

    def keep_older(self, heads: Sequence[Digest]) -> None:
        """Keeps averages and a checkpoint of an earlier life for peers that are behind.

        Args:
            heads: the newest first. They are kept up to the first one that has a checkpoint here.
        """
        with self._changing:
            self._disk.keep_older(heads)
