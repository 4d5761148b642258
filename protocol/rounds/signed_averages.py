"""The signatures under the averages of one ring.

Where members trust each other a partial sum says nothing of its parts, and an average nothing of
its sum. So an average is worth what its finisher says. The finisher signs it, and each receiver
checks that before the ring may use it. Where each member has signed its records, an average is
checked against these (`codecs.record_payloads`) and needs no signature.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.actions import Self
from gossamer.protocol.rounds.ring import Contradicted
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import mask_bytes
from gossamer.protocol.wire.average_signatures import (
    FinishedAverage,
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
        """This member's signature under an average that it finished (`ring.SignAverage`)."""
        if not self._are_needed:
            return b""
        position = self.ring.members.index(self.identity.me)
        payload = encode_finished(self._finished(position, chunk, mask, digest))
        return self.identity.sign(signing_bytes(self.identity.run_id, payload))

    def check(self, chunk: int, mask: int, finisher: int, digest: Digest, signature: bytes) -> None:
        """Checks the signature under an average that arrived.

        Raises:
            MalformedError: no such finisher, or a signature where none belongs.
            ForgedError: the finisher did not sign it.
        """
        if not self._are_needed:
            if signature:
                raise MalformedError("a signature under an average that needs none")
            return
        if not (0 <= finisher < len(self.ring.members) and mask >> len(self.ring.members) == 0):
            raise MalformedError(f"average of chunk {chunk} by member {finisher}")
        finished = self._finished(finisher, chunk, mask, digest)
        author = self.ring.members[finisher]
        check_finished(finished, author, signature, self.identity.run_id, self.verify)

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
        ready = self.ring.ready[finisher]
        return FinishedAverage(
            ready.incarnation,
            ready.sequence,
            self.ring.ring_id,
            chunk,
            mask_bytes(mask, len(self.ring.members)),
            digest,
        )
