"""Sets of signed records: what travels in a run whose members do not trust each other.

With `trust = "open"` the payload of a partial sum is a list of records (`contributions`), whatever
the codec. The block of a record is one member's chunk as the codec encodes it, and then the path to
the root that this member signed in its `Ready` (`record_tree`). So every member checks every record
that it receives, and nobody can change another one's contribution or invent one. A set is unique
given its mask, and so is the average, which every member computes for itself (`robust_average`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.contributions import (
    RECORD_PREFIX_BYTES,
    ListPayloads,
    MembersSigned,
    Record,
    split,
)
from gossamer.protocol.codecs.packing import (
    FLOATS_SHARE,
    LAYOUTS,
    FloatPacking,
    Packing,
    PlacePacking,
    saved_place_bytes,
)
from gossamer.protocol.codecs.record_tree import PATH_BYTES, root_over
from gossamer.protocol.codecs.robust_average import (
    robust_average,
    robust_weights,
    usual_weight,
)
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import TensorCodec
from gossamer.protocol.errors import ForgedError, MalformedError
from gossamer.protocol.standing import Standing


class RecordPayloads(ListPayloads):
    """Lists of records that their members have signed."""

    are_signed = True

    def __init__(
        self, name: str, coder: TensorCodec | SparseCodec, *, is_packing: bool = False
    ) -> None:
        """
        Args:
            name: of the codec in rosters and update indices.
            is_packing: whether records are packed on their way, where the codec has a packing.
        """
        self.name = name
        self.coder = coder
        self._layout = LAYOUTS.get(name) if is_packing else None
        self._packed_sparse = coder if is_packing and isinstance(coder, SparseCodec) else None

    @property
    def is_exact(self) -> bool:
        """Returns whether a record holds all of its member's work."""
        return self.name == "fp32"

    def part_bytes(self, num_elements: int) -> int:
        return RECORD_PREFIX_BYTES + self._block_bytes(num_elements)

    def _block_bytes(self, num_elements: int) -> int:
        return self.coder.encoded_bytes(num_elements) + PATH_BYTES

    def elements_max(self, num_members: int) -> int:
        """The most elements of a chunk, a multiple of 1024, of which so many members' records fit
        one block."""
        step = limits.CHUNK_ELEMENTS_MIN
        return max(
            elements
            for elements in range(step, limits.CHUNK_ELEMENTS_MAX + 1, step)
            if elements == step or self.members_max(elements) >= num_members
        )

    def packing(self, num_elements: int, mask: int) -> Packing | None:
        num_bytes, starts = self._chunk_starts(num_elements, mask)
        if self._packed_sparse is not None:
            return PlacePacking(num_bytes, starts, num_elements, self._packed_sparse)
        if self._layout is not None:
            return FloatPacking(num_bytes, starts, num_elements, self._layout)
        return None

    def packed_part_bytes(self, num_elements: int) -> int:
        part_bytes, sparse = self.part_bytes(num_elements), self._packed_sparse
        if sparse is not None:
            return part_bytes - saved_place_bytes(sparse, num_elements)
        return round(part_bytes * (FLOATS_SHARE if self._layout is not None else 1.0))

    def encode(self, values: Float32Array) -> bytes:
        """A member's chunk, without its path. Raises ValueError, see `TensorCodec.encode`."""
        return bytes(self.coder.encode(values))

    def decode(self, block: Buffer, num_elements: int) -> Float32Array:
        """The values of a chunk without its path, (num_elements,). Raises MalformedError."""
        decoded = self.coder.decode(block, num_elements)
        return decoded if isinstance(decoded, np.ndarray) else decoded.dense(num_elements)

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
        roots = signed.roots if signed is not None else ()
        for record in self._records(payload, num_elements, mask):
            block, path = self._parts(record, num_elements)
            if record.position >= len(roots):
                raise MalformedError("a record of a peer that is not in the ring")
            if root_over(chunk, block, path) != roots[record.position]:
                raise ForgedError(
                    f"a record of chunk {chunk} that member {record.position} did not sign"
                )
            self.coder.decode(block, num_elements)

    def average(
        self,
        payload: Buffer,
        num_elements: int,
        mask: int,
        tokens: Sequence[int],
        standing: Standing | None = None,
    ) -> Float32Array:
        """See `SumPayloads.average`. The records were checked when they came.

        Args:
            standing: of the ring's members, in a run with a probation.
        """
        records = self._records(payload, num_elements, mask)
        if not records or records[-1].position >= len(tokens):
            raise MalformedError("no record, or one of a peer that is not in the ring")
        if standing is not None and not any(
            standing.is_established(record.position) for record in records
        ):
            standing = None
        weights = robust_weights(tokens, standing)
        records = tuple(record for record in records if weights[record.position])
        parts = [self.decode(self._parts(each, num_elements)[0], num_elements) for each in records]
        judges = [
            index
            for index, record in enumerate(records)
            if standing is None or standing.is_established(record.position)
        ]
        counting = [weights[record.position] for record in records]
        return robust_average(parts, counting, judges, usual_weight(tokens, standing))

    def block_of(
        self, payload: Buffer, num_elements: int, mask: int, position: int
    ) -> bytes | None:
        """The chunk of the member at a ring position, encoded; None if it has no part in it. The
        records were checked when they came."""
        for record in self._records(payload, num_elements, mask):
            if record.position == position:
                return bytes(self._parts(record, num_elements)[0])
        return None

    def _records(self, payload: Buffer, num_elements: int, mask: int) -> tuple[Record, ...]:
        block_bytes = self._block_bytes(num_elements)
        records = split(payload, mask, block_bytes)
        if any(len(record.block) != block_bytes for record in records):
            raise MalformedError("a record that is too short")
        return records

    def _parts(self, record: Record, num_elements: int) -> tuple[memoryview, memoryview]:
        """The encoded chunk, and the path."""
        size = self.coder.encoded_bytes(num_elements)
        return record.block[:size], record.block[size:]
