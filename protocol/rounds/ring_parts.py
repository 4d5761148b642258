"""One member's arithmetic in a ring: what it adds to each chunk, and what it carries on.

A member's *pending work* is its newest pseudo-gradient plus the residual of earlier rounds. A ring
only reads it. The commit of the round changes it chunk by chunk. If the average contains the
member, its pending work becomes what its part left out (`error_of`). For a dense codec these are
the rounding errors, and nothing for an exact codec. For a sparse part it is all that was not sent,
decayed. If the average does not contain the member, its pending work stays and belongs to its next
part. So no work is lost, and none counts twice. This is error feedback (1-bit SGD, Seide et al.
2014; EF-SGD, arXiv 1901.09847).

`ring_average` walks all chunks of an undisturbed ring in one process. The machine that does the
same between peers, and survives their faults, is `protocol.rounds.ring`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from gossamer.protocol.codecs.chunk_values import (
    Buffer,
    Float32Array,
    is_usable,
    magnitude_of,
)
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import AveragedPayloads, SetPayloads
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import RecordTree, leaf_of
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import TensorCodec
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.token_caps import capped_tokens

_ERROR_SHARE = 0.5
"""Lower bound on the share by which a rounding error is divided, as a part of the mean share. An
error weighs as little in the next ring as its member, so a member with a small share carries it
magnified. If that member does more work in the next round, the magnified error is noise: a member
that came for one step of twenty would add a coarse codec's error twentyfold. With this bound it
forgets a part of its errors."""


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


Values = Callable[[], Float32Array]
"""Gives the same values, in a new vector, each time that it is called."""


class _Rounded(NamedTuple):
    """Values that a codec rounded."""

    values: Values
    coder: TensorCodec
    encoded: Buffer
    weight: np.float32
    """Divisor of the error: with this weight it comes into the next ring."""

    def error(self) -> Float32Array:
        error = self.values()
        error -= self.coder.decode(self.encoded, error.size)
        error /= self.weight
        return error


class SumPart:
    """A member's part of a dense ring.

    A chunk on its way is the sum of w_i * delta_i over its contributors, with w_i the share of a
    member in the ring's capped tokens (`token_caps`). The average is that sum divided by the sum of
    their w_i.
    """

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
        self._pending, self._plan, self._codec = pending, plan, coder
        self._weights = capped_tokens(tokens)
        self._weight = np.float32(self._weights[position] / sum(self._weights))
        self._error_weight = max(self._weight, np.float32(_ERROR_SHARE / len(tokens)))
        # The newest sum and the newest average. After a fault a chunk may come round again, and the
        # error of its earlier sum does not count then.
        self._sums: dict[int, _Rounded] = {}
        self._averages: dict[int, _Rounded] = {}

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """See `RingPart`: the encoded partial sum."""
        part, num_members = self._plan.range_of(chunk), mask.bit_count()

        def values() -> Float32Array:
            values = _usable(self._pending[part]) * self._weight
            if payload is not None:
                coder = self._codec.of_sum(num_members)
                values += coder.decode(payload, part.stop - part.start)
            return values

        coder = self._codec.of_sum(num_members + 1)
        return self._encode(chunk, values, coder, self._error_weight, self._sums)

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        """See `RingPart`: the encoded average."""
        # Exactly one when all members contribute: a division by almost one would round all values.
        present = sum(weight for i, weight in enumerate(self._weights) if mask >> i & 1)
        divisor = np.float32(present / sum(self._weights))

        def values() -> Float32Array:
            coder = self._codec.of_sum(mask.bit_count())
            return coder.decode(payload, self._plan.elements_of(chunk)) / divisor

        # An error of the average belongs to the whole ring. As part of this member's next delta it
        # weighs w, so it has to be 1 / w times as large.
        weight = self._error_weight / divisor
        return self._encode(chunk, values, self._codec, weight, self._averages)

    def _encode(
        self,
        chunk: int,
        values: Values,
        coder: TensorCodec,
        weight: np.float32,
        newest: dict[int, _Rounded],
    ) -> Buffer:
        encoded = coder.encode(values())
        if coder.name != "fp32":
            newest[chunk] = _Rounded(values, coder, encoded, weight)
        return encoded

    def error_of(self, chunk: int) -> Float32Array | None:
        """See `RingPart`: the rounding errors that this member made.

        They are worked out here, from what came in and what went out. Kept as they are made they
        would take 4 bytes a parameter and more.
        """
        both = (self._sums, self._averages)
        found = [newest[chunk].error() for newest in both if chunk in newest]
        return sum(found[1:], found[0]) if found else None


class SetPart:
    """A member's part of a sparse ring: a block that no other member changes (SparseLoCo, arXiv
    2508.15706).

    The part that was not sent is the error feedback, e = decay * (e - d): the decay is applied when
    a round has taken d, and the next pseudo-gradient is added to it later.
    """

    def __init__(
        self,
        pending: Float32Array,
        plan: ChunkPlan,
        coder: SparseCodec,
        position: int,
        error_decay: float,
    ) -> None:
        """`pending`: (plan.num_elements,), this member's work. `position`: in the ring."""
        self._pending, self._plan, self._codec = pending, plan, coder
        self._position = position
        self._error_decay = np.float32(error_decay)
        self._blocks: dict[int, bytes] = {}

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """See `RingPart`."""
        block = self._blocks.get(chunk)
        if block is None:
            block = self._codec.encode(_usable(self._pending[self._plan.range_of(chunk)]))
            self._blocks[chunk] = block
        return add_record(payload, self._position, block)

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        """See `RingPart`: every peer averages the list of parts for itself."""
        return payload

    def error_of(self, chunk: int) -> Float32Array | None:
        """See `RingPart`."""
        block = self._blocks.get(chunk)
        if block is None:
            return None
        part = self._plan.range_of(chunk)
        error = self._pending[part].copy()
        sent = self._codec.decode(block, part.stop - part.start)
        error[sent.places] -= sent.values
        error *= self._error_decay
        return error


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


def ring_average(
    pendings: Sequence[Float32Array],
    tokens: Sequence[int],
    plan: ChunkPlan,
    payloads: AveragedPayloads,
    error_decay: float = 1.0,
) -> Float32Array:
    """The average of the members' work, as all members decode it, weighted with capped tokens.

    The ring of a round without faults: chunk c begins with member c mod N and walks once round, and
    the last member finishes it. So the same additions are done in the same order as between peers.

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
            return SetPart(pending, plan, payloads.coder, position, error_decay)
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


def _usable(work: Float32Array) -> Float32Array:
    """A part of this member's own work, checked once more before it goes out.

    Raises:
        ValueError: a value is out of range.
    """
    if not is_usable(work):
        raise ValueError(f"own work has a value of {magnitude_of(work)}")
    return work
