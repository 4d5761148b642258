"""The signatures of one ring: under averages, partial sums and shared steps, and under the roots of
the members' records.

Where members trust each other a partial sum says nothing of its parts, and an average nothing of
its sum. So an average is worth what its finisher says. The finisher signs it, and each receiver
checks that before the ring may use it. Where each member has signed its records, an average is
checked against these (`codecs.record_payloads`) and needs no signature.

The member that passes on a partial sum signs it, and the receiver keeps the signature until the
round is audited (`policy.auditing.sum_audits`).

Where members do not trust each other, the roots over a round's records are in the `Ready` of the
ring. A root over the parts of a shared step comes with each part. One good signature is enough for
all chunks of the step, on their way to the average and back, so the newest ones are remembered.

A member that signs two roots for one step gives one part to some members and another one to others.
Both signatures together are a proof (`policy.conduct.equivocation`). The member that passed the
second one on is not to blame. Each stream of a ring checks signatures for itself, in a thread, and
what all streams found is compared in one place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import Contradicted, Signer
from gossamer.protocol.rounds.inventory import ArrivedSum, Average, SumStep
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import mask_bytes
from gossamer.protocol.wire.average_signatures import (
    FinishedAverage,
    PassedSum,
    SignedStep,
    check_finished,
)
from gossamer.protocol.wire.envelopes import Verify, signing_bytes
from gossamer.protocol.wire.statements import Equivocation, Signed

ROOTS_KEPT = 4 * limits.RING_MEMBERS_MAX
"""Signatures that are remembered: those of the newest four steps of the largest ring, 0.2 MB. Only
the step under way and late averages of the one before it are sent."""


class FoundStep(NamedTuple):
    """A shared step that a member has signed; the signature is checked."""

    author: PeerId
    step: SignedStep
    signature: bytes

    @property
    def signed(self) -> Signed:
        """The step as an envelope of a proof."""
        return Signed(self.author, to_msgpack(self.step), self.signature)


class MemberSignatures:
    """Checks what is said to be a member's against what it has signed (a `MembersSigned`). One
    thread uses it at a time: each stream of a ring has its own."""

    def __init__(self, run_id: Digest, ring: Ring, verify: Verify) -> None:
        self.roots: Sequence[bytes] = [ready.root for ready in ring.ready]
        self._run_id = run_id
        self._ring = ring
        self._verify = verify
        self._good: OrderedDict[tuple[int, int], tuple[Digest, bytes]] = OrderedDict()
        """The newest root and its signature, by position and step."""
        self._found: list[FoundStep] = []

    def check_step(self, position: int, step: int, root: Digest, signature: bytes) -> None:
        """See `MembersSigned`."""
        if self._good.get((position, step)) == (root, signature):
            return
        if position >= len(self._ring.members):
            raise MalformedError("a part of a peer that is not in the ring")
        ready, author = self._ring.ready[position], self._ring.members[position]
        signed = SignedStep(ready.incarnation, ready.sequence, self._ring.ring_id, step, root)
        check_finished(signed, author, signature, self._run_id, self._verify)
        self._good[position, step] = root, signature
        if len(self._good) > ROOTS_KEPT:
            self._good.popitem(last=False)
        self._found.append(FoundStep(author, signed, signature))

    def take_found(self) -> list[FoundStep]:
        """Returns the steps whose signatures were checked since the last call. A payload has at
        most one for each member."""
        found, self._found = self._found, []
        return found


class SignedSteps:
    """The shared steps that the members of one round have signed, as all streams found them."""

    def __init__(self) -> None:
        self._first: OrderedDict[tuple[PeerId, bytes, int], FoundStep] = OrderedDict()
        """The first one to come, by author, ring and step."""
        self._contradicted: set[PeerId] = set()
        """Members with a proof: one about each is enough."""

    def add(self, found: Iterable[FoundStep]) -> list[Equivocation]:
        """Adds steps, and returns the proofs against members that signed another root before."""
        return [proof for each in found if (proof := self._add(each)) is not None]

    def _add(self, found: FoundStep) -> Equivocation | None:
        author, step = found.author, found.step
        first = self._first.setdefault((author, step.ring_id, step.step), found)
        if len(self._first) > ROOTS_KEPT:
            self._first.popitem(last=False)
        if first.step.root == step.root or author in self._contradicted:
            return None
        self._contradicted.add(author)
        one, other = sorted((first.signed, found.signed), key=lambda signed: signed.payload)
        return Equivocation(one, other)


@dataclass(frozen=True)
class SignedAverages:
    """Signs and checks the averages of one ring. `check` may run in threads."""

    signer: Signer
    ring: Ring
    verify: Verify
    payloads: Payloads

    @property
    def _are_needed(self) -> bool:
        return not self.payloads.are_signed

    def sign(self, chunk: int, mask: int, digest: Digest) -> bytes:
        """This member's signature under an average that it finished (`ring.SignChunk`)."""
        if not self._are_needed:
            return b""
        position = self.ring.members.index(self.signer.me)
        return self._signed(self._finished(position, chunk, mask, digest))

    def sign_sum(self, chunk: int, mask: int, digest: Digest) -> bytes:
        """This member's signature under a partial sum that it passes on (`ring.SignChunk`)."""
        if not self.payloads.are_audited:
            return b""
        position = self.ring.members.index(self.signer.me)
        return self._signed(self._passed(position, chunk, mask, digest))

    def sign_step(self, step: int, root: Digest) -> bytes:
        """This member's signature under the root over its parts of a shared step."""
        ready = self.ring.ready[self.ring.members.index(self.signer.me)]
        number = ready.incarnation, ready.sequence
        return self._signed(SignedStep(*number, self.ring.ring_id, step, root))

    @property
    def members(self) -> MemberSignatures:
        """Checks what the members of the ring have signed, with a memory of its own."""
        return MemberSignatures(self.signer.run_id, self.ring, self.verify)

    def _signed(self, chunk: FinishedAverage | PassedSum | SignedStep) -> bytes:
        payload = to_msgpack(chunk)
        return self.signer.sign(signing_bytes(self.signer.run_id, payload))

    def check_sum(self, chunk: int, came: ArrivedSum | SumStep) -> None:
        """Checks the signature under a partial sum that came to a member.

        Raises:
            MalformedError: no such sender, or a signature where none belongs.
            ForgedError: the sender did not sign it.
        """
        if not self.payloads.are_audited:
            if came.signature:
                raise MalformedError("a signature under a partial sum that needs none")
            return
        sender = came.sender
        if sender is None or sender not in self.ring.members or came.mask >> len(self.ring.members):
            raise MalformedError(f"partial sum of chunk {chunk} by {sender}")
        passed = self._passed(self.ring.members.index(sender), chunk, came.mask, came.digest)
        check_finished(passed, sender, came.signature, self.signer.run_id, self.verify)

    def check(self, chunk: int, average: Average) -> None:
        """Checks the signature under an average that arrived.

        Raises:
            MalformedError: no such finisher, or a signature where none belongs.
            ForgedError: the finisher did not sign it.
        """
        if not self._are_needed:
            if average.signature:
                raise MalformedError("a signature under an average that needs none")
            return
        mask, finisher = average.mask, average.finisher
        if not (0 <= finisher < len(self.ring.members) and mask >> len(self.ring.members) == 0):
            raise MalformedError(f"average of chunk {chunk} by member {finisher}")
        finished = self._finished(finisher, chunk, mask, average.digest)
        author = self.ring.members[finisher]
        check_finished(finished, author, average.signature, self.signer.run_id, self.verify)

    def proof(self, contradicted: Contradicted) -> Equivocation:
        """The proof, for all peers, that a member has signed two averages of one chunk."""
        chunk, finisher = contradicted.chunk, contradicted.finisher
        author = self.ring.members[finisher]
        both = [
            Signed(
                author,
                to_msgpack(self._finished(finisher, chunk, each.mask, each.digest)),
                each.signature,
            )
            for each in (contradicted.one, contradicted.other)
        ]
        first, second = sorted(both, key=lambda each: each.payload)
        return Equivocation(first, second)

    def _finished(self, finisher: int, chunk: int, mask: int, digest: Digest) -> FinishedAverage:
        return FinishedAverage(*self._fields(finisher, chunk, mask), digest)

    def _passed(self, sender: int, chunk: int, mask: int, digest: Digest) -> PassedSum:
        return PassedSum(*self._fields(sender, chunk, mask), digest)

    def _fields(self, position: int, chunk: int, mask: int) -> tuple[int, int, Digest, int, bytes]:
        ready = self.ring.ready[position]
        contributors = mask_bytes(mask, len(self.ring.members))
        return ready.incarnation, ready.sequence, self.ring.ring_id, chunk, contributors
