"""The payload of a chunk in the ring, and the result that every peer derives from the average.

A *sum* (`sync = "diloco"`) is the weighted sum of its members' parts, and each member encodes it
anew. Its average is the weighted mean, encoded once. A *set* is a list of the members'
contributions, which no other member changes (`contributions`). Its average is the same list, and
every peer reduces it: to a mean (`sync = "sparse"`) or to a shared step (`sync = "distro"`), in
which a late member has no part (`step_payloads`). With `outer.sparse_sums` the sparse contributions
of many members are a sum, because a set of them would be longer. With `trust = "open"` all modes
move sets of signed records (`record_payloads`, and `step_payloads` for shared steps). The rules of
the ring are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.contributions import (
    RECORD_PREFIX_BYTES,
    ListPayloads,
    MembersSigned,
    reduce,
    split,
)
from gossamer.protocol.codecs.packing import (
    FLOATS_SHARE,
    LAYOUTS,
    FloatLayout,
    FloatPacking,
    Packing,
    PlacePacking,
    saved_place_bytes,
)
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.sparse_codec import DEFAULT_K, SparseCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.codecs.tensor_codecs import TensorCodec, codec
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.manifest import OuterConfig, Trust
from gossamer.protocol.sync_modes import SyncMode
from gossamer.protocol.token_caps import capped_tokens

SPARSE = "sparse"


class SumPayloads:
    """Sums in the encoding of a dense codec. `ListPayloads` says what its methods are."""

    are_steps = False
    are_signed = False
    are_audited = True

    def __init__(self, coder: TensorCodec, layout: FloatLayout | None = None) -> None:
        """`layout`: of chunks that are packed on their way; None: they travel as they are."""
        self.coder = coder
        self._layout = layout

    @property
    def name(self) -> str:
        return self.coder.name

    def part_bytes(self, num_elements: int) -> int:
        return self.coder.encoded_bytes(num_elements)

    def is_length(
        self, num_bytes: int, num_elements: int, mask: int, chunk: int = 0, *, is_average: bool
    ) -> bool:
        coder = self.coder if is_average else self.coder.of_sum(mask.bit_count())
        return num_bytes == coder.encoded_bytes(num_elements)

    def average_bytes_max(self, num_elements: int, num_members: int) -> int:
        return self.coder.encoded_bytes(num_elements)

    def mean_bytes(self, num_elements: int, num_members: int, *, is_packed: bool = False) -> int:
        mean = average_bytes = self.coder.encoded_bytes(num_elements)
        if num_members > 1:  # there are links
            # A sum has one member on the first link of its chunk, and all but one on the last.
            sums = (self.coder.of_sum(n).encoded_bytes(num_elements) for n in range(1, num_members))
            mean = (sum(sums) // (num_members - 1) + average_bytes) // 2
        return round(FLOATS_SHARE * mean) if is_packed and self._layout is not None else mean

    def members_max(self, num_elements: int) -> int:
        return limits.RING_MEMBERS_MAX

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
        coder = self.coder if is_average else self.coder.of_sum(mask.bit_count())
        coder.check(payload, num_elements)

    def contributors(self, payload: Buffer, mask: int) -> int:
        return mask

    def packing(self, num_elements: int, mask: int) -> Packing | None:
        if self._layout is None:
            return None
        num_bytes = self.coder.encoded_bytes(num_elements)
        return FloatPacking(num_bytes, (0,), num_elements, self._layout)

    def average(
        self, payload: Buffer, num_elements: int, mask: int, tokens: Sequence[int]
    ) -> Float32Array:
        """The decoded average, (num_elements,): the same bits at every peer.

        Args:
            tokens: by ring position, as the round's header will have them.

        Raises:
            MalformedError: the payload is not an average of these members.
        """
        return self.coder.decode(payload, num_elements)


class SetPayloads(ListPayloads):
    """Lists of sparse contributions; with `sums`, those of many members are sums of them."""

    name = SPARSE
    are_audited = True

    def __init__(
        self,
        coder: SparseCodec,
        sums: TensorCodec | None = None,
        set_members_max: int = limits.RING_MEMBERS_MAX,
        *,
        is_packing: bool = False,
    ) -> None:
        """
        Args:
            sums: the codec of sums; None in a run that has lists only.
            set_members_max: most members whose payload is a list, in a run with sums.
            is_packing: whether lists are packed on their way.
        """
        self.coder, self.sums, self._is_packing = coder, sums, is_packing
        self.set_members_max = limits.RING_MEMBERS_MAX if sums is None else set_members_max

    @classmethod
    def with_sums(
        cls, coder: SparseCodec, chunk_elements: int, *, is_packing: bool = False
    ) -> SetPayloads:
        """Lists of so many members that a sum would be longer, chunks being as large as most of a
        run's. Without packing: lists of as many members as send no more in a ring of lists than in
        one of sums; of none if one part is longer than a sum."""
        sums, lists = codec("int4", is_widening=True), cls(coder, is_packing=is_packing)
        part_bytes = lists.packed_part_bytes(chunk_elements)
        average_bytes = sums.encoded_bytes(chunk_elements)
        if is_packing:
            most = min(average_bytes // part_bytes, lists.members_max(chunk_elements))
            return cls(coder, sums, most, is_packing=True)
        num_members = 1 if part_bytes <= average_bytes else 0
        sums_bytes = 0
        while 0 < num_members < limits.RING_MEMBERS_MAX:
            # A ring of one member more has so many links for partial sums, which have one member
            # on the first of them, and as many again for the average.
            num_links = num_members
            sums_bytes += sums.of_sum(num_links).encoded_bytes(chunk_elements)
            num_parts = sum(range(1, num_links + 1)) + num_links * (num_links + 1)
            if num_parts * part_bytes > sums_bytes + num_links * average_bytes:
                break
            num_members += 1
        return cls(coder, sums, num_members)

    def is_sum(self, mask: int) -> bool:
        """Returns whether a payload of these members is a sum, or the average of one."""
        return mask.bit_count() > self.set_members_max

    def _coder_of(self, mask: int, *, is_average: bool) -> TensorCodec | None:
        """The codec of a sum of these members or of its average; None: the payload is a list."""
        if self.sums is None or not self.is_sum(mask):
            return None
        return self.sums if is_average else self.sums.of_sum(mask.bit_count())

    def part_bytes(self, num_elements: int) -> int:
        return RECORD_PREFIX_BYTES + self.coder.encoded_bytes(num_elements)

    def packed_part_bytes(self, num_elements: int) -> int:
        saved = saved_place_bytes(self.coder, num_elements) if self._is_packing else 0
        return self.part_bytes(num_elements) - saved

    def packing(self, num_elements: int, mask: int) -> Packing | None:
        if not self._is_packing or self.is_sum(mask):
            return None
        return PlacePacking(*self._chunk_starts(num_elements, mask), num_elements, self.coder)

    def is_length(
        self, num_bytes: int, num_elements: int, mask: int, chunk: int = 0, *, is_average: bool
    ) -> bool:
        coder = self._coder_of(mask, is_average=is_average)
        if coder is not None:
            return num_bytes == coder.encoded_bytes(num_elements)
        return super().is_length(num_bytes, num_elements, mask, chunk, is_average=is_average)

    def average_bytes_max(self, num_elements: int, num_members: int) -> int:
        of_lists = min(num_members, self.set_members_max)
        longest_list = super().average_bytes_max(num_elements, of_lists)
        if self.sums is None or of_lists == num_members:
            return longest_list
        return max(longest_list, self.sums.encoded_bytes(num_elements))

    def mean_bytes(self, num_elements: int, num_members: int, *, is_packed: bool = False) -> int:
        if self.sums is None or num_members <= self.set_members_max:
            return super().mean_bytes(num_elements, num_members, is_packed=is_packed)
        average_bytes = self.sums.encoded_bytes(num_elements)
        if num_members < 2:  # there is no link
            return average_bytes
        of_lists = self.set_members_max
        part_bytes = (self.packed_part_bytes if is_packed else self.part_bytes)(num_elements)
        sent = sum(n * part_bytes for n in range(1, of_lists + 1))
        for n in range(of_lists + 1, num_members):
            sent += self.sums.of_sum(n).encoded_bytes(num_elements)
        return (sent // (num_members - 1) + average_bytes) // 2

    def members_max(self, num_elements: int) -> int:
        if self.sums is None:
            return super().members_max(num_elements)
        return limits.RING_MEMBERS_MAX  # no list is so long that it would not fit a block

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
        coder = self._coder_of(mask, is_average=is_average)
        if coder is not None:
            coder.check(payload, num_elements)
            return
        for record in split(payload, mask, self.coder.encoded_bytes(num_elements)):
            self.coder.decode(record.block, num_elements)

    def average(
        self, payload: Buffer, num_elements: int, mask: int, tokens: Sequence[int]
    ) -> Float32Array:
        coder = self._coder_of(mask, is_average=True)
        if coder is not None:
            return coder.decode(payload, num_elements)
        records = split(payload, mask, self.coder.encoded_bytes(num_elements))
        if records and records[-1].position >= len(tokens):
            raise MalformedError("a contribution of a peer that is not in the ring")
        capped = capped_tokens(tokens)
        # A member whose header has no tokens for it is in too few chunks to count for one.
        weights = {record.position: max(1, capped[record.position]) for record in records}
        return reduce(records, weights, num_elements, self.coder)


AveragedPayloads: TypeAlias = SumPayloads | SetPayloads | RecordPayloads
"""The kinds whose averages are vectors."""

Payloads: TypeAlias = AveragedPayloads | SignPayloads

AuditedPayloads: TypeAlias = SumPayloads | SetPayloads | SignPayloads
"""The kinds of members that trust each other."""


def payloads_named(
    name: str,
    top_k: int = DEFAULT_K,
    trust: Trust = "members",
    *,
    is_widening: bool = False,
    sparse_sums_of: int = 0,
    is_packing: bool = False,
) -> AveragedPayloads:
    """The kind of that name. VersionError if this version does not know it.

    Args:
        is_widening: whether sums of many members have wider codes, where the codec has such.
        sparse_sums_of: elements of most chunks in a run where the sparse parts of many members
            travel as a sum, if members trust each other; 0: they are sets.
        is_packing: whether payloads are packed on their way, where the codec has a packing.
    """
    if trust == "open":
        coder = SparseCodec(top_k) if name == SPARSE else codec(name)
        return RecordPayloads(name, coder, is_packing=is_packing)
    if name == SPARSE:
        sparse = SparseCodec(top_k)
        if sparse_sums_of:
            return SetPayloads.with_sums(sparse, sparse_sums_of, is_packing=is_packing)
        return SetPayloads(sparse, is_packing=is_packing)
    layout = LAYOUTS.get(name) if is_packing else None
    return SumPayloads(codec(name, is_widening=is_widening), layout)


def payloads_of(sync: SyncMode, outer: OuterConfig, trust: Trust) -> AveragedPayloads:
    """The kind that a run of averages uses. VersionError for a codec that this version does not
    know."""
    return payloads_named(
        SPARSE if sync == "sparse" else outer.codec,
        outer.top_k,
        trust,
        is_widening=bool(outer.widening),
        sparse_sums_of=outer.chunk_elements if outer.sparse_sums else 0,
        is_packing=bool(outer.packing),
    )
