"""This peer's part in a ring of finished work, for whichever kind of payload a test has."""

from __future__ import annotations

from gossamer.node.modes.pending_work import (
    DenseContributions,
    RecordContributions,
    SparseContributions,
)
from gossamer.node.modes.sync_mode import Contribution
from gossamer.protocol.codecs.payloads import AveragedPayloads, SetPayloads
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector


def contribution_of(
    pending: FloatVector,
    plan: ChunkPlan,
    payloads: AveragedPayloads,
    ring: Ring,
    me: PeerId,
    error_decay: float,
) -> Contribution:
    """The contribution that a node of that sync mode makes; `error_decay` is for sparse rings."""
    if isinstance(payloads, RecordPayloads):
        records = RecordContributions(payloads, error_decay)
        records.root_of(pending, plan)
        return records(pending, plan, ring, me)
    if isinstance(payloads, SetPayloads):
        return SparseContributions(payloads, error_decay)(pending, plan, ring, me)
    return DenseContributions(payloads)(pending, plan, ring, me)


def root_of(pending: FloatVector, plan: ChunkPlan, payloads: AveragedPayloads) -> bytes:
    """The root that this peer signs for its work."""
    if isinstance(payloads, RecordPayloads):
        return RecordContributions(payloads, 1.0).root_of(pending, plan)
    return b""
