"""Dense steps (`sync = "diloco"`): a chunk on its way is a weighted sum of the members' work."""

from __future__ import annotations

from gossamer.node.modes.contribution import Contribution
from gossamer.node.modes.pending_work import PendingWork
from gossamer.node.modes.sync_mode import SyncMode
from gossamer.node.storage.committed import CommittedState
from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring_parts import SumPart
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector


class _FinishedSum(SumPart):
    async def due(self, chunk: int, *, is_first: bool) -> None:
        """See `Contribution`: the work was finished before the ring."""


class DenseContributions:
    """Makes this node's parts in dense rings (a `MakeContribution`)."""

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
