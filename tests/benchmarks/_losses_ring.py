"""A round's ring in one process: the additions of an undisturbed swarm, in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.node.modes.contribution import Contribution, SetContribution, SumContribution
from gossamer.protocol.codecs.payloads import SetPayloads, SumPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector


@dataclass(frozen=True)
class Average:
    """What a ring agreed on."""

    values: FloatVector
    """(num_elements,), as everybody decodes them."""
    num_bytes: int
    """Of one member's part, all chunks."""


def ring_average(
    pendings: Sequence[FloatVector],
    tokens: Sequence[int],
    plan: ChunkPlan,
    payloads: SumPayloads | SetPayloads,
    error_decay: float = 1.0,
) -> Average:
    """Averages what the members carry, in ring order, weighted with their tokens.

    As `ring` rules while nobody falls: chunk c begins with member c mod N, walks once round, and
    the last one finishes. Afterwards `pendings` hold what each member carries on, as
    `node.storage.work` leaves it: of a sparse part all that was not sent, else rounding errors.
    """
    parts = _contributions(pendings, tokens, plan, payloads, error_decay)
    everybody = (1 << len(parts)) - 1
    values = np.empty(plan.num_elements, np.float32)
    num_bytes = 0
    for chunk in range(plan.num_chunks):
        order = [parts[(chunk + offset) % len(parts)] for offset in range(len(parts))]
        payload = None
        for part in order:
            payload = part.add(chunk, payload)
        assert payload is not None
        average = order[-1].finish_average(chunk, payload, everybody)
        where = plan.range_of(chunk)
        values[where] = payloads.average(average, where.stop - where.start, everybody, tokens)
        num_bytes += payloads.part_bytes(where.stop - where.start)
    for part, pending in zip(parts, pendings, strict=True):
        for chunk in range(plan.num_chunks):
            error = part.error_of(chunk)
            pending[plan.range_of(chunk)] = 0.0 if error is None else error
    return Average(values, num_bytes)


def _contributions(
    pendings: Sequence[FloatVector],
    tokens: Sequence[int],
    plan: ChunkPlan,
    payloads: SumPayloads | SetPayloads,
    error_decay: float,
) -> list[Contribution]:
    if isinstance(payloads, SetPayloads):
        return [
            SetContribution(pending, plan, payloads, position, error_decay)
            for position, pending in enumerate(pendings)
        ]
    members = [PeerId(str(number)) for number in range(len(pendings))]
    tokens_of = dict(zip(members, tokens, strict=True))
    return [
        SumContribution(pending, plan, payloads.name, members, tokens_of, member)
        for member, pending in zip(members, pendings, strict=True)
    ]
