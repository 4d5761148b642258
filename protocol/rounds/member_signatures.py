"""What the members of one ring have signed: the roots of their records, and of their shared steps.

The roots over a round's records are in the `Ready` of the ring. A root over the parts of a shared
step comes with each part. One good signature is enough for all chunks of the step, on their way to
the average and back, so the newest ones are remembered.

A member that signs two roots for one step gives one part to some members and another one to others.
Both signatures together are a proof (`policy.equivocation`). The member that passed the second one
on is not to blame. Each stream of a ring checks signatures for itself, in a thread, and what all
streams found is compared in one place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.wire.average_signatures import SignedStep, check_finished, encode_finished
from gossamer.protocol.wire.envelopes import Verify
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
        return Signed(self.author, encode_finished(self.step), self.signature)


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
