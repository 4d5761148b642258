"""This peer's part in a ring of finished work, for whichever kind of payload a test has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.node.modes.pending_work import Contributions
from gossamer.node.modes.sync_mode import Contribution
from gossamer.protocol.codecs.payloads import AveragedPayloads
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector


class SignedRoots(NamedTuple):
    """Members that have signed roots over their records, and no shared step (a `MembersSigned`)."""

    roots: Sequence[bytes]

    def check_step(self, position: int, step: int, root: Digest, signature: bytes) -> None:
        """See `MembersSigned`."""
        raise ForgedError(f"step {step} of member {position}")


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
