"""A round's ring in one process: the additions of an undisturbed swarm, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.node.rounds.residual import SumContribution
from gossamer.protocol.chunks import ChunkPlan
from gossamer.protocol.ids import PeerId
from gossamer.protocol.state import FloatVector
from gossamer.protocol.tensor_codecs import codec


@dataclass(frozen=True)
class Average:
    """What a ring agreed on."""

    values: FloatVector
    """(num_elements,), as everybody decodes them."""
    num_bytes: int
    """Of all chunks, encoded: what one member's part takes on the line once."""


def ring_average(
    pendings: Sequence[FloatVector], tokens: Sequence[int], plan: ChunkPlan, codec_name: str
) -> Average:
    """Averages what the members carry, in ring order, weighted with their tokens.

    As `protocol.ring` rules while nobody falls: chunk c begins with member c mod N, walks once
    round, and the last one divides. Afterwards `pendings` hold what each member carries on: its own
    rounding errors, as `node.storage.work` leaves them.
    """
    members = [PeerId(str(number)) for number in range(len(pendings))]
    tokens_of = dict(zip(members, tokens, strict=True))
    parts = [
        SumContribution(pending, plan, codec_name, members, tokens_of, member)
        for member, pending in zip(members, pendings, strict=True)
    ]
    everybody = (1 << len(members)) - 1
    coder = codec(codec_name)
    values = np.empty(plan.num_elements, np.float32)
    num_bytes = 0
    for chunk in range(plan.num_chunks):
        order = [parts[(chunk + offset) % len(parts)] for offset in range(len(parts))]
        payload = None
        for part in order:
            payload = part.add(chunk, payload)
        assert payload is not None
        final = order[-1].finalise(chunk, payload, everybody)
        where = plan.range_of(chunk)
        values[where] = coder.decode(final, where.stop - where.start)
        num_bytes += len(final)
    for part, pending in zip(parts, pendings, strict=True):
        pending[:] = 0.0
        for chunk in range(plan.num_chunks):
            if (error := part.error_of(chunk)) is not None:
                pending[plan.range_of(chunk)] = error
    return Average(values, num_bytes)
