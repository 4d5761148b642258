"""A member's part in a ring of signed records (`trust = "open"`).

The records are encoded before the ring, since the member signs their root in its `Ready`. They are
encoded again when the ring asks for them, so that nobody has to keep them: the same work has the
same bytes. Work that changed meanwhile is not what was signed, and is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array, is_usable, magnitude_of
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import RecordTree, leaf_of
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.state.chunk_plan import ChunkPlan


def tree_of(pending: Float32Array, plan: ChunkPlan, payloads: RecordPayloads) -> RecordTree:
    """The tree of a member's records.

    Args:
        pending: (plan.num_elements,), the work that the member offers.

    Raises:
        ValueError: the work has a value that cannot be used.
    """
    return RecordTree(
        [
            leaf_of(chunk, payloads.encode(_usable(pending[plan.range_of(chunk)])))
            for chunk in range(plan.num_chunks)
        ]
    )


class RecordPart:
    """A member's part of a ring of records (a `RingPart`)."""

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
        block = self._payloads.encode(_usable(self._pending[self._plan.range_of(chunk)]))
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


def ring_of_records(
    pendings: Sequence[Float32Array],
    tokens: Sequence[int],
    plan: ChunkPlan,
    payloads: RecordPayloads,
    error_decay: float = 1.0,
) -> Float32Array:
    """See `ring_parts.ring_average`, which calls this for records."""
    parts = [
        RecordPart(pending, plan, payloads, tree_of(pending, plan, payloads), position, error_decay)
        for position, pending in enumerate(pendings)
    ]
    everybody = (1 << len(parts)) - 1
    average = np.empty(plan.num_elements, np.float32)
    for chunk in range(plan.num_chunks):
        where = plan.range_of(chunk)
        payload: Buffer | None = None
        for position, part in enumerate(parts):
            payload = part.add(chunk, payload, (1 << position) - 1)
        assert payload is not None
        average[where] = payloads.average(payload, where.stop - where.start, everybody, tokens)
        for part, pending in zip(parts, pendings, strict=True):
            error = part.error_of(chunk)
            pending[where] = 0.0 if error is None else error
    return average


def _usable(work: Float32Array) -> Float32Array:
    """Raises ValueError if a value of this member's own work is out of range."""
    if not is_usable(work):
        raise ValueError(f"own work has a value of {magnitude_of(work)}")
    return work
