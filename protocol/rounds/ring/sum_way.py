"""The way of a chunk's sum through a ring, from its average back to the member that began it, and
the arithmetic of an auditor that goes it forward (`policy.auditing.sum_audits` has the rules)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import AuditedPayloads, SetPayloads, SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.rounds.inventory import NO_DIGEST, SumStep
from gossamer.protocol.rounds.ring.ring_parts import RingPart, SumPart
from gossamer.protocol.rounds.ring.ring_signatures import SignedAverages
from gossamer.protocol.rounds.ring.set_parts import SetPart
from gossamer.protocol.state.chain import mask_bytes
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.opening_messages import Step


class Hop(NamedTuple):
    """A member on the way of a sum."""

    position: int
    step: SumStep

    @property
    def mask(self) -> int:
        """Members in the sum after it."""
        return self.step.mask | 1 << self.position

    @property
    def is_copy(self) -> bool:
        """Returns whether the sum that came had the member's part already, and went on as it
        was."""
        return bool(self.step.mask >> self.position & 1)


class SumWay:
    """The way of a chunk's sum, from its average back to the member that began it."""

    def __init__(self, signed: SignedAverages, chunk: int, finisher: int, mask: int) -> None:
        """
        Args:
            finisher, mask: of the average.
        """
        self._signed = signed
        self._chunk = chunk
        self._hops: list[Hop] = []
        self._wanted: tuple[int, int, Digest | None] | None = finisher, mask, None
        """The member that made a sum, the sum's members, and its digest. The finisher has signed no
        sum, but an average."""

    @property
    def asked(self) -> int | None:
        """The position of the member that has to say what it did; None: the way is known."""
        return None if self._wanted is None else self._wanted[0]

    @property
    def hops(self) -> Sequence[Hop]:
        """The members on the way, the one that began the sum first."""
        assert self._wanted is None, "the way is not known yet"
        return self._hops[::-1]

    def said(self, steps: Sequence[SumStep]) -> bool:
        """The member that was asked has said what it did to sums of this chunk. Returns whether
        that explains the sum that it made."""
        assert self._wanted is not None, "nobody was asked"
        position = self._wanted[0]
        for step in reversed(steps):
            hop = Hop(position, step)
            if self._explains(hop):
                self._hops.append(hop)
                self._wanted = (
                    None
                    if step.sender is None
                    else (self._signed.ring.members.index(step.sender), step.mask, step.digest)
                )
                return True
        return False

    def _explains(self, hop: Hop) -> bool:
        assert self._wanted is not None
        _, mask, digest = self._wanted
        step = hop.step
        if hop.mask != mask or (digest is not None and step.result != digest):
            return False
        if hop.is_copy and step.digest != step.result:
            return False
        # Each sum that a member uses has more members than the one before, or a higher mask. So a
        # way never comes to a member twice with the same ones, and has an end.
        if any((each.position, each.mask) == (hop.position, hop.mask) for each in self._hops):
            return False
        if step.sender is None:
            return not step.mask
        try:
            self._signed.check_sum(self._chunk, step)
        except RemoteProtocolError:
            return False
        return bool(step.mask)


class ReplacedSum(Exception):
    """A member has signed another sum, or another average, than its part makes of what came."""

    def __init__(self, position: int) -> None:
        super().__init__(f"member {position} of the ring has replaced a sum")
        self.position = position


_NOTHING = np.empty(0, np.float32)


class StepPart:
    """A member's part of a shared step, as it opened it (a `RingPart`)."""

    def __init__(self, block: Buffer, position: int) -> None:
        self._block, self._position = block, position

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        """See `RingPart`."""
        return add_record(payload, self._position, self._block)

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        """See `RingPart`."""
        return payload

    def error_of(self, chunk: int) -> Float32Array | None:
        """See `RingPart`."""
        return None


def opened_bytes_max(payloads: AuditedPayloads, chunk: int, num_elements: int) -> int:
    """Most bytes of a part as its member opens it."""
    match payloads:
        case SumPayloads():
            return codec("fp32").encoded_bytes(num_elements)
        case SetPayloads():
            return payloads.coder.encoded_bytes(num_elements)
        case _:
            return payloads.coder.chunk_bytes(chunk)


class AddedAgain:
    """Adds up a chunk again, along the way of its sum. It may run in threads."""

    def __init__(self, payloads: AuditedPayloads, tokens: Sequence[int], num_elements: int) -> None:
        """
        Args:
            tokens: of the ring's members, by position.
            num_elements: of the chunk.
        """
        self._payloads = payloads
        self._tokens = tokens
        self._num_elements = num_elements
        self._sum: Buffer | None = None

    def add(self, hop: Hop, part: Buffer) -> None:
        """Goes on with a member that added its part.

        Args:
            part: as the member opened it: its work in this chunk in fp32, or the record that it
                adds to a set.

        Raises:
            MalformedError: it is no part of such a chunk.
            ReplacedSum: the member passed on something else.
        """
        arithmetic = self._arithmetic(part, hop.position)
        try:
            self._sum = arithmetic.add(0, self._sum, hop.step.mask)
        except (ValueError, MalformedError):  # no member adds such a part, or to such a sum
            raise ReplacedSum(hop.position) from None
        if digest_of(self._sum) != hop.step.result:
            raise ReplacedSum(hop.position)

    def finish(self, finisher: int, mask: int, digest: Digest) -> None:
        """Compares the average with the sum, when all hops have been gone.

        Raises:
            ReplacedSum: the finisher made something else of the sum.
        """
        assert self._sum is not None, "somebody began the sum"
        arithmetic = self._arithmetic(None, finisher)
        if digest_of(arithmetic.finish_average(0, self._sum, mask)) != digest:
            raise ReplacedSum(finisher)

    def _arithmetic(self, part: Buffer | None, position: int) -> RingPart:
        """`part`: None for a member that only finishes the average."""
        payloads, num_elements = self._payloads, self._num_elements
        plan = ChunkPlan(num_elements, num_elements)
        match payloads:
            case SumPayloads():
                work = _NOTHING if part is None else codec("fp32").decode(part, num_elements)
                return SumPart(work, plan, payloads.coder, self._tokens, position)
            case SetPayloads():
                blocks: dict[int, bytes] = {}
                if part is not None:
                    payloads.coder.decode(part, num_elements)
                    blocks[0] = bytes(part)
                # What was left out of the record is not needed: its member carries that on.
                return SetPart(_NOTHING, plan, payloads, self._tokens, position, 1.0, blocks)
            case _:
                return StepPart(b"" if part is None else part, position)


def encode_step(step: SumStep, members: tuple[PeerId, ...]) -> Step:
    """`members`: in ring order."""
    sender = None if step.sender is None else members.index(step.sender)
    contributors = mask_bytes(step.mask, len(members))
    return Step(sender, contributors, step.digest, step.signature, step.result)


def decode_step(step: Step, members: tuple[PeerId, ...]) -> SumStep:
    """Raises MalformedError for positions that the ring does not have."""
    mask = int.from_bytes(step.contributors, "big")
    if mask >> len(members) or not (step.sender is None or 0 <= step.sender < len(members)):
        raise MalformedError("an opened chunk with members that the ring does not have")
    if step.sender is None:
        return SumStep(None, mask, NO_DIGEST, b"", Digest(step.result))
    sender, digest = members[step.sender], Digest(step.digest)
    return SumStep(sender, mask, digest, step.signature, Digest(step.result))
