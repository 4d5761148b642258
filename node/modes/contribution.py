"""This peer's part of a round, for the driver: the arithmetic of a ring, and when it may begin."""

from __future__ import annotations

from typing import Protocol

from gossamer.protocol.codecs.payloads import SetPayloads, SumPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring_parts import RingPart, SetPart, SumPart
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector


class Contribution(RingPart, Protocol):
    """The arithmetic of one peer in one ring, which may have to wait for the work itself."""

    async def due(self, chunk: int, *, is_first: bool) -> None:
        """Returns when this peer's part of a chunk is there. `is_first`: no token came for it."""


def contribution_of(
    pending: FloatVector,
    plan: ChunkPlan,
    payloads: SumPayloads | SetPayloads,
    ring: Ring,
    me: PeerId,
    error_decay: float,
) -> Contribution:
    """This peer's contribution to a ring of work that was finished before it. `error_decay` is for
    sparse rings."""
    position = ring.members.index(me)
    if isinstance(payloads, SetPayloads):
        return _FinishedSet(pending, plan, payloads.coder, position, error_decay)
    tokens = [ring.weights[member] for member in ring.members]
    return _FinishedSum(pending, plan, payloads.coder, tokens, position)


class _Finished:
    async def due(self, chunk: int, *, is_first: bool) -> None:
        """See `Contribution`: all of it was there before the ring."""


class _FinishedSum(_Finished, SumPart):
    """A part of a dense ring."""


class _FinishedSet(_Finished, SetPart):
    """A part of a sparse ring."""
