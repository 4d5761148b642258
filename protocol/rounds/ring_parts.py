"""One member's arithmetic in a ring: what it adds to each chunk, and what it carries on.

A member's *pending work* is its newest pseudo-gradient plus its *carried work*: what no round has
taken yet, and what its parts in earlier rounds left out (the residual). A ring only reads it. The
commit of the round changes it chunk by chunk. If the average contains the member, its pending work
becomes what its part left out (`error_of`). For a dense codec these are the rounding errors, and
nothing for an exact codec. For a sparse part it is all that was not sent, decayed. If the average
does not contain the member, its pending work stays and belongs to its next part. So no work counts
twice. None is lost here but what a sparse part decays, and some of the rounding errors of a member
that did little (`rounded_sums`). This is error feedback (1-bit SGD, Seide et al. 2014; EF-SGD,
arXiv 1901.09847).

`ring_average` walks all chunks of an undisturbed ring in one process. The machine that does the
same between peers, and survives their faults, is `protocol.rounds.ring`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array, usable
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import AveragedPayloads, SetPayloads
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import RecordTree, leaf_of
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import TensorCodec
from gossamer.protocol.rounds.rounded_sums import RoundedSums
from gossamer.protocol.rounds.set_part import SetPart
from gossamer.protocol.state.chunk_plan import ChunkPlan


class RingPart(Protocol):
    """The arithmetic of one member. Methods may run in threads, one chunk each."""

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """The payload on its way (None: this member begins) with this member's part in it.

        Args:
            mask: the members that are in `payload`, by ring position; this member is not.

        Raises:
            MalformedError: the payload is none of this chunk.
            ValueError: this member's own part has a value that cannot be used (`is_usable`).
        """

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        """The payload that all members get, from one that holds all members of `mask`."""

    def error_of(self, chunk: int) -> Float32Array | None:
        """Returns the error that this member's part of a chunk left out, in units of its own work.
        None means no error."""


class SumPart:
    """A member's part of a dense ring (`rounded_sums`)."""

    def __init__(
        self,
        pending: Float32Array,
        plan: ChunkPlan,
        coder: TensorCodec,
        tokens: Sequence[int],
        position: int,
    ) -> None:
        """
        Args:
            pending: (plan.num_elements,), this member's work.
            tokens: of all members, by ring position.
            position: this member's.
        """
        self._pending, self._plan = pending, plan
        self._sums = RoundedSums(coder, tokens, position)

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """See `RingPart`: the encoded partial sum."""
        part = self._plan.range_of(chunk)

        def values() -> Float32Array:
            values = usable(self._pending[part]) * self._sums.share
            if payload is not None:
                values += self._sums.decoded(payload, part.stop - part.start, mask)
            return values

        return self._sums.encode(chunk, values, mask.bit_count() + 1)

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        """See `RingPart`: the encoded average."""
        return self._sums.finish(chunk, payload, self._plan.elements_of(chunk), mask)

    def error_of(self, chunk: int) -> Float32Array | None:
        """See `RingPart`: the rounding errors that this member made."""
        return self._sums.error_of(chunk)


def tree_of(pending: Float32Array, plan: ChunkPlan, payloads: RecordPayloads) -> RecordTree:
    """The tree of a member's records.

    Args:
        pending: (plan.num_elements,), the work that the member offers.

    Raises:
        ValueError: the work has a value that cannot be used.
    """
    return RecordTree(
        [
            leaf_of(chunk, payloads.encode(usable(pending[plan.range_of(chunk)])))
            for chunk in range(plan.num_chunks)
        ]
    )


class RecordPart:
    """A member's part of a ring of signed records (`trust = "open"`).

    The records are encoded before the ring, since the member signs their root in its `Ready`. They
    are encoded again when the ring asks for them, so that nobody has to keep them: the same work
    has the same bytes. Work that changed meanwhile is not what was signed, and is not sent.
    """

    def __init__(
        self,
        pending: Float32Array,
        plan: ChunkPlan,
        payloads: RecordPayloads,
        tree: RecordTree,
        position: int,
        error_decay: float,
    ) -> None:
        """
        Args:
            pending: (plan.num_elements,), this member's work.
            tree: of its records; its root is in the ring.
            position: in the ring.
            error_decay: part of what a sparse record left out that is carried on.
        """
        self._pending, self._plan, self._payloads = pending, plan, payloads
        self._tree, self._position = tree, position
        is_sparse = isinstance(payloads.coder, SparseCodec)
        self._error_decay = np.float32(error_decay if is_sparse else 1.0)
        self._sent: set[int] = set()

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """See `RingPart`. The records in the payload were checked when they came.

        Raises:
            ValueError: the work is not the work that was signed.
        """
        block = self._payloads.encode(usable(self._pending[self._plan.range_of(chunk)]))
        if leaf_of(chunk, block) != self._tree.leaf(chunk):
            raise ValueError(f"own work in chunk {chunk} has changed since it was signed")
        self._sent.add(chunk)
        return add_record(payload, self._position, block + self._tree.path(chunk))

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        """See `RingPart`: every peer averages the records for itself."""
        return payload

    def error_of(self, chunk: int) -> Float32Array | None:
        """See `RingPart`: what the codec left out of this member's record."""
        if chunk not in self._sent or self._payloads.is_exact:
            return None
        values = self._pending[self._plan.range_of(chunk)]
        error = values - self._payloads.decode(self._payloads.encode(values), values.size)
        error *= self._error_decay
        return error


def ring_average(
    pendings: Sequence[Float32Array],
    tokens: Sequence[int],
    plan: ChunkPlan,
    payloads: AveragedPayloads,
    error_decay: float = 1.0,
) -> Float32Array:
    """The average of the members' work, as all members decode it, weighted with capped tokens.

    The ring of a round without faults and relays: chunk c begins with member c mod N and walks once
    round, and the last member finishes it. So the same additions are done in the same order as
    between peers.

    Args:
        pendings: (plan.num_elements,) of each member, in ring order. Afterwards they hold what each
            member carries on.
        tokens: of each member.
        error_decay: of sparse parts and records, see `SetPart`.
    """

    def part_of(pending: Float32Array, position: int) -> RingPart:
        if isinstance(payloads, RecordPayloads):
            tree = tree_of(pending, plan, payloads)
            return RecordPart(pending, plan, payloads, tree, position, error_decay)
        if isinstance(payloads, SetPayloads):
            return SetPart(pending, plan, payloads, tokens, position, error_decay)
        return SumPart(pending, plan, payloads.coder, tokens, position)

    parts = [part_of(pending, position) for position, pending in enumerate(pendings)]
    num_members = len(parts)
    everybody = (1 << num_members) - 1
    average = np.empty(plan.num_elements, np.float32)
    for chunk in range(plan.num_chunks):
        where, first = plan.range_of(chunk), chunk % num_members
        payload: Buffer | None = None
        mask = 0
        for position in (*range(first, num_members), *range(first)):
            payload = parts[position].add(chunk, payload, mask)
            mask |= 1 << position
        assert payload is not None
        payload = parts[first - 1].finish_average(chunk, payload, everybody)
        average[where] = payloads.average(payload, where.stop - where.start, everybody, tokens)
        for part, pending in zip(parts, pendings, strict=True):
            error = part.error_of(chunk)
            pending[where] = 0.0 if error is None else error
    return average
