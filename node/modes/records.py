"""Steps of members who do not trust each other (`trust = "open"`): a chunk on its way is a set of
signed records, with every codec."""

from __future__ import annotations

from gossamer.node.modes.contribution import Contribution
from gossamer.node.modes.pending_work import PendingWork
from gossamer.node.modes.sync_mode import SyncMode
from gossamer.node.storage.committed import CommittedState
from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import RecordTree
from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.record_part import RecordPart, tree_of
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector


class _FinishedRecords(RecordPart):
    async def due(self, chunk: int, *, is_first: bool) -> None:
        """See `Contribution`: the work was finished before the ring."""


class RecordContributions:
    """Makes this node's parts in rings of signed records (a `MakeContribution`)."""

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
