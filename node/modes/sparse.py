"""Sparse steps (`sync = "sparse"`): a chunk on its way is a set of the members' largest values."""

from __future__ import annotations

from gossamer.node.modes.contribution import Contribution
from gossamer.node.modes.pending_work import PendingWork
from gossamer.node.modes.sync_mode import SyncMode
from gossamer.node.storage.committed import CommittedState
from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.codecs.payloads import SetPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring_parts import SetPart
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector


class _FinishedSet(SetPart):
    async def due(self, chunk: int, *, is_first: bool) -> None:
        """See `Contribution`: the work was finished before the ring."""


class SparseContributions:
    """Makes this node's parts in sparse rings (a `MakeContribution`)."""

    def __init__(self, payloads: SetPayloads, error_decay: float) -> None:
        """`error_decay`: part of what was not sent that is carried on, see `SetPart`."""
        self._payloads = payloads
        self._error_decay = error_decay

    def __call__(
        self, pending: FloatVector, plan: ChunkPlan, ring: Ring, me: PeerId, /
    ) -> Contribution:
        """See `MakeContribution`."""
        position = ring.members.index(me)
        return _FinishedSet(pending, plan, self._payloads.coder, position, self._error_decay)

    def root_of(self, pending: FloatVector, plan: ChunkPlan) -> bytes:
        """See `MakeContribution`: members trust each other's sets."""
        return b""


def sparse_mode(me: PeerId, committed: CommittedState, trainings: LocalTrainings) -> SyncMode:
    """See `MakeMode`."""
    payloads = committed.payloads
    assert isinstance(payloads, SetPayloads)
    contributions = SparseContributions(payloads, trainings.manifest.outer.error_decay)
    return PendingWork(me, committed, trainings, contributions)
