"""What one member of a ring holds of its chunks (`Chunk`), and what it tells of that (`Inventory`).

The partial sum of a chunk has the states of `states.CHUNK`. `ring.RingReduce` holds the rules that
decide when a state changes; the methods here keep the fields in step with the state.

A member tells its inventory to the member that becomes its predecessor. A member whose successor
died would have to send a whole model's bytes to the next one, which has already seen most of them.
With the inventory it sends only what is of use. A member's chunks only grow in worth, so an old
inventory never keeps back what is needed.

The wire format has three fields for every chunk. First comes the mask of the kept copy, then the
mask of the average. Each mask is as long as the ring needs, big-endian, and 0 means that the member
holds nothing. The digest of the average's bytes follows, or zeros without an average.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.rounds.states import CHUNK, SumEvent, SumState
from gossamer.protocol.wire.opening_messages import STEPS_MAX


def is_better(mask: int, digest: Digest, other_mask: int, other_digest: Digest) -> bool:
    """The lattice rule for averages of one chunk: most contributors, then the lowest digest."""
    mine, theirs = mask.bit_count(), other_mask.bit_count()
    return mine > theirs or (mine == theirs and digest < other_digest)


@dataclass(frozen=True)
class Held:
    """The parts of one chunk that a member holds."""

    copy_mask: int = 0
    """Contributors of the kept copy; 0: there is none."""
    average: tuple[int, Digest] | None = None
    """Mask and digest of the average."""


@dataclass(frozen=True)
class Inventory:
    """The parts of every chunk that a member holds."""

    chunks: tuple[Held, ...]

    def wants(self, chunk: int, mask: int, average_digest: Digest | None) -> bool:
        """Returns whether a chunk would change anything at the member.

        Args:
            mask: contributors of the chunk.
            average_digest: digest of the average; None: the chunk is a partial sum.
        """
        held = self.chunks[chunk]
        if held.average is None:
            return average_digest is not None or mask & ~held.copy_mask != 0
        return average_digest is not None and is_better(mask, average_digest, *held.average)


def encode_inventory(inventory: Inventory, num_members: int) -> bytes:
    mask_bytes = _mask_bytes(num_members)
    parts: list[bytes] = []
    for held in inventory.chunks:
        mask, digest = held.average or (0, bytes(DIGEST_BYTES))
        parts += (held.copy_mask.to_bytes(mask_bytes, "big"), mask.to_bytes(mask_bytes, "big"))
        parts.append(digest)
    return b"".join(parts)


def decode_inventory(
    data: bytes | bytearray | memoryview, num_chunks: int, num_members: int
) -> Inventory:
    """Raises MalformedError for a wrong length, or members that the ring does not have."""
    mask_bytes = _mask_bytes(num_members)
    record_bytes = 2 * mask_bytes + DIGEST_BYTES
    if len(data) != num_chunks * record_bytes:
        raise MalformedError(f"inventory of {len(data)} bytes for {num_chunks} chunks")
    chunks: list[Held] = []
    for start in range(0, len(data), record_bytes):
        middle, end = start + mask_bytes, start + 2 * mask_bytes
        copy_mask = int.from_bytes(data[start:middle], "big")
        mask = int.from_bytes(data[middle:end], "big")
        if max(copy_mask, mask) >> num_members:
            raise MalformedError("inventory with members that the ring does not have")
        digest = Digest(bytes(data[end : start + record_bytes]))
        chunks.append(Held(copy_mask, (mask, digest) if mask else None))
    return Inventory(tuple(chunks))


def _mask_bytes(num_members: int) -> int:
    return (num_members + 7) // 8


Payload: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Average:
    """An averaged chunk: its contributors and the digest of its encoded bytes."""

    mask: int
    """Contributors, one bit for each ring position."""
    digest: Digest
    finisher: int
    """Ring position of the member that divided the sum."""
    payload: Payload = field(repr=False)
    signature: bytes = field(default=b"", repr=False)
    """The finisher's; empty where records are signed."""

    def is_better_than(self, other: Average | None) -> bool:
        """The lattice rule: most contributors, then the lowest digest."""
        if other is None:
            return True
        return is_better(self.mask, self.digest, other.mask, other.digest)


NO_DIGEST = Digest(b"")
"""Stands for the digest of a partial sum that nobody audits."""


class ArrivedSum(NamedTuple):
    """A partial sum as its sender passed it on."""

    sender: PeerId
    mask: int
    payload: Payload
    digest: Digest = NO_DIGEST
    signature: bytes = b""
    """The sender's; empty for a partial sum that nobody audits."""


class SumStep(NamedTuple):
    """What this member did to a partial sum that it used: it added its part, or took the sum as it
    was."""

    sender: PeerId | None
    """The member that sent the sum; None: this member began it."""
    mask: int
    """Members in what came; 0 for a sum that begins."""
    digest: Digest
    """Of what came."""
    signature: bytes
    """The sender's, under what came."""
    result: Digest
    """Digest of what this member passed on, or finished."""


class SignedDigest(NamedTuple):
    """An average that its finisher has signed, without its bytes."""

    mask: int
    digest: Digest
    signature: bytes


@dataclass
class Chunk:
    """One member's copy of one chunk."""

    sum_state: SumState = CHUNK.initial
    contributing_mask: int | None = None
    """Mask of the sum to which this member's part is being added; None: no addition is under
    way."""
    adding_to: ArrivedSum | None = None
    """That sum; None: this member begins one, or no addition is under way."""
    waiting: ArrivedSum | None = None
    """The best other partial sum that arrived during an addition."""
    copy_mask: int = 0
    """Contributors of the newest sum that holds this member's part; 0: there was none."""
    copy: Payload | None = None
    """The newest sum itself, kept until the average is here."""
    copy_digest: Digest = NO_DIGEST
    """Its digest, where sums are audited."""
    steps: list[SumStep] = field(default_factory=list)
    """How the copies came about, where sums are audited: at most `STEPS_MAX` steps."""
    copy_receiver: PeerId | None = None
    """The member to which the copy was sent; None: it was not sent yet."""
    average: Average | None = None
    early: dict[PeerId, Average] = field(default_factory=dict)
    """The last early average of each sender: a member's later average is always better."""
    signed: dict[int, SignedDigest] = field(default_factory=dict)
    """The first average that each member signed, by ring position."""

    @property
    def held(self) -> Held:
        """The part of the chunk that this member holds."""
        average = self.average
        # A sum whose addition is under way may turn out to be malformed.
        copy_mask = self.copy_mask if self.copy is not None else 0
        return Held(copy_mask, None if average is None else (average.mask, average.digest))

    @property
    def has_all_steps(self) -> bool:
        """Returns whether an auditor could not be told of a further step. None is forgotten
        instead: the sum that it made is signed, and may be the one that became the average."""
        return len(self.steps) == STEPS_MAX

    def drop_worse(self) -> None:
        """Forgets early averages that would not be taken any more: each is as large as a chunk."""
        self.early = {
            sender: early
            for sender, early in self.early.items()
            if early.is_better_than(self.average)
        }

    def add(self, arrived: ArrivedSum | None) -> None:
        """The addition of this member's part to a sum begins; None: this member begins the sum."""
        self._go("add")
        self.adding_to = arrived
        self.contributing_mask = 0 if arrived is None else arrived.mask

    def added(self, digest: Digest) -> None:
        """The addition is done. `digest`: of the new sum."""
        arrived, self.adding_to = self.adding_to, None
        self.copy_digest = digest
        self._note_step(arrived, digest)

    def replace_copy(self, arrived: ArrivedSum) -> None:
        """A better sum with this member's part takes the place of the copy."""
        self.copy, self.copy_mask = arrived.payload, arrived.mask
        self.copy_digest, self.copy_receiver = arrived.digest, None
        self._note_step(arrived, arrived.digest)

    def _note_step(self, arrived: ArrivedSum | None, result: Digest) -> None:
        if not result:
            return
        if arrived is None:
            self.steps.append(SumStep(None, 0, NO_DIGEST, b"", result))
            return
        came = arrived.sender, arrived.mask, arrived.digest, arrived.signature
        self.steps.append(SumStep(*came, result))

    def pass_on(self, receiver: PeerId) -> None:
        """The copy is sent to a member."""
        self._go("pass on")
        self.copy_receiver = receiver

    def finish(self) -> None:
        """The division of the copy begins."""
        self._go("finish")

    def reject(self) -> None:
        """The sum of the addition was malformed: an earlier copy stays what it was."""
        if not self.copy_mask:
            self._go("reject")
        else:
            self._go("return" if self.copy is not None else "release")
        self.contributing_mask = self.adding_to = None

    def release(self) -> None:
        """The sum has no further use here."""
        self._go("release")
        self.copy = None

    def drop_copy(self) -> None:
        """The copy has no further use. A running addition or division still has to end."""
        if self.sum_state == "passed on":
            self.release()
        elif self.sum_state != "finishing":
            self.copy = None

    def _go(self, event: SumEvent) -> None:
        self.sum_state = CHUNK.after(self.sum_state, event)


def worth(mask: int) -> tuple[int, int]:
    """The order of partial sums of one chunk: the sum with the higher worth is kept."""
    return mask.bit_count(), mask
