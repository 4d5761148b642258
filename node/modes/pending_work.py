"""Rounds that average work which was finished before the ring: dense and sparse steps, and signed
records of either. They differ in their `MakeContribution` alone.

A round trains, adds the result to `pending`, and hands `pending` to the ring. Work that the ring
did not take stays there and belongs to the next offer.

With `overlap`, the next round's training begins when this round's work is handed to the ring, but
not in the warm-up. The next round takes that training over. If the round ends early, the training
is stopped and its work is carried: there is overlap on the straight way only.

Where a round averages one fragment of the parameters, `pending` keeps the work in the other
fragments until their turn. The trainer then goes on from its local parameters, and the next
training begins at the latest when the round is committed.
"""

from __future__ import annotations

from typing import Protocol

from gossamer.node.modes.sync_mode import (
    Contribution,
    Promise,
    RingDuration,
    RoundOutcome,
    RoundWork,
    Spawn,
    StopSignal,
    SyncMode,
)
from gossamer.node.storage.committed import CommittedState
from gossamer.node.training.local_training import LocalTraining, LocalTrainings
from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.payloads import SetPayloads, SumPayloads
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import RecordTree
from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.ring_parts import SumPart
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.rounds.set_parts import RecordPart, SetPart, tree_of
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.sync_sets import SyncSet
from gossamer.trainer.ipc.messages import Place, Ranges, Shared, Start


class MakeContribution(Protocol):
    """Makes the contribution that takes finished work into a ring. Dense and sparse steps differ in
    this only."""

    def __call__(
        self, pending: FloatVector, plan: ChunkPlan, ring: Ring, me: PeerId, /
    ) -> Contribution:
        """
        Args:
            pending: (plan.num_elements,), the work that the ring averages. The ring only reads it.
            me: a member of the ring.
        """

    def root_of(self, pending: FloatVector, plan: ChunkPlan) -> bytes:
        """The root over the records of some work, for this node's `Ready`. Empty where records are
        not signed.

        Args:
            pending, plan: as above.
        """


class PendingWork:
    """The sync mode of finished work (a `SyncMode`)."""

    def __init__(
        self,
        me: PeerId,
        committed: CommittedState,
        trainings: LocalTrainings,
        make_contribution: MakeContribution,
    ) -> None:
        self.me = me
        self.committed = committed
        self.trainings = trainings
        self.make_contribution = make_contribution
        self.ahead: LocalTraining | None = None
        """The training that began before its round."""

    @property
    def ring_duration(self) -> RingDuration:
        """See `SyncMode`: members have trained before the ring."""
        return RingDuration()

    @property
    def training_since_seconds(self) -> float | None:
        """See `SyncMode`."""
        return None if self.ahead is None else self.ahead.started_seconds

    def new_round(self, machine: Round, sync_set: SyncSet, spawn: Spawn) -> RoundWork:
        """See `SyncMode`. The round takes over the training that is under way."""
        training, self.ahead = self.ahead, None
        return _PendingRound(self, machine, sync_set, spawn, training)

    async def end_training_ahead(self, head: Digest, number: int) -> None:
        """See `SyncMode`."""
        if self.ahead is not None:
            await self.ahead.end(head, number)
            self.ahead = None

    async def place(self) -> Place:
        """See `SyncMode`: the inner optimiser's state fits every head."""
        return Place(self.committed.head, ())


class _PendingRound:
    """One round of finished work (a `RoundWork`)."""

    trains_in_ring = False

    def __init__(
        self,
        mode: PendingWork,
        machine: Round,
        sync_set: SyncSet,
        spawn: Spawn,
        training: LocalTraining | None,
    ) -> None:
        """`training`: this round's, if it is under way."""
        self._mode = mode
        self._trainings = mode.trainings
        self._machine = machine
        self._sync_set = sync_set
        self._spawn = spawn
        self._training = training
        self._may_go_on = True
        """Whether the trainer's local parameters are fit to go on from."""

    def _begin(self, number: int, start: Start, new: Ranges = ()) -> LocalTraining:
        training = self._trainings.begin(number, start, new)
        self._spawn(training.run)
        return training

    async def train(self, stop: StopSignal) -> None:
        """See `RoundWork`. The work is in `pending` afterwards, also after an early stop."""
        machine = self._machine
        training = self._training or self._begin(machine.number, "base")
        while not training.is_done:
            if await stop.wait(heeds_others=True) and not training.is_done:
                await training.stop()
        await training.collect(machine.head, machine.number)
        self._may_go_on = not training.is_spoilt

    @property
    def has_work(self) -> bool:
        """See `RoundWork`."""
        return self._trainings.work.account.carried > 0

    @property
    def _pending(self) -> FloatVector:
        """The part of `pending` that this round averages."""
        return self._trainings.trainer.pending[self._sync_set.within]

    async def promise(self) -> Promise:
        """See `RoundWork`."""
        norm = 0.0
        if self._trainings.manifest.outer.displacement:
            pending = self._pending
            norm = await self._trainings.run_in_thread(lambda: norm_of(pending))
        offered, plan, contributions = self._pending, self._sync_set.plan, self._mode
        make = contributions.make_contribution
        root = await self._trainings.run_in_thread(lambda: make.root_of(offered, plan))
        offer = self._trainings.work.offer(self._machine.head, self._machine.number)
        return Promise(offer.tokens, self._trainings.progress.inner_step, norm, offer.spans, root)

    @property
    def may_train_ahead(self) -> bool:
        """See `RoundWork`. The short rounds of the warm-up are to keep the peers together."""
        outer = self._trainings.manifest.outer
        is_warmup = outer.is_warmup(self._machine.number + 1)
        return outer.overlap and self._may_go_on and not is_warmup and not self._is_last

    @property
    def _is_last(self) -> bool:
        """Whether no round follows that could take more work."""
        return self._trainings.places.is_last(self._machine.number)

    def train_ahead(self) -> None:
        """See `RoundWork`."""
        self._mode.ahead = self._begin(self._machine.number + 1, "local")

    def contribution(self, ring: Ring) -> Contribution:
        """See `RoundWork`."""
        mode = self._mode
        return mode.make_contribution(self._pending, self._sync_set.plan, ring, mode.me)

    def machine_changed(self) -> None:
        """See `RoundWork`: the work does not depend on the ring."""

    def offered(self, shared: Shared) -> None:
        """See `RoundWork`: there are no shared steps."""

    async def make_way(self) -> None:
        """See `RoundWork`."""
        if self._mode.ahead is not None:
            await self._mode.ahead.stop()

    async def end(self, outcome: RoundOutcome) -> None:
        """See `RoundWork`: `pending` has all the work."""

    async def missed(self) -> None:
        """See `RoundWork`."""
        await self._mode.end_training_ahead(self._machine.head, self._machine.number)

    @property
    def _new(self) -> Ranges:
        """Parts of the parameters that this round changes."""
        return tuple((part.start, part.stop) for part in self._sync_set.ranges)

    async def rebase(self) -> None:
        """See `RoundWork`: the trainer keeps its newer steps on top of the new state."""
        if self.is_ahead:
            await self._trainings.trainer.rebase(self._new)

    @property
    def is_ahead(self) -> bool:
        """See `RoundWork`."""
        return self._mode.ahead is not None

    def settled(self) -> None:
        """See `RoundWork`: what was not taken is carried."""

    def go_on(self) -> None:
        """See `RoundWork`. After a fragment's round the trainer keeps its local parameters."""
        is_whole = self._sync_set is self._mode.committed.sync_sets.whole
        if not is_whole and self._may_go_on and not self.is_ahead and not self._is_last:
            self._mode.ahead = self._begin(self._machine.number + 1, "local", self._new)


class _Finished:
    async def due(self, chunk: int, *, is_first: bool) -> None:
        """See `Contribution`: the work was finished before the ring."""


class _FinishedSum(_Finished, SumPart):
    pass


class DenseContributions:
    """Makes this node's parts in dense rings (`sync = "diloco"`), where a chunk on its way is a
    weighted sum of the members' work."""

    def __init__(self, payloads: SumPayloads) -> None:
        self._payloads = payloads

    def __call__(
        self, pending: FloatVector, plan: ChunkPlan, ring: Ring, me: PeerId, /
    ) -> Contribution:
        """See `MakeContribution`."""
        tokens = [ring.weights[member] for member in ring.members]
        position = ring.members.index(me)
        return _FinishedSum(pending, plan, self._payloads.coder, tokens, position)

    def root_of(self, pending: FloatVector, plan: ChunkPlan) -> bytes:
        """See `MakeContribution`: members trust each other's sums."""
        return b""


def dense_mode(me: PeerId, committed: CommittedState, trainings: LocalTrainings) -> SyncMode:
    """See `MakeMode`."""
    payloads = committed.payloads
    assert isinstance(payloads, SumPayloads)
    return PendingWork(me, committed, trainings, DenseContributions(payloads))


class _FinishedSet(_Finished, SetPart):
    pass


class SparseContributions:
    """Makes this node's parts in sparse rings (`sync = "sparse"`), where a chunk on its way is a
    set of the members' largest values, or a sum of the values of many members."""

    def __init__(self, payloads: SetPayloads, error_decay: float) -> None:
        """`error_decay`: part of what was not sent that is carried on, see `SetPart`."""
        self._payloads = payloads
        self._error_decay = error_decay

    def __call__(
        self, pending: FloatVector, plan: ChunkPlan, ring: Ring, me: PeerId, /
    ) -> Contribution:
        """See `MakeContribution`."""
        tokens = [ring.weights[member] for member in ring.members]
        position = ring.members.index(me)
        return _FinishedSet(pending, plan, self._payloads, tokens, position, self._error_decay)

    def root_of(self, pending: FloatVector, plan: ChunkPlan) -> bytes:
        """See `MakeContribution`: members trust each other's sets."""
        return b""


def sparse_mode(me: PeerId, committed: CommittedState, trainings: LocalTrainings) -> SyncMode:
    """See `MakeMode`."""
    payloads = committed.payloads
    assert isinstance(payloads, SetPayloads)
    contributions = SparseContributions(payloads, trainings.manifest.outer.error_decay)
    return PendingWork(me, committed, trainings, contributions)


class _FinishedRecords(_Finished, RecordPart):
    pass


class RecordContributions:
    """Makes this node's parts in rings of members who do not trust each other (`trust = "open"`),
    where a chunk on its way is a set of signed records, with every codec."""

    def __init__(self, payloads: RecordPayloads, error_decay: float) -> None:
        """`error_decay`: part of what a sparse record left out that is carried on."""
        self._payloads = payloads
        self._error_decay = error_decay
        self._tree: RecordTree | None = None
        """Of the work of the newest `Ready`. A ring that names another one is not followed."""

    def root_of(self, pending: FloatVector, plan: ChunkPlan) -> bytes:
        """See `MakeContribution`. It encodes all work once: seconds for a large model."""
        self._tree = tree_of(pending, plan, self._payloads)
        return self._tree.root

    def __call__(
        self, pending: FloatVector, plan: ChunkPlan, ring: Ring, me: PeerId, /
    ) -> Contribution:
        """See `MakeContribution`."""
        position = ring.members.index(me)
        if self._tree is None or self._tree.root != ring.ready[position].root:
            raise LocalProtocolError("a ring that names this node with other work than it signed")
        return _FinishedRecords(
            pending, plan, self._payloads, self._tree, position, self._error_decay
        )


def record_mode(me: PeerId, committed: CommittedState, trainings: LocalTrainings) -> SyncMode:
    """See `MakeMode`."""
    payloads = committed.payloads
    assert isinstance(payloads, RecordPayloads)
    contributions = RecordContributions(payloads, trainings.manifest.outer.error_decay)
    return PendingWork(me, committed, trainings, contributions)
