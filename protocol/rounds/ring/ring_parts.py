"""One member's arithmetic in a ring: what it adds to each chunk, and what it carries on.

A member's *pending work* is its newest pseudo-gradient plus its *carried work*: what no round has
taken yet, and what its parts in earlier rounds left out (the residual). A ring only reads it. The
commit of the round changes it chunk by chunk. If the average contains the member, its pending work
becomes what its part left out (`error_of`). For a dense codec these are the rounding errors, and
nothing for an exact codec. For a sparse part it is all that was not sent, decayed. If the average
does not contain the member, its pending work stays and belongs to its next part. So no work counts
twice. None is lost here but what a sparse part decays, and some of the rounding errors of a member
that did little (`_ERROR_SHARE`). This is error feedback (1-bit SGD, Seide et al. 2014; EF-SGD,
arXiv 1901.09847).

In a dense ring a chunk on its way is the sum of w_i * delta_i over its contributors, with w_i the
share of a member in the ring's capped tokens (`token_caps`). The average is that sum divided by the
sum of their w_i. The parts of the other rings are those of `set_parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array, usable
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import RecordTree, leaf_of
from gossamer.protocol.codecs.tensor_codecs import TensorCodec, codec
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.apply import Apply
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.token_caps import capped_tokens

_ERROR_SHARE = 0.5
"""Lower bound on the share by which a rounding error is divided, as a part of the mean share. An
error weighs as little in the next ring as its member, so a member with a small share carries it
magnified. If that member does more work in the next round, the magnified error is noise: a member
that came for one step of twenty would add a coarse codec's error twentyfold. With this bound it
forgets a part of its errors."""

Values = Callable[[], Float32Array]
"""Gives the same values, in a new vector, each time that it is called."""


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


class RoundedSums:
    """The newest sum and the newest average of each chunk at one member.

    After a fault a chunk may come round again, and the error of its earlier sum does not count
    then.
    """

    def __init__(self, coder: TensorCodec, tokens: Sequence[int], position: int) -> None:
        """`tokens` of all members, by ring position; `position`: this member's."""
        self._codec = coder
        self._weights = capped_tokens(tokens)
        self._total = sum(self._weights)
        self.share = self.share_of(position)
        self._error_weight = max(self.share, np.float32(_ERROR_SHARE / len(tokens)))
        self._sums: dict[int, _Rounded] = {}
        self._averages: dict[int, _Rounded] = {}

    def share_of(self, position: int) -> np.float32:
        """The share of the member at a ring position."""
        return np.float32(self._weights[position] / self._total)

    def shares_of(self, mask: int) -> float:
        """The sum of the shares of these members; exactly 1 of all."""
        return sum(weight for i, weight in enumerate(self._weights) if mask >> i & 1) / self._total

    def decoded(self, payload: Buffer, num_elements: int, mask: int) -> Float32Array:
        """The values of a sum of these members, (num_elements,). Raises MalformedError."""
        return self._codec.of_sum(mask.bit_count()).decode(payload, num_elements)

    def encode(self, chunk: int, values: Values, num_members: int) -> Buffer:
        """The encoded sum of so many members, this one among them."""
        coder = self._codec.of_sum(num_members)
        return _noted(self._sums, chunk, values, coder, self._error_weight)

    def finish(self, chunk: int, payload: Buffer, num_elements: int, mask: int) -> Buffer:
        """The encoded average of a sum of these members."""
        # Exactly one when all members contribute: a division by almost one would round all values.
        divisor = np.float32(self.shares_of(mask))

        def average() -> Float32Array:
            return self.decoded(payload, num_elements, mask) / divisor

        # An error of the average belongs to the whole ring. As part of this member's next delta it
        # weighs w, so it has to be 1 / w times as large.
        return _noted(self._averages, chunk, average, self._codec, self._error_weight / divisor)

    def error_of(self, chunk: int) -> Float32Array | None:
        """The rounding errors that this member made, in units of its own work; None: it made none.

        They are worked out here, from what came in and what went out. Kept as they are made they
        would take 4 bytes a parameter and more.
        """
        both = (self._sums, self._averages)
        found = [newest[chunk].error() for newest in both if chunk in newest]
        return sum(found[1:], found[0]) if found else None


def _noted(
    newest: dict[int, _Rounded], chunk: int, values: Values, coder: TensorCodec, weight: np.float32
) -> Buffer:
    encoded = coder.encode(values())
    if coder.name != "fp32":
        newest[chunk] = _Rounded(values, coder, encoded, weight)
    return encoded


class SumPart:
    """A member's part of a dense ring."""

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

    def work_of(self, chunk: int) -> Float32Array:
        """This member's work in a chunk: a view."""
        return self._pending[self._plan.range_of(chunk)]

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """See `RingPart`: the encoded partial sum."""

        def values() -> Float32Array:
            work = usable(self.work_of(chunk))
            values = work * self._sums.share
            if payload is not None:
                values += self._sums.decoded(payload, work.size, mask)
            return values

        return self._sums.encode(chunk, values, mask.bit_count() + 1)

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        """See `RingPart`: the encoded average."""
        return self._sums.finish(chunk, payload, self._plan.elements_of(chunk), mask)

    def error_of(self, chunk: int) -> Float32Array | None:
        """See `RingPart`: the rounding errors that this member made."""
        return self._sums.error_of(chunk)


def tree_of(
    pending: Float32Array,
    plan: ChunkPlan,
    payloads: RecordPayloads | SumPayloads,
    apply: Apply = map,
) -> RecordTree:
    """The tree of a member's records; where sums travel, of the chunks of its work in fp32.

    Args:
        pending: (plan.num_elements,), the work that the member offers.
        apply: calls a function for each chunk, perhaps in threads.

    Raises:
        ValueError: the work has a value that cannot be used.
    """
    encode = payloads.encode if isinstance(payloads, RecordPayloads) else codec("fp32").encode

    def leaf(chunk: int) -> Digest:
        return leaf_of(chunk, encode(usable(pending[plan.range_of(chunk)])))

    return RecordTree(list(apply(leaf, range(plan.num_chunks))))
