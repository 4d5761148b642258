"""Rounds that average work which was finished before the ring: dense and sparse steps, and signed
records of either. They differ in their part of a ring alone (`Contributions`).

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

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from gossamer.node.base.threads import map_pieces, num_piece_threads
from gossamer.node.modes.sync_mode import (
    Contribution,
    OpenedParts,
    Promise,
    RoundOutcome,
    RoundWork,
    Spawn,
    StopSignal,
    SyncMode,
)
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.training.local_training import LocalTraining, LocalTrainings
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.payloads import AveragedPayloads, SetPayloads, SumPayloads
from gossamer.protocol.codecs.record_tree import RecordTree
from gossamer.protocol.codecs.tensor_codecs import TensorCodec
from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.ring.ring_parts import SumPart, tree_of
from gossamer.protocol.rounds.ring.set_parts import RecordPart, SetPart, blocks_of, tree_over
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, float_bytes
from gossamer.protocol.state.sync_sets import SyncSet
from gossamer.trainer.ipc.messages import Place, Ranges, Start


class _SignedSet(NamedTuple):
    """The sparse parts behind the root of a `Ready`."""

    blocks: list[bytes]
    tree: RecordTree


class _Finished:
    async def due(self, chunk: int, partial_sum: Buffer | None) -> None:
        """See `Contribution`: the work was finished before the ring."""


class FinishedSum(_Finished, SumPart):
    """This node's part in a ring that moves sums, which it opens for auditors."""

    def __init__(
        self,
        pending: FloatVector,
        plan: ChunkPlan,
        coder: TensorCodec,
        tokens: Sequence[int],
        position: int,
        tree: RecordTree | None,
    ) -> None:
        """`tree`: over the work of this node's `Ready`; None: it has signed other work. The rest as
        of `SumPart`."""
        super().__init__(pending, plan, coder, tokens, position)
        self._tree = tree
        self._num_chunks = plan.num_chunks

    def opened(self) -> OpenedParts | None:
        """See `OpensChunks`: the work, as fp32."""
        if self._tree is None:
            return None
        return OpenedParts(self._works, self._tree.path)

    def _works(self) -> Iterator[Buffer]:
        for chunk in range(self._num_chunks):
            yield float_bytes(self.work_of(chunk))


class FinishedSet(_Finished, SetPart):
    """This node's part in a ring that moves sets, which it opens for auditors."""

    def __init__(
        self,
        pending: FloatVector,
        plan: ChunkPlan,
        payloads: SetPayloads,
        tokens: Sequence[int],
        position: int,
        error_decay: float,
        signed: _SignedSet | None,
    ) -> None:
        """`signed`: the work of this node's `Ready`; None: it has signed other work. The rest as of
        `SetPart`."""
        blocks = None if signed is None else dict(enumerate(signed.blocks))
        super().__init__(pending, plan, payloads, tokens, position, error_decay, blocks)
        self._signed = signed

    def opened(self) -> OpenedParts | None:
        """See `OpensChunks`."""
        if self._signed is None:
            return None
        blocks, tree = self._signed
        return OpenedParts(lambda: blocks, tree.path)


class _FinishedRecords(_Finished, RecordPart):
    pass


class Contributions:
    """Makes this node's contributions, which take finished work into rings."""

    def __init__(self, payloads: AveragedPayloads, error_decay: float) -> None:
        """`error_decay`: part of what a sparse part or record left out that is carried on."""
        self._payloads = payloads
        self._error_decay = error_decay
        self._tree: RecordTree | None = None
        """Of the work of the newest `Ready`. A ring that names another one is not followed."""
        self._blocks: list[bytes] = []
        """The sparse parts of that work, where sets travel."""

    def root_of(self, pending: FloatVector, plan: ChunkPlan) -> bytes:
        """The root over the records of some work, for this node's `Ready`. It encodes all work
        once, in threads. Where sums travel, it is over the work itself.

        Args:
            pending, plan: as below.
        """
        payloads = self._payloads
        apply = partial(map_pieces, num_threads=num_piece_threads(plan.num_elements))
        if isinstance(payloads, SetPayloads):
            self._blocks = blocks_of(pending, plan, payloads, apply)
            self._tree = tree_over(self._blocks)
        else:
            self._tree = tree_of(pending, plan, payloads, apply)
        return self._tree.root

    def release(self) -> None:
        """The round is over: no ring asks for its work any more."""
        self._blocks = []

    def contribution(
        self, pending: FloatVector, plan: ChunkPlan, ring: Ring, me: PeerId
    ) -> Contribution:
        """This node's part in a ring.

        Args:
            pending: (plan.num_elements,), the work that the ring averages. The ring only reads it.
            me: a member of the ring.

        Raises:
            LocalProtocolError: the ring names this node with other work than it signed.
        """
        payloads, position, decay = self._payloads, ring.members.index(me), self._error_decay
        tokens = [ring.weights[member] for member in ring.members]
        if isinstance(payloads, SumPayloads):
            tree = self._tree if self._is_signed(ring, position) else None
            return FinishedSum(pending, plan, payloads.coder, tokens, position, tree)
        if isinstance(payloads, SetPayloads):
            signed = None
            if self._tree is not None and self._blocks and self._is_signed(ring, position):
                signed = _SignedSet(self._blocks, self._tree)
            return FinishedSet(pending, plan, payloads, tokens, position, decay, signed)
        if self._tree is None or not self._is_signed(ring, position):
            raise LocalProtocolError("a ring that names this node with other work than it signed")
        return _FinishedRecords(pending, plan, payloads, self._tree, position, decay)

    def _is_signed(self, ring: Ring, position: int) -> bool:
        """Returns whether a ring names this node with the work of the newest tree."""
        return self._tree is not None and self._tree.root == ring.ready[position].root


class PendingWork(SyncMode):
    """The sync mode of finished work."""

    def __init__(
        self,
        me: PeerId,
        committed: CommittedState,
        payloads: AveragedPayloads,
        trainings: LocalTrainings,
    ) -> None:
        self.me = me
        self.committed = committed
        self.trainings = trainings
        self.contributions = Contributions(payloads, trainings.manifest.outer.error_decay)
        self.ahead: LocalTraining | None = None
        """The training that began before its round."""

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


class _PendingRound(RoundWork):
    """One round of finished work."""

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

    async def skip_training(self) -> None:
        """See `RoundWork`."""
        self._may_go_on = False
        if self._training is not None:
            await self._training.end(self._machine.head, self._machine.number)
        else:
            self._trainings.progress.inner_step = 0

    @property
    def has_work(self) -> bool:
        """See `RoundWork`."""
        return self._trainings.work.account.carried > 0

    @property
    def rounds_missed(self) -> int:
        """See `RoundWork`."""
        oldest = self._trainings.work.account.state.oldest_round
        carried = self._trainings.work.account.carried
        return max(0, self._machine.number - oldest) if carried else 0

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
        offered, plan = self._pending, self._sync_set.plan
        root_of = self._mode.contributions.root_of
        root = await self._trainings.run_in_thread(lambda: root_of(offered, plan))
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
        return mode.contributions.contribution(self._pending, self._sync_set.plan, ring, mode.me)

    async def make_way(self) -> None:
        """See `RoundWork`."""
        if self._mode.ahead is not None:
            await self._mode.ahead.stop()

    async def end(self, outcome: RoundOutcome) -> None:
        """See `RoundWork`: `pending` has all the work."""
        self._mode.contributions.release()

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

    def go_on(self) -> None:
        """See `RoundWork`. After a fragment's round the trainer keeps its local parameters."""
        is_whole = self._sync_set is self._mode.committed.sync_sets.whole
        if not is_whole and self._may_go_on and not self.is_ahead and not self._is_last:
            self._mode.ahead = self._begin(self._machine.number + 1, "local", self._new)
