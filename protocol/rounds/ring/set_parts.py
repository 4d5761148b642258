"""One member's part of a ring in which sets travel: a sparse ring, or one of signed records.

In a sparse ring a set of few members' parts travels as they are. In a run with `outer.sparse_sums`
a payload of more members than `SetPayloads.set_members_max` is a sum in the codes of `int4`: no
link carries much more than it would in a dense ring. The number of bits in the mask says which it
is, so every receiver knows it before the bytes come, and whoever replays the average knows it too.

The member whose part makes a set too long adds up all its parts: it clips them to their lower
median norm, as every peer does with a set, and weighs them as in a dense ring. Later members add
their part to the sum. A part is in a payload once, and sums only grow, so a set becomes a sum and
never the other way round.

`ring_average` walks all chunks of an undisturbed ring in one process. The machine that does the
same between peers, and survives their faults, is `protocol.rounds.ring.ring`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array, check_decoded, usable
from gossamer.protocol.codecs.contributions import SHARE_MIN, add_record, clip_factors, split
from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.payloads import AveragedPayloads, SetPayloads
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import RecordTree, leaf_of
from gossamer.protocol.codecs.sparse_codec import SparseCodec, SparseVector
from gossamer.protocol.rounds.ring.ring_parts import RingPart, RoundedSums, SumPart, tree_of
from gossamer.protocol.state.apply import Apply
from gossamer.protocol.state.chunk_plan import ChunkPlan

_PART_NORM_MAX = 2.0
"""Most length of a part that is added to a sum, in lengths of one of the parts in it as the sum
shows them. The lengths of honest members differ by less, but for members that did far more work:
they count for less here than in a dense ring, and for more than in a set."""


class SetPart:
    """A member's part of a sparse ring: the largest values of its work, which no other member
    changes (SparseLoCo, arXiv 2508.15706).

    The part that was not sent is the error feedback, e = decay * (e - d): the decay is applied when
    a round has taken d, and the next pseudo-gradient is added to it later. What a sum rounds is
    carried without decay, as in a dense ring: it belongs to the work of all members.
    """

    def __init__(
        self,
        pending: Float32Array,
        plan: ChunkPlan,
        payloads: SetPayloads,
        tokens: Sequence[int],
        position: int,
        error_decay: float,
        blocks: Mapping[int, bytes] | None = None,
    ) -> None:
        """
        Args:
            pending: (plan.num_elements,), this member's work.
            tokens: of all members, by ring position.
            position: this member's.
            blocks: encoded chunks of the work, by number; the others are encoded when the ring asks
                for them.
        """
        self._pending, self._plan, self._payloads = pending, plan, payloads
        self._position = position
        self._error_decay = np.float32(error_decay)
        self._encoded = blocks or {}
        self._blocks: dict[int, bytes] = {}
        """The chunks that the ring asked for."""
        self._sums: RoundedSums | None = None
        if payloads.sums is not None:
            self._sums = RoundedSums(payloads.sums, tokens, position)

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """See `RingPart`."""
        block = self._blocks.get(chunk)
        if block is None:
            work = usable(self._pending[self._plan.range_of(chunk)])
            block = self._encoded.get(chunk) or self._payloads.coder.encode(work)
            self._blocks[chunk] = block
        num_elements = self._plan.elements_of(chunk)
        if not self._payloads.is_sum(mask | 1 << self._position):
            return add_record(payload, self._position, block)
        sums, own = self._sums, block
        assert sums is not None

        def values() -> Float32Array:
            part = self._payloads.coder.decode(own, num_elements)
            if payload is None or not self._payloads.is_sum(mask):
                return self._sum_of_set(payload, mask, part, num_elements)
            sum_before = sums.decoded(payload, num_elements, mask)
            share = sums.share * np.float32(self._clip(part, sum_before, mask))
            if share >= SHARE_MIN:
                sum_before[part.places] += part.values * share
            return sum_before

        return sums.encode(chunk, values, mask.bit_count() + 1)

    def _sum_of_set(
        self, payload: Buffer | None, mask: int, own: SparseVector, num_elements: int
    ) -> Float32Array:
        """The weighted sum of the parts of a set (None: of no part) and of this member's."""
        sums, coder = self._sums, self._payloads.coder
        assert sums is not None
        parts = {self._position: own}
        for record in split(payload or b"", mask, coder.encoded_bytes(num_elements)):
            parts[record.position] = coder.decode(record.block, num_elements)
        clips = clip_factors([part.squared_norm for part in parts.values()])
        values = np.zeros(num_elements, np.float32)
        for (position, part), clip in zip(parts.items(), clips, strict=True):
            share = float(sums.share_of(position)) * clip
            if share >= SHARE_MIN:
                values[part.places] += part.values * np.float32(share)
        check_decoded(values)  # shares are rounded, so the largest parts may come to more
        return values

    def _clip(self, own: SparseVector, sum_before: Float32Array, mask: int) -> float:
        """Factor of this member's part in a sum.

        A card that computes nonsense shall not outweigh all others. No member sees the parts in a
        sum. If n of them have nothing in common, they make it sqrt(n) times as long as one, and
        what they have in common makes it longer.
        """
        assert self._sums is not None
        num_parts = mask.bit_count()
        mean_share = self._sums.shares_of(mask) / num_parts
        one = norm_of(sum_before) / math.sqrt(num_parts) / mean_share
        norm = math.sqrt(own.squared_norm)
        return min(1.0, _PART_NORM_MAX * one / norm) if norm > 0 and one > 0 else 1.0

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        """See `RingPart`: a sum is divided and encoded; a set every peer averages for itself."""
        num_elements = self._plan.elements_of(chunk)
        if not self._payloads.is_sum(mask):
            return payload
        assert self._sums is not None
        return self._sums.finish(chunk, payload, num_elements, mask)

    def error_of(self, chunk: int) -> Float32Array | None:
        """See `RingPart`."""
        block = self._blocks.get(chunk)
        if block is None:
            return None
        part = self._plan.range_of(chunk)
        error = self._pending[part].copy()
        sent = self._payloads.coder.decode(block, part.stop - part.start)
        error[sent.places] -= sent.values
        error *= self._error_decay
        rounded = None if self._sums is None else self._sums.error_of(chunk)
        if rounded is not None:
            error += rounded
        return error


def blocks_of(
    pending: Float32Array, plan: ChunkPlan, payloads: SetPayloads, apply: Apply = map
) -> list[bytes]:
    """A member's sparse parts of all chunks, which enter the ring as they are.

    Args:
        pending: (plan.num_elements,), the work that the member offers.
        apply: calls a function for each chunk, perhaps in threads.

    Raises:
        ValueError: the work has a value that cannot be used.
    """

    def block(chunk: int) -> bytes:
        return payloads.coder.encode(usable(pending[plan.range_of(chunk)]))

    return list(apply(block, range(plan.num_chunks)))


def tree_over(blocks: Sequence[bytes]) -> RecordTree:
    """The tree of these parts: its root is in the member's `Ready`."""
    return RecordTree([leaf_of(chunk, block) for chunk, block in enumerate(blocks)])


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
