"""This peer's part of a round: what it adds to the ring, and what stays behind as residual.

`pending` holds the work that the swarm has not taken: the newest pseudo-gradient plus the residual
of earlier rounds. During a round it is only read. When the round is committed, chunk by chunk: if
the average contains this peer, pending becomes what its contribution left out (`error_of`: rounding
errors of a dense codec, nothing for exact ones; of a sparse one all that was not sent, decayed);
otherwise it stays as it is and is part of the next pseudo-gradient. So no work is lost and none
counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import SetPayloads, SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring import Payload
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector

_ERROR_SHARE = 0.5
"""A rounding error weighs as little in the next ring as its member, so a member with a small share
carries it magnified. If it then did more work than in this round, that would come out as noise: a
member that came for one step of twenty would add a coarse codec's error twentyfold. So a share
below this part of the mean share is taken for it, and its member forgets a part of its errors."""


class Contribution(Protocol):
    """The arithmetic of one peer in one ring. Methods may run in threads, one chunk each."""

    async def due(self, chunk: int, *, is_first: bool) -> None:
        """Returns when this peer's part of a chunk is there. `is_first`: no token came for it."""

    def add(self, chunk: int, payload: Payload | None) -> Payload:
        """The token with this peer's part in it. MalformedError for a bad payload."""

    def finish_average(self, chunk: int, payload: Payload, mask: int) -> Payload:
        """The final of a token that has all of `mask` in it."""

    def error_of(self, chunk: int) -> FloatVector | None:
        """What this peer's part of a chunk left out, in units of its own delta; None: nothing."""


def contribution_of(
    pending: FloatVector,
    plan: ChunkPlan,
    payloads: SumPayloads | SetPayloads,
    ring: Ring,
    me: PeerId,
    error_decay: float,
) -> Contribution:
    """This peer's in a ring. `error_decay` is for sparse ones."""
    if isinstance(payloads, SetPayloads):
        position = ring.members.index(me)
        return SetContribution(pending, plan, payloads, position, error_decay)
    return SumContribution(pending, plan, payloads.name, ring.members, ring.weights, me)


class SumContribution:
    """To a dense ring.

    A chunk on its way is the sum of w_i * delta_i over its contributors, with w_i the member's part
    of the ring's tokens; the final is that sum divided by the sum of its contributors' w_i.
    """

    def __init__(
        self,
        pending: FloatVector,
        plan: ChunkPlan,
        codec_name: str,
        members: Sequence[PeerId],
        tokens: Mapping[PeerId, int],
        me: PeerId,
    ) -> None:
        self._pending = pending
        self._plan = plan
        self._codec = codec(codec_name)
        self._tokens = [tokens[member] for member in members]
        self._weight = np.float32(tokens[me] / sum(self._tokens))
        self._error_weight = max(self._weight, np.float32(_ERROR_SHARE / len(members)))
        # Of the newest sum, and of the newest average: after a fault a chunk may come round again,
        # and what was made of it before is worth nothing then.
        self._sum_errors: dict[int, FloatVector] = {}
        self._final_errors: dict[int, FloatVector] = {}

    async def due(self, chunk: int, *, is_first: bool) -> None:
        """See `Contribution`: all of it was there before the ring."""

    def add(self, chunk: int, payload: Payload | None) -> Payload:
        """See `Contribution`: the encoded partial sum."""
        part = self._plan.range_of(chunk)
        values = self._pending[part] * self._weight
        if payload is not None:
            values += self._codec.decode(payload, part.stop - part.start)
        return self._encode(chunk, values, self._error_weight, self._sum_errors)

    def finish_average(self, chunk: int, payload: Payload, mask: int) -> Payload:
        """See `Contribution`: the encoded average."""
        part = self._plan.range_of(chunk)
        # One exactly when all are in it: dividing by almost one would round everything once more.
        present = sum(tokens for i, tokens in enumerate(self._tokens) if mask >> i & 1)
        divisor = np.float32(present / sum(self._tokens))
        values = self._codec.decode(payload, part.stop - part.start)
        values = values / divisor
        # An error of the average is the whole ring's: as part of my next delta it weighs w, so it
        # has to be that much larger.
        return self._encode(chunk, values, self._error_weight / divisor, self._final_errors)

    def _encode(
        self, chunk: int, values: FloatVector, weight: np.float32, errors: dict[int, FloatVector]
    ) -> Payload:
        encoded = self._codec.encode(values)
        if self._codec.name != "fp32":
            error = values - self._codec.decode(encoded, values.size)
            error /= weight
            errors[chunk] = error
        return encoded

    def error_of(self, chunk: int) -> FloatVector | None:
        """See `Contribution`: the rounding errors that it made."""
        found = [e[chunk] for e in (self._sum_errors, self._final_errors) if chunk in e]
        return sum(found[1:], found[0]) if found else None


class SetContribution:
    """To a sparse ring: a block of its own, that nobody changes (SparseLoCo, arXiv 2508.15706).

    What was not sent is the error feedback, e = decay * (e - d): the decay is applied when a round
    has taken d, and the next pseudo-gradient is added to it later.
    """

    def __init__(
        self,
        pending: FloatVector,
        plan: ChunkPlan,
        payloads: SetPayloads,
        position: int,
        error_decay: float,
    ) -> None:
        self._pending = pending
        self._plan = plan
        self._codec = payloads.coder
        self._position = position
        self._error_decay = np.float32(error_decay)
        self._blocks: dict[int, bytes] = {}

    async def due(self, chunk: int, *, is_first: bool) -> None:
        """See `Contribution`: all of it was there before the ring."""

    def add(self, chunk: int, payload: Payload | None) -> Payload:
        """See `Contribution`."""
        block = self._blocks.get(chunk)
        if block is None:
            block = self._codec.encode(self._pending[self._plan.range_of(chunk)])
            self._blocks[chunk] = block
        return add_record(payload, self._position, block)

    def finish_average(self, chunk: int, payload: Payload, mask: int) -> Payload:
        """See `Contribution`: everybody averages for himself."""
        return payload

    def error_of(self, chunk: int) -> FloatVector | None:
        """See `Contribution`."""
        block = self._blocks.get(chunk)
        if block is None:
            return None
        part = self._plan.range_of(chunk)
        error = self._pending[part].copy()
        sent = self._codec.decode(block, part.stop - part.start)
        error[sent.places] -= sent.values
        error *= self._error_decay
        return error
