"""The dense ring all-reduce of one round, without a leader and without I/O.

Rules
-----
- The partial sum of every chunk walks the ring. The chunks are started by some members in turn: by
  all of them, or by those behind a relay (`ring_order.chunk_starters`). If that member is out, the
  next living member starts the chunk, unless it has already added to the chunk.
- No member is in a sum twice: a member adds its part to a partial sum only if the mask lacks it. A
  member that has the average of a chunk ignores partial sums of that chunk.
- A member that has already added to a chunk ignores a partial sum of it, unless the sum is worth
  more than the kept copy: more contributors, or as many and the higher mask. Then the sum takes the
  place of the copy, with the member's part added if it lacks that, and walks on. Without this rule
  two sums of one chunk, started by members that excluded different members, could each hold a part
  of the living members, and neither would ever be finished. With the rule the best sum walks until
  it holds all of them. A member that is out counts like any other. If each member weighed with its
  own view, two members could refuse each other's sums for the sake of members that both then hear
  are out. Without a fault there is one sum of each chunk, and this rule never applies. Where sums
  are audited, it applies `STEPS_MAX` - 1 times at most: a member explains every sum that it signed.
- After adding, the contributors may cover all members that this one believes living. Then it
  finishes, if it is the chunk's finisher (`ring_members`): it divides and encodes. Otherwise it
  passes the partial sum to its next living member and keeps a copy until it has the average.
- Averages walk the ring again. A member that receives a better average than its own takes it and
  passes it on. Otherwise the average stops there. Better means more contributors, then the lower
  digest. The average is passed neither to its finisher nor back to its sender.
- An average that lacks a member believed living is early. Either this member has yet to hear that
  the missing one is out, or the finisher is out itself, and then its view does not count. Until
  that is known, the average is kept aside and the partial sum walks on. An average of a member that
  is not the chunk's finisher is early as well: other members may have to go out first.
- An average comes with its finisher's signature (`average_signatures`), and a partial sum that can
  be audited with its sender's (`policy.auditing.sum_audits`). Of a finisher that signs two averages
  for one chunk both together are a proof (`Contradicted`).
- A removed member is out of this ring for good. At every removal each member checks all chunks
  again. It takes an early average that is not early any more. It finishes a kept copy that now
  covers all living members. It sends a copy whose receiver is gone to the new successor. It starts
  a chunk that is now its own to start. It sends every average again to a new successor. A member
  that hears of its own removal only listens: it takes any average, early or not.
- A member that becomes the predecessor of another in the middle of a ring first gets that member's
  `inventory`, and sends only what is of use there.

So at the end the members that believe each other living have the same averages, and each average
holds all of them. The reason is that they come to exclude the same members (`ring_members`). An
average that one of them took lacks no member that it believed living then, so it lacks none of
those that are left. No such member keeps it aside at the end, and by the lattice rule the best
average reaches them all.

Events are methods, and each returns a list of actions. The caller does the arithmetic: it answers
`Contribute` with `contributed` and `FinishAverage` with `average_finished`. Payloads are opaque
here. The states of a partial sum are those of `states.CHUNK`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gossamer.protocol.errors import ClaimedPartError, LocalProtocolError, MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import (
    Contradicted,
    Contribute,
    FinishAverage,
    RingAction,
    Send,
)
from gossamer.protocol.rounds.inventory import (
    NO_DIGEST,
    ArrivedSum,
    Average,
    Chunk,
    Inventory,
    Payload,
    SignedDigest,
    SumStep,
    worth,
)
from gossamer.protocol.rounds.ring.ring_members import LivingMembers

SignChunk: TypeAlias = Callable[[int, int, Digest], bytes]
"""(chunk, mask, digest) -> this member's signature under an average that it finished, or under a
partial sum that it passes on."""


class RingReduce:
    """One member's view of the ring of one round.

    It has 16 public methods: each event of a ring is one.
    """

    def __init__(
        self,
        members: Sequence[PeerId],
        me: PeerId,
        num_chunks: int,
        starters: Sequence[int],
        sign: SignChunk,
        sign_sum: SignChunk,
    ) -> None:
        """
        Args:
            members: in ring order.
            starters: positions of the members that start chunks, in turn.
            sign: signs the averages that this member finishes.
            sign_sum: signs the partial sums that it passes on.
        """
        self._members = LivingMembers(members, me, starters)
        self._contradicted: set[int] = set()
        """Members of which it is known that they signed two averages of one chunk."""
        self._sign, self._sign_sum = sign, sign_sum
        self._chunks = [Chunk() for _ in range(num_chunks)]
        self.num_averages = 0
        """Chunks whose average is here."""

    # Questions

    @property
    def living(self) -> tuple[PeerId, ...]:
        """Members that are not out, in ring order. `Accusations` decides which members are out, and
        `member_removed` tells it here."""
        return self._members.living

    @property
    def successor(self) -> PeerId | None:
        """The next living member; None: no other member is living."""
        return self._members.successor

    @property
    def is_complete(self) -> bool:
        """Returns whether every chunk has an average."""
        return self.num_averages == len(self._chunks)

    @property
    def averages(self) -> list[Average]:
        """All averages in chunk order.

        Raises:
            LocalProtocolError: an average is missing.
        """
        averages = [chunk.average for chunk in self._chunks if chunk.average is not None]
        if len(averages) != len(self._chunks):
            raise LocalProtocolError("averages of a ring that is not complete")
        return averages

    def steps_of(self, chunk: int) -> tuple[SumStep, ...]:
        """What this member did to the partial sums of a chunk, where sums are audited, the newest
        step last."""
        return tuple(self._chunks[chunk].steps)

    def average_of(self, chunk: int) -> Payload | None:
        """The best average of a chunk so far; None: there is none."""
        average = self._chunks[chunk].average
        return None if average is None else average.payload

    def fewest_missing(self) -> int | None:
        """Living members that the fullest unfinished sum at the successor lacks.

        Only sums that this member sent count, and only those whose average is not here. A sum that
        lacks nobody counts as one that lacks the members on its way to the finisher. None: there is
        no such sum.
        """
        return min(
            (
                self._members.num_missing(state.copy_mask) or self._members.hops_left(chunk)
                for chunk, state in enumerate(self._chunks)
                if state.average is None
                and state.copy is not None
                and state.copy_receiver == self.successor
            ),
            default=None,
        )

    def inventory(self) -> Inventory:
        """Returns what this member holds of every chunk, for a member that becomes its
        predecessor."""
        return Inventory(tuple(chunk.held for chunk in self._chunks))

    # Events

    def start(self) -> list[RingAction]:
        """The ring begins, or a member is out: this member starts the chunks that are its own to
        start."""
        return [action for chunk in range(len(self._chunks)) for action in self._started(chunk)]

    def _started(self, chunk: int) -> list[RingAction]:
        state = self._chunks[chunk]
        if state.sum_state != "absent" or state.average is not None:
            return []
        return [self._contribute(chunk, None)] if self._members.starts(chunk) else []

    def partial_sum_received(self, chunk: int, arrived: ArrivedSum) -> list[RingAction]:
        """A partial sum arrived, and the caller has checked its sender's signature.

        Raises:
            MalformedError: an unknown chunk or member.
            ClaimedPartError: a mask with this member although it never added its part.
        """
        self._check(arrived.sender, chunk, arrived.mask)
        return self._arrived(chunk, arrived)

    def _arrived(self, chunk: int, arrived: ArrivedSum) -> list[RingAction]:
        state, mask = self._chunks[chunk], arrived.mask
        bit = 1 << self._members.position
        if mask & bit and not state.copy_mask:  # no sum with my part has left this member
            raise ClaimedPartError(
                f"partial sum of chunk {chunk} claims a part that was never added"
            )
        if state.average is not None or state.sum_state == "finishing" or self._members.is_out:
            return []
        if state.sum_state == "adding":
            if state.waiting is None or worth(mask | bit) > worth(state.waiting.mask | bit):
                state.waiting = arrived
            return []
        if worth(mask | bit) <= worth(state.copy_mask) or state.has_all_steps:
            return []
        if not mask & bit:
            return [self._contribute(chunk, arrived)]
        state.replace_copy(arrived)
        return self._advance(chunk)

    def contributed(
        self, chunk: int, payload: Payload, digest: Digest = NO_DIGEST
    ) -> list[RingAction]:
        """This member's part was added to a chunk: `payload` is the new partial sum. `digest`: its
        own, where sums are audited."""
        state = self._chunks[chunk]
        if state.contributing_mask is None:
            raise LocalProtocolError(f"no addition to chunk {chunk} is under way")
        state.copy_mask = state.contributing_mask | (1 << self._members.position)
        state.contributing_mask = None
        state.added(digest)
        state.copy_receiver = None
        if state.average is None and not self._members.is_out:
            state.copy = payload
        else:
            state.release()
        waiting, state.waiting = state.waiting, None
        actions = self._advance(chunk)
        if waiting is not None:
            actions += self._arrived(chunk, waiting)
        return actions

    def rejected(self, chunk: int) -> list[RingAction]:
        """The payload to add to was malformed: it counts as never received.

        The caller has to remove the sender. Then the member before the sender sends its copy again.
        A partial sum that arrived meanwhile from another member is taken instead.
        """
        state = self._chunks[chunk]
        if state.contributing_mask is None:
            raise LocalProtocolError(f"no addition to chunk {chunk} is under way")
        state.reject()
        waiting, state.waiting = state.waiting, None
        if waiting is not None:
            return self._arrived(chunk, waiting) or self._advance(chunk)
        if state.sum_state != "absent":
            return self._advance(chunk)
        # The members before this one may have fallen during the addition.
        return self._started(chunk)

    def average_finished(self, chunk: int, payload: Payload, digest: Digest) -> list[RingAction]:
        """The average of a chunk was computed here."""
        state = self._chunks[chunk]
        if state.sum_state != "finishing":
            raise LocalProtocolError(f"chunk {chunk} is not being finished")
        state.release()  # not before: a removed member's mask belongs to this copy
        if self._members.is_out:
            return []
        mask = state.copy_mask
        signature = self._sign(chunk, mask, digest)
        average = Average(mask, digest, self._members.position, payload, signature)
        return [*self._note_signed(chunk, average), *self._take(chunk, average, None)]

    def average_received(self, sender: PeerId, chunk: int, average: Average) -> list[RingAction]:
        """An averaged chunk arrived, and the caller has checked its finisher's signature.

        Raises:
            MalformedError: values out of range.
        """
        self._check(sender, chunk, average.mask)
        if not 0 <= average.finisher < len(self._members.members):
            raise MalformedError(f"average of chunk {chunk} by member {average.finisher}")
        return [*self._note_signed(chunk, average), *self._take(chunk, average, sender)]

    def member_removed(self, peer: PeerId) -> list[RingAction]:
        """A member is out of this ring for good."""
        old_successor = self.successor
        self._members.remove(peer)
        if self._members.is_out:
            for chunk, state in enumerate(self._chunks):
                state.drop_copy()
                self._take_early(chunk)  # passes nothing on
            return []
        actions: list[RingAction] = []
        if self.successor is not None and self.successor != old_successor:
            actions += self.averages_for(self.successor)
        for chunk in range(len(self._chunks)):
            actions += self._take_early(chunk) + self._advance(chunk)
        return actions + self.start()

    def averages_for(self, peer: PeerId) -> list[RingAction]:
        """All averages held here, for a member whose averages differ."""
        actions: list[RingAction] = []
        for chunk, state in enumerate(self._chunks):
            if state.average is not None:
                actions += self._pass_on(peer, chunk, state.average)
        return actions

    # The rules

    def _check(self, sender: PeerId, chunk: int, mask: int) -> None:
        members = self._members.members
        if sender not in members:
            raise MalformedError(f"{sender} is not a member of this ring")
        if not 0 <= chunk < len(self._chunks):
            raise MalformedError(f"chunk {chunk} of {len(self._chunks)}")
        if not 0 < mask < 1 << len(members):
            raise MalformedError(f"contributors of chunk {chunk} out of range")

    def _contribute(self, chunk: int, arrived: ArrivedSum | None) -> Contribute:
        self._chunks[chunk].add(arrived)
        if arrived is None:
            return Contribute(chunk, None)
        return Contribute(chunk, arrived.payload, arrived.sender, arrived.mask)

    def _advance(self, chunk: int) -> list[RingAction]:
        """Finishes or passes on the kept copy of a chunk, where the rules say so."""
        state, members = self._chunks[chunk], self._members
        if state.copy is None or state.sum_state == "finishing":
            return []
        if state.contributing_mask is not None:
            return []  # a better sum is on its way into the copy's place
        is_whole = not members.num_missing(state.copy_mask)
        if is_whole and members.finishes(chunk, self._members.position):
            state.finish()
            return [FinishAverage(chunk, state.copy, state.copy_mask)]
        if state.copy_receiver in members.living:
            return []
        successor = members.successor
        assert successor is not None, "another living member adds to the sum, or finishes it"
        state.pass_on(successor)
        digest = state.copy_digest
        signature = self._sign_sum(chunk, state.copy_mask, digest) if digest else b""
        return [Send(successor, chunk, state.copy_mask, None, state.copy, signature=signature)]

    def _take(self, chunk: int, average: Average, sender: PeerId | None) -> list[RingAction]:
        state = self._chunks[chunk]
        if not average.is_better_than(state.average):
            return []
        if sender is not None and self._is_early(chunk, average):
            state.early[sender] = average
            return []
        if state.average is None:
            self.num_averages += 1
        state.average = average
        state.drop_worse()
        state.drop_copy()
        successor = self.successor
        if self._members.is_out or successor is None or successor == sender:
            return []
        return self._pass_on(successor, chunk, average)

    def _is_early(self, chunk: int, average: Average) -> bool:
        """Returns whether an average lacks a living member, or is none of the chunk's finisher;
        always false once this member is out."""
        members = self._members
        if members.is_out:
            return False
        is_whole = not members.num_missing(average.mask)
        return not is_whole or not members.may_finish(chunk, average.finisher)

    def _note_signed(self, chunk: int, average: Average) -> list[RingAction]:
        """Compares an average with the first one that its finisher signed for this chunk. One
        proof about a member is enough."""
        finisher = average.finisher
        if not average.signature or finisher in self._contradicted:
            return []
        signed = SignedDigest(average.mask, average.digest, average.signature)
        first = self._chunks[chunk].signed.setdefault(finisher, signed)
        if (first.mask, first.digest) == (signed.mask, signed.digest):
            return []
        self._contradicted.add(finisher)
        return [Contradicted(chunk, finisher, first, signed)]

    def _take_early(self, chunk: int) -> list[RingAction]:
        """Takes the early averages of a chunk that are not early any more."""
        state = self._chunks[chunk]
        early, state.early = state.early, {}
        actions: list[RingAction] = []
        for sender, average in early.items():
            actions += self._take(chunk, average, sender)
        return actions

    def _pass_on(self, peer: PeerId, chunk: int, average: Average) -> list[RingAction]:
        if self._members.members[average.finisher] == peer:
            return []
        named = average.mask, average.finisher, average.payload, average.digest
        return [Send(peer, chunk, *named, average.signature)]
