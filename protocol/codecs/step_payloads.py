"""Lists of sign updates: what travels for a chunk of a shared step (`sync = "distro"`).

A shared step is a chunk, or several that follow each other (`outer.step_chunks`). The payload is a
list of records (`contributions`). The block of a record is the member's part of the chunk
(`step_codec`), or nothing where the member is late and abstains.

With `trust = "open"` each block has two more fields:

    ...        the member's part of the chunk, or nothing
    64 bytes   the member's signature under the root over its parts of this step
    ...        the path from the chunk to that root (`record_tree`)

A part is trained inside the ring, so its member cannot sign it before. It signs once for all chunks
of a step. Every member checks every record that it receives. So nobody can change another one's
part or invent one, and nobody can make a member abstain. Whose parts contradict those of most other
members does not count (`state.sign_agreement`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.contributions import (
    RECORD_PREFIX_BYTES,
    ListPayloads,
    MembersSigned,
    Record,
    split,
)
from gossamer.protocol.codecs.record_tree import RecordTree, depth_of, leaf_of, root_over
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, SIGNATURE_BYTES, Digest

DISTRO = "distro"


class SignPayloads(ListPayloads):
    """Lists of sign updates. Chunks have no elements."""

    name = DISTRO
    are_steps = True

    def __init__(self, coder: StepCodec, *, are_signed: bool = False) -> None:
        """
        Args:
            are_signed: whether each member signs its own parts. Otherwise members trust each other.
        """
        self.coder = coder
        self.are_signed = are_signed
        self.are_audited = not are_signed
        path_bytes = DIGEST_BYTES * depth_of(coder.num_chunks)
        self._tail_bytes = SIGNATURE_BYTES + path_bytes if are_signed else 0
        """What stands behind the part in each block."""

    def part_bytes(self, num_elements: int) -> int:
        """The mean of a step's chunks, rounded up."""
        mean_bytes = -(-self.coder.encoded_bytes // self.coder.num_chunks)
        return RECORD_PREFIX_BYTES + mean_bytes + self._tail_bytes

    def average_bytes_max(self, num_elements: int, num_members: int) -> int:
        return num_members * (RECORD_PREFIX_BYTES + self._block_bytes_max)

    def members_max(self, num_elements: int) -> int:
        largest = RECORD_PREFIX_BYTES + self._block_bytes_max
        return min(limits.RING_MEMBERS_MAX, limits.BLOCK_BYTES_MAX // largest)

    @property
    def _block_bytes_max(self) -> int:
        return self.coder.chunk_bytes_max + self._tail_bytes

    def is_length(
        self, num_bytes: int, num_elements: int, mask: int, chunk: int = 0, *, is_average: bool
    ) -> bool:
        num_members, part_bytes = mask.bit_count(), self.coder.chunk_bytes(chunk)
        parts = num_bytes - num_members * (RECORD_PREFIX_BYTES + self._tail_bytes)
        return parts in range(0, num_members * part_bytes + 1, part_bytes)

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
        self._check(payload, mask, chunk, signed)

    def check_committed(
        self, payload: Buffer, contributors: int, chunk: int, signed: MembersSigned
    ) -> None:
        """Checks an average of a committed round. There the members that have a part are known, and
        not those that abstained.

        Args:
            contributors: mask of the members that have a part, as the update index says.

        Raises:
            MalformedError: other members have a part, or a record cannot be decoded.
            ForgedError: see `check`.
        """
        self._check(payload, None, chunk, signed)
        if self.contributors(payload, None) != contributors:
            raise MalformedError("parts of other members than the update index says")

    def _check(
        self, payload: Buffer, mask: int | None, chunk: int, signed: MembersSigned | None
    ) -> None:
        for record in self._records(payload, mask):
            part, tail = self._cut(record)
            if self.are_signed:
                assert signed is not None
                step, number = divmod(chunk, self.coder.num_chunks)
                root = root_over(number, part, tail[SIGNATURE_BYTES:])
                signed.check_step(record.position, step, root, bytes(tail[:SIGNATURE_BYTES]))
            if len(part):
                self.coder.decode_chunk(chunk, part)

    def contributors(self, payload: Buffer, mask: int | None) -> int:
        """Members that abstain have no part."""
        return sum(
            1 << record.position
            for record in self._records(payload, mask)
            if len(self._cut(record)[0])
        )

    def updates(
        self, payload: Buffer, mask: int | None = None, chunk: int = 0
    ) -> dict[int, SignUpdate]:
        """Returns the updates of the members that have a part in a chunk, by ring position, in
        ascending order. The signatures were checked when the chunk came.

        Raises:
            MalformedError: it is no such chunk of these members (None: of whatever members).
        """
        parts = {record.position: self._cut(record)[0] for record in self._records(payload, mask)}
        return {
            position: self.coder.decode_chunk(chunk, part)
            for position, part in parts.items()
            if len(part)
        }

    def signed_blocks(
        self, parts: Sequence[bytes], sign: Callable[[Digest], bytes]
    ) -> tuple[bytes, ...]:
        """Returns the blocks of a member's parts of all chunks of a step, in their order.

        Args:
            sign: makes the member's signature under a root; not called where members trust each
                other.
        """
        if not self.are_signed:
            return tuple(parts)
        leaves = [leaf_of(number, part) for number, part in enumerate(parts)]
        tree = RecordTree(leaves, depth_of(len(leaves)))
        signature = sign(tree.root)
        return tuple(
            b"".join((part, signature, tree.path(number))) for number, part in enumerate(parts)
        )

    def _records(self, payload: Buffer, mask: int | None) -> tuple[Record, ...]:
        return split(payload, mask, self._block_bytes_max)

    def _cut(self, record: Record) -> tuple[memoryview, memoryview]:
        """The part, and what stands behind it. MalformedError for a block without room for it."""
        size = len(record.block) - self._tail_bytes
        if size < 0:
            raise MalformedError("a part of a step without its signature")
        return record.block[:size], record.block[size:]
