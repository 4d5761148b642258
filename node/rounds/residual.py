"""This peer's part of a round: what it adds to the ring, and what stays behind as residual.

`pending` (shared with the trainer) holds the work that the swarm has not taken: the newest
pseudo-gradient plus the residual of earlier rounds. During a round it is only read. When the round
is committed, chunk by chunk: if the average contains this peer, pending becomes the rounding error
that this peer made itself (nothing for exact codecs); otherwise it stays as it is and is
part of the next pseudo-gradient. So no work is lost and none counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.protocol.chunks import ChunkPlan
from gossamer.protocol.ids import PeerId
from gossamer.protocol.ring import Payload
from gossamer.protocol.state import FloatVector
from gossamer.protocol.tensor_codecs import codec


class Contribution:
    """The arithmetic of one peer in one ring. Methods may run in threads, one chunk each.

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
        self._errors: dict[int, FloatVector] = {}

    def add(self, chunk: int, payload: Payload | None) -> Payload:
        """The encoded partial sum with this peer's part in it. MalformedError for a bad payload."""
        part = self._plan.range_of(chunk)
        values = self._pending[part] * self._weight
        if payload is not None:
            values += self._codec.decode(payload, part.stop - part.start)
        return self._encode(chunk, values, self._weight)

    def finalise(self, chunk: int, payload: Payload, mask: int) -> Payload:
        """The encoded average of all in `mask`."""
        part = self._plan.range_of(chunk)
        # One exactly when all are in it: dividing by almost one would round everything once more.
        present = sum(tokens for i, tokens in enumerate(self._tokens) if mask >> i & 1)
        divisor = np.float32(present / sum(self._tokens))
        values = self._codec.decode(payload, part.stop - part.start)
        if divisor > 0:
            values = values / divisor
        # An error of the average is the whole ring's: as part of my next delta it weighs w, so it
        # has to be that much larger.
        return self._encode(chunk, values, self._weight / divisor if divisor > 0 else self._weight)

    def _encode(self, chunk: int, values: FloatVector, weight: np.float32) -> Payload:
        encoded = self._codec.encode(values)
        if self._codec.name != "fp32" and weight > 0:
            error = values - self._codec.decode(encoded, values.size)
            error /= weight
            if chunk in self._errors:
                error += self._errors[chunk]
            self._errors[chunk] = error
        return encoded

    def error_of(self, chunk: int) -> FloatVector | None:
        """The rounding error that this peer made in a chunk, in units of its own delta."""
        return self._errors.get(chunk)
