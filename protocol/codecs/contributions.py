"""A chunk as the set of its members' contributions, which every peer reduces for itself.

In a sparse ring (`sync = "sparse"`, `"distro"`) the payload of a partial sum is not a sum but a
list of records. There is one for each member in the mask, in ascending ring position:

    1 byte    ring position
    4 bytes   length of the block, big-endian
    ...       the block: the member's contribution, as the mode's codec writes it

A block of no bytes abstains: its member is in the mask and adds nothing. The average is the same
list. Every peer reduces it to the same bits: the codec decodes exactly, norms are rounded once, and
the sum is taken in ascending position in fp32, each product and each addition rounded by itself. A
place is in a contribution once, so no scatter has an order that could vary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.packing import Packing
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.ids import Digest

_POSITION_BYTES = 1
_LENGTH_BYTES = 4
RECORD_PREFIX_BYTES = _POSITION_BYTES + _LENGTH_BYTES
assert limits.RING_MEMBERS_MAX <= 1 << 8 * _POSITION_BYTES

SHARE_MIN = 2.0**-50
"""A smaller share is none. With the magnitudes of `sparse_codec` (2**-50 at least) every product is
then at least 2**-100, a sum of such products is 0 or at least 2**-123, and nothing that is computed
here is subnormal: processors that flush subnormal numbers to zero come to the same bits."""


@dataclass(frozen=True)
class Record:
    """The contribution of one member to a chunk."""

    position: int
    """Position of the member in the ring."""
    block: memoryview
    """The encoded contribution; empty if the member abstains."""


class MembersSigned(Protocol):
    """The signatures of the members of one ring, by ring position."""

    @property
    def roots(self) -> Sequence[bytes]:
        """The roots over each member's records of the round (`record_tree`)."""

    def check_step(self, position: int, step: int, root: Digest, signature: bytes) -> None:
        """Raises ForgedError if the member at this position did not sign this root over its parts
        of a shared step, and MalformedError for a position that the ring does not have."""


class ListPayloads(ABC):
    """The common part of the kinds of payload that are lists of contributions (`payloads`). Methods
    may run in threads."""

    name: str
    """The name of the codec in rosters and update indices."""
    are_steps = False
    """Whether each chunk waits for the one before it."""
    are_signed = False
    """Whether a payload can be checked against what its members have signed: then it is, whenever
    it comes."""
    are_audited = False
    """Whether members trust each other's partial sums. Then each one is signed by the member that
    passes it on, and another member can add it up again (`policy.auditing.sum_audits`)."""

    @abstractmethod
    def part_bytes(self, num_elements: int) -> int:
        """Size of one member's part of a chunk."""

    @abstractmethod
    def check(
        self,
        payload: Buffer,
        num_elements: int,
        mask: int,
        chunk: int = 0,
        signed: MembersSigned | None = None,
        *,
        is_average: bool = True,
    ) -> None:
        """Checks an average, or a partial sum.

        Args:
            chunk: its number.
            signed: what the ring's members have signed; only signed payloads are compared with it,
                and they need it.

        Raises:
            MalformedError: other contributions than those of the mask, or one that cannot be
                decoded.
            ForgedError: a record that its member did not sign, in a run where members sign them.
        """

    def is_length(
        self, num_bytes: int, num_elements: int, mask: int, chunk: int = 0, *, is_average: bool
    ) -> bool:
        """Returns whether an average or a partial sum of these members may have this length.

        Args:
            chunk: its number.
        """
        return num_bytes == mask.bit_count() * self.part_bytes(num_elements)

    def average_bytes_max(self, num_elements: int, num_members: int) -> int:
        """Size of the longest average of at most so many members."""
        return num_members * self.part_bytes(num_elements)

    def packed_part_bytes(self, num_elements: int) -> int:
        """Size of one member's part of a chunk on its way, by estimate."""
        return self.part_bytes(num_elements)

    def mean_bytes(self, num_elements: int, num_members: int, *, is_packed: bool = False) -> int:
        """Mean size of a chunk in transit, over all links of a ring; as it is, or by estimate as it
        travels when it is packed."""
        part_bytes = self.packed_part_bytes if is_packed else self.part_bytes
        # One member's part goes over the first link, all but the last one's over the last; and the
        # average, with all, over as many links.
        return 3 * num_members * part_bytes(num_elements) // 4

    def members_max(self, num_elements: int) -> int:
        """Most members of a ring with chunks of this size: a chunk has to fit one block."""
        return min(limits.RING_MEMBERS_MAX, limits.BLOCK_BYTES_MAX // self.part_bytes(num_elements))

    def contributors(self, payload: Buffer, mask: int) -> int:
        """Mask of the members that have a part in an average; a subset of `mask`."""
        return mask

    def packing(self, num_elements: int, mask: int) -> Packing | None:
        """The packing of an average or a partial sum of these members; None if it travels as it
        is."""
        return None

    def _chunk_starts(self, num_elements: int, mask: int) -> tuple[int, range]:
        """(bytes of a list of these members, the places in it where an encoded chunk begins), where
        all parts have one length."""
        part_bytes = self.part_bytes(num_elements)
        num_bytes = mask.bit_count() * part_bytes
        return num_bytes, range(RECORD_PREFIX_BYTES, num_bytes, part_bytes)


def add_record(payload: Buffer | None, position: int, block: Buffer) -> bytes:
    """The payload (None: an empty one) with one more record in its place.

    Raises:
        ValueError: no such position, or the result does not fit a frame.
        MalformedError: `payload` is no list of records, or has one of this position.
    """
    if not 0 <= position < limits.RING_MEMBERS_MAX:
        raise ValueError(f"ring position {position}")
    view = memoryview(payload if payload is not None else b"")
    place = len(view)
    for start, record in _records(view):
        if record.position == position:
            raise MalformedError(f"a second record of member {position}")
        if record.position > position:
            place = start
            break
    added = position.to_bytes(_POSITION_BYTES, "big") + len(block).to_bytes(_LENGTH_BYTES, "big")
    result = b"".join((view[:place], added, block, view[place:]))
    if len(result) > limits.BLOCK_BYTES_MAX:
        raise ValueError(f"contributions of {len(result)} bytes do not fit a frame")
    return result


def split(payload: Buffer, mask: int | None, block_bytes_max: int) -> tuple[Record, ...]:
    """The records of the members in `mask`, in ascending position; the blocks are not looked at.

    Raises:
        MalformedError: anything but one record for each member in the mask (None: of whatever
            members), in this order.
        OversizedError: a block longer than `block_bytes_max`.
    """
    records = tuple(record for _, record in _records(memoryview(payload)))
    if mask is not None and sum(1 << record.position for record in records) != mask:
        raise MalformedError("contributions of other members than the mask says")
    for record in records:
        if len(record.block) > block_bytes_max:
            raise OversizedError(f"a contribution of {len(record.block)} bytes")
    return records


def _records(view: memoryview) -> list[tuple[int, Record]]:
    """(where it begins, record) of each; positions ascend, and there are at most 256 of them."""
    found: list[tuple[int, Record]] = []
    start, before = 0, -1
    while start < len(view):
        body = start + RECORD_PREFIX_BYTES
        prefix = bytes(view[start:body])
        position = int.from_bytes(prefix[:_POSITION_BYTES], "big")
        stop = body + int.from_bytes(prefix[_POSITION_BYTES:], "big")
        if len(prefix) < RECORD_PREFIX_BYTES or stop > len(view):
            raise MalformedError("a contribution that is cut off")
        if position <= before:
            raise MalformedError("contributions out of order")
        found.append((start, Record(position, view[body:stop])))
        start, before = stop, position
    return found


def reduce(
    records: Sequence[Record], weights: Mapping[int, int], num_elements: int, coder: SparseCodec
) -> Float32Array:
    """The weighted average of the contributions, those that abstain left out.

    Each is first clipped to the lower median of their L2 norms, so that none outweighs the rest by
    being large.

    Args:
        records: in ascending position, as `split` gives them.
        weights: tokens by ring position, at least 1 each.

    Raises:
        MalformedError: a block that cannot be decoded.
    """
    parts = {r.position: coder.decode(r.block, num_elements) for r in records if len(r.block)}
    clips = clip_factors([part.squared_norm for part in parts.values()])
    total = sum(weights[position] for position in parts)
    average = np.zeros(num_elements, np.float32)
    for (position, part), clip in zip(parts.items(), clips, strict=True):
        share = weights[position] / total * clip
        if share >= SHARE_MIN:
            average[part.places] += part.values * np.float32(share)
    return average


def clip_factors(squared_norms: Sequence[float]) -> list[float]:
    """Returns the factor for each vector by which it has at most the lower median norm.

    Vectors of zeros have no say in the median: they would silence the others. A division and a
    square root in fp64, which IEEE 754 rounds alike everywhere.
    """
    ordered = sorted(each for each in squared_norms if each > 0)
    median = ordered[(len(ordered) - 1) // 2] if ordered else 0.0
    return [math.sqrt(median / each) if each > median else 1.0 for each in squared_norms]
