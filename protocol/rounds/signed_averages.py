"""The signatures under the averages, the partial sums and the shared steps of one ring.

Where members trust each other a partial sum says nothing of its parts, and an average nothing of
its sum. So an average is worth what its finisher says. The finisher signs it, and each receiver
checks that before the ring may use it. Where each member has signed its records, an average is
checked against these (`codecs.record_payloads`) and needs no signature.

The member that passes on a partial sum signs it, and the receiver keeps the signature until the
round is audited (`policy.sum_audits`). Where members do not trust each other, each one signs its
parts of every shared step (`member_signatures`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.actions import Contradicted, Self
from gossamer.protocol.rounds.inventory import ArrivedSum, Average, SumStep
from gossamer.protocol.rounds.member_signatures import MemberSignatures
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import mask_bytes
from gossamer.protocol.wire.average_signatures import (
    FinishedAverage,
    PassedSum,
    SignedStep,
    check_finished,
    encode_finished,
)
from gossamer.protocol.wire.envelopes import Verify, signing_bytes
from gossamer.protocol.wire.statements import Equivocation, Signed


@dataclass(frozen=True)
class SignedAverages:
    """Signs and checks the averages of one ring. `check` may run in threads."""

    identity: Self
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
        position = self.ring.members.index(self.identity.me)
        return self._signed(self._finished(position, chunk, mask, digest))

    def sign_sum(self, chunk: int, mask: int, digest: Digest) -> bytes:
        """This member's signature under a partial sum that it passes on (`ring.SignChunk`)."""
        if not self.payloads.are_audited:
            return b""
        position = self.ring.members.index(self.identity.me)
        return self._signed(self._passed(position, chunk, mask, digest))

    def sign_step(self, step: int, root: Digest) -> bytes:
        """This member's signature under the root over its parts of a shared step."""
        ready = self.ring.ready[self.ring.members.index(self.identity.me)]
        number = ready.incarnation, ready.sequence
        return self._signed(SignedStep(*number, self.ring.ring_id, step, root))

    @property
    def members(self) -> MemberSignatures:
        """Checks what the members of the ring have signed, with a memory of its own."""
        return MemberSignatures(self.identity.run_id, self.ring, self.verify)

    def _signed(self, chunk: FinishedAverage | PassedSum | SignedStep) -> bytes:
        payload = encode_finished(chunk)
        return self.identity.sign(signing_bytes(self.identity.run_id, payload))

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
        check_finished(passed, sender, came.signature, self.identity.run_id, self.verify)

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
        check_finished(finished, author, average.signature, self.identity.run_id, self.verify)

    def proof(self, contradicted: Contradicted) -> Equivocation:
        """The proof, for all peers, that a member has signed two averages of one chunk."""
        chunk, finisher = contradicted.chunk, contradicted.finisher
        author = self.ring.members[finisher]
        both = [
            Signed(
                author,
                encode_finished(self._finished(finisher, chunk, each.mask, each.digest)),
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
