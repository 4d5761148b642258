"""This peer's part in a ring of finished work, for whichever kind of payload a test has."""

from __future__ import annotations

from gossamer.node.modes.pending_work import Contributions
from gossamer.node.modes.sync_mode import Contribution
from gossamer.protocol.codecs.payloads import AveragedPayloads
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
    contributions = Contributions(payloads, error_decay)
    contributions.root_of(pending, plan)
    return contributions.contribution(pending, plan, ring, me)


def root_of(pending: FloatVector, plan: ChunkPlan, payloads: AveragedPayloads) -> bytes:
    """The root that this peer signs for its work."""
    return Contributions(payloads, 1.0).root_of(pending, plan)
