"""What the members of one ring have signed: the roots of their records, and of their shared steps.

The roots over a round's records are in the `Ready` of the ring. A root over the parts of a shared
step comes with each part. One good signature is enough for all chunks of the step, on their way to
the average and back, so the newest ones are remembered.

A member that signs two roots for one step gives one part to some members and another one to others.
Both signatures together are a proof (`policy.equivocation`). The member that passed the second one
on is not to blame.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.wire.average_signatures import SignedStep, check_finished, encode_finished
from gossamer.protocol.wire.envelopes import Verify
from gossamer.protocol.wire.statements import Equivocation, Signed

ROOTS_KEPT = 4 * limits.RING_MEMBERS_MAX
"""Signatures that are remembered: those of the newest four steps of the largest ring, 0.2 MB. Only
the step under way and late averages of the one before it are sent."""


class MemberSignatures:
    """Checks what is said to be a member's against what it has signed (a `MembersSigned`). One
    thread uses it at a time: each stream of a ring has its own."""

    def __init__(self, run_id: Digest, ring: Ring, verify: Verify) -> None:
        self.roots: Sequence[bytes] = [ready.root for ready in ring.ready]
        self._run_id = run_id
        self._ring = ring
        self._verify = verify
        self._good: OrderedDict[tuple[int, int], tuple[Digest, bytes]] = OrderedDict()
        """The first root and its signature, by position and step."""
        self._proofs: list[Equivocation] = []
        self._contradicted: set[int] = set()
        """Positions of the members with a proof: one about each is enough."""

    def check_step(self, position: int, step: int, root: Digest, signature: bytes) -> None:
        """See `MembersSigned`."""
        known = self._good.get((position, step))
        if known == (root, signature):
            return
        if position >= len(self._ring.members):
            raise MalformedError("a part of a peer that is not in the ring")
        signed = self._signed(position, step, root)
        author = self._ring.members[position]
        check_finished(signed, author, signature, self._run_id, self._verify)
        first = self._good.setdefault((position, step), (root, signature))
        if len(self._good) > ROOTS_KEPT:
            self._good.popitem(last=False)
        if first[0] != root and position not in self._contradicted:
            self._contradicted.add(position)
            self._proofs.append(self._proof(position, step, first, (root, signature)))

    def take_proofs(self) -> list[Equivocation]:
        """Returns the proofs that were found since the last call."""
        proofs, self._proofs = self._proofs, []
        return proofs

    def _signed(self, position: int, step: int, root: Digest) -> SignedStep:
        ready = self._ring.ready[position]
        return SignedStep(ready.incarnation, ready.sequence, self._ring.ring_id, step, root)

    def _proof(self, position: int, step: int, *roots: tuple[Digest, bytes]) -> Equivocation:
        author = self._ring.members[position]
        first, second = sorted(
            (
                Signed(author, encode_finished(self._signed(position, step, root)), signature)
                for root, signature in roots
            ),
            key=lambda each: each.payload,
        )
        return Equivocation(first, second)
