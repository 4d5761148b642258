"""The dense ring all-reduce of one round, without a leader and without I/O.

Rules
-----
- Every chunk is a token that walks the ring. The member at position ``chunk mod N`` starts it; if
  that one is out, the next living one does, unless the chunk has already been through its hands.
- Nobody is in a sum twice: a member adds itself to a token only if the mask lacks it. A token for a
  chunk whose final it has is ignored.
- A token for a chunk that it has added to is ignored too, unless it holds more than the kept copy:
  more members, or as many and the higher mask. Then it takes the copy's place, with my part added
  if it is not in it, and walks on. Without this two sums of one chunk, begun by members who held
  different members out, could each hold a part of the living, and neither would ever be finished;
  with it the best one walks until it has found everybody. Who is out counts like anybody: if each
  weighed with its own view, two could turn down each other's sums for the sake of members that both
  then hear are out, and neither sum would go on. As long as nobody falls there is one sum of each
  chunk, and nothing of this happens.
- After adding: do the contributors cover all members it believes living? Then it finishes (divides
  and encodes). Else it passes the token to its next living member and keeps a copy until it has
  the final.
- Finals walk the ring again. Whoever receives one that is better than what it has takes it and
  passes it on; otherwise it stops there. Better means: more contributors, then the lower digest. It
  is not passed to the finisher, nor back to where it came from.
- A final that lacks a member that I believe living is early: either I have yet to hear that this
  one is out, or the finisher is out itself, and whom it held to be out does not count. Until I
  know, the final is kept aside and the chunk walks on.
- A removed member is out of this ring for good. At every removal each member goes through the
  chunks again: an early final that is early no more is taken; a kept copy that now covers all the
  living is finished; one whose receiver is gone goes to the new successor; a chunk that it should
  now start is started; to a new successor every final that it has is sent again. A member that
  hears of its own removal only listens: it takes what finals come, early or not.
- Who becomes a member's predecessor in the middle of a ring is told first what that member holds
  (`inventory`), and sends only what is of use to it.

So in the end the members that hold each other to be in have the same finals, and each final holds
all of them. For they come to hold the same members out (`accusations`). A final that one of them
took lacks none of those that it held to be in then, so none of those that are left; so none of
these keeps it aside in the end, and by the lattice rule the best one goes round to them all.

Events are methods, and what is to be done comes back as a list of actions. Arithmetic is done
outside: `Contribute` and `FinishAverage` are answered by `contributed` and `average_finished`.
Payloads are opaque here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gossamer.protocol.errors import LocalProtocolError, MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.inventory import Held, Inventory
from gossamer.protocol.rounds.ring_chunk import Average as Average
from gossamer.protocol.rounds.ring_chunk import Chunk, worth
from gossamer.protocol.rounds.ring_chunk import Payload as Payload


@dataclass(frozen=True)
class Contribute:
    """Add my part to `payload` (None: begin with it), then call `contributed` or `rejected`."""

    chunk: int
    payload: Payload | None
    sender: PeerId | None = None
    """Who sent the payload."""


@dataclass(frozen=True)
class FinishAverage:
    """Divide and encode the sum of all in `mask`, then call `average_finished`."""

    chunk: int
    payload: Payload
    mask: int


@dataclass(frozen=True)
class Send:
    """Send a chunk to a member, unless its inventory says that it has no use for it.

    `finisher` is the position of who made a final, and `digest` that of its bytes; None for tokens.
    """

    peer: PeerId
    chunk: int
    mask: int
    finisher: int | None
    payload: Payload = field(repr=False)
    digest: Digest | None = None


Action: TypeAlias = Contribute | FinishAverage | Send


class RingReduce:
    """One member's view of the ring of one round."""

    def __init__(self, members: Sequence[PeerId], me: PeerId, num_chunks: int) -> None:
        if me not in members:
            raise LocalProtocolError("not a member of this ring")
        self.members = tuple(members)
        self._me = me
        self._position = self.members.index(me)
        self._chunks = [Chunk() for _ in range(num_chunks)]
        self._num_averages = 0
        self.living = self.members
        """Members that are not out, in ring order. `accusations` decides which members are out, and
        `member_removed` tells it here."""
        self._living_mask = (1 << len(self.members)) - 1
        self.successor = self._next_living()
        """The next living member after me; None if I am the last one."""

    # What is known

    @property
    def is_complete(self) -> bool:
        """Whether every chunk has a final."""
        return self._num_averages == len(self._chunks)

    @property
    def num_averages(self) -> int:
        return self._num_averages

    @property
    def averages(self) -> list[Average]:
        """All finals in chunk order. LocalProtocolError while one is missing."""
        averages = [chunk.average for chunk in self._chunks if chunk.average is not None]
        if len(averages) != len(self._chunks):
            raise LocalProtocolError("finals of a ring that is not complete")
        return averages

    def average_of(self, chunk: int) -> Payload | None:
        """The best final of a chunk so far."""
        average = self._chunks[chunk].average
        return None if average is None else average.payload

    def fewest_missing(self) -> int | None:
        """Of the sums that my successor has of me and that no final came of: how many living
        members the fullest one lacks. None if it has none."""
        return min(
            (
                (self._living_mask & ~chunk.copy_mask).bit_count()
                for chunk in self._chunks
                if chunk.average is None
                and chunk.copy is not None
                and chunk.copy_receiver == self.successor
            ),
            default=None,
        )

    def inventory(self) -> Inventory:
        """What I hold of every chunk, for a member that becomes my predecessor."""
        return Inventory(
            tuple(
                Held(
                    # What is still being added to may turn out to be no good.
                    chunk.copy_mask if chunk.copy is not None else 0,
                    (chunk.average.mask, chunk.average.digest)
                    if chunk.average is not None
                    else None,
                )
                for chunk in self._chunks
            )
        )

    # Events

    def start(self) -> list[Action]:
        """The ring begins: start the chunks that are mine to start."""
        return self._start_chunks()

    def partial_sum_received(
        self, sender: PeerId, chunk: int, mask: int, payload: Payload
    ) -> list[Action]:
        """A partial sum arrived.

        Raises:
            MalformedError: no such chunk or member, or a token that claims to have my part in it
                although I never added it.
        """
        state = self._checked(sender, chunk, mask)
        bit = 1 << self._position
        if mask & bit and not state.copy_mask:  # no sum with my part has left this member
            raise MalformedError(f"token of chunk {chunk} claims a part that I never added")
        if state.average is not None or state.sum_state == "finishing" or self._is_out:
            return []
        if state.sum_state == "adding":
            if state.waiting is None or worth(mask | bit) > worth(state.waiting[1] | bit):
                state.waiting = (sender, mask, payload)
            return []
        if state.sum_state != "absent" and worth(mask | bit) <= worth(state.copy_mask):
            return []
        if not mask & bit:
            return [self._contribute(chunk, mask, payload, sender)]
        state.copy, state.copy_mask, state.copy_receiver = payload, mask, None
        return self._advance(chunk)

    def contributed(self, chunk: int, payload: Payload) -> list[Action]:
        """My part was added to a chunk: `payload` is the new partial sum."""
        state = self._chunks[chunk]
        if state.contributing_mask is None:
            raise LocalProtocolError(f"no addition to chunk {chunk} is under way")
        state.copy_mask = state.contributing_mask | (1 << self._position)
        state.contributing_mask = None
        state.copy_receiver = None
        if state.average is None and not self._is_out:
            state.copy = payload
        else:
            state.release()
        waiting, state.waiting = state.waiting, None
        actions = self._advance(chunk)
        if waiting is not None:
            actions += self.partial_sum_received(waiting[0], chunk, waiting[1], waiting[2])
        return actions

    def rejected(self, chunk: int) -> list[Action]:
        """The token that I was to add to is no good: as if it had never come.

        Its sender has to be removed; then whoever passed it on before sends its copy again. What
        came from another member meanwhile is taken instead.
        """
        state = self._chunks[chunk]
        if state.contributing_mask is None:
            raise LocalProtocolError(f"no addition to chunk {chunk} is under way")
        state.reject()
        waiting, state.waiting = state.waiting, None
        if waiting is not None:
            actions = self.partial_sum_received(waiting[0], chunk, waiting[1], waiting[2])
            return actions or self._advance(chunk)
        if state.sum_state != "absent":
            return self._advance(chunk)
        if state.average is None and not self._is_out and self._is_starter(chunk):
            # Those before me fell while I was adding, and I did not start it then.
            return [self._contribute(chunk, 0, None)]
        return []

    def average_finished(self, chunk: int, payload: Payload, digest: Digest) -> list[Action]:
        """The average of a chunk was made here."""
        state = self._chunks[chunk]
        if state.sum_state != "finishing":
            raise LocalProtocolError(f"chunk {chunk} is not being average_finished")
        state.release()  # not before: a removed member's mask belongs to this copy
        if self._is_out:
            return []
        return self._take(chunk, Average(state.copy_mask, digest, self._position, payload), None)

    def average_received(
        self,
        sender: PeerId,
        chunk: int,
        mask: int,
        finisher: int,
        payload: Payload,
        digest: Digest,
    ) -> list[Action]:
        """An averaged chunk arrived. Raises MalformedError for values out of range."""
        self._checked(sender, chunk, mask)
        if not 0 <= finisher < len(self.members):
            raise MalformedError(f"final of chunk {chunk} by member {finisher}")
        return self._take(chunk, Average(mask, digest, finisher, payload), sender)

    def member_removed(self, peer: PeerId) -> list[Action]:
        """A member is out of this ring for good."""
        if peer not in self.living:
            return []
        old_successor = self.successor
        self.living = tuple(member for member in self.living if member != peer)
        self._living_mask &= ~(1 << self.members.index(peer))
        self.successor = self._next_living()
        if self._is_out:
            for chunk, state in enumerate(self._chunks):
                state.drop_copy()
                self._take_early(chunk)  # passes nothing on
            return []
        actions: list[Action] = []
        if self.successor is not None and self.successor != old_successor:
            actions += self._averages_for(self.successor)
        for chunk in range(len(self._chunks)):
            actions += self._take_early(chunk) + self._advance(chunk)
        return actions + self._start_chunks()

    def averages_for(self, peer: PeerId) -> list[Action]:
        """All finals that I have, for a member whose finals differ from mine."""
        return self._averages_for(peer)

    # The rules

    def _checked(self, sender: PeerId, chunk: int, mask: int) -> Chunk:
        if sender not in self.members:
            raise MalformedError(f"{sender} is not a member of this ring")
        if not 0 <= chunk < len(self._chunks):
            raise MalformedError(f"chunk {chunk} of {len(self._chunks)}")
        if not 0 < mask < 1 << len(self.members):
            raise MalformedError(f"contributors of chunk {chunk} out of range")
        return self._chunks[chunk]

    def _next_living(self) -> PeerId | None:
        after_me = (*self.members[self._position + 1 :], *self.members[: self._position])
        return next((member for member in after_me if member in self.living), None)

    @property
    def _is_out(self) -> bool:
        return not self._living_mask >> self._position & 1

    def _covers_living(self, mask: int) -> bool:
        return not self._living_mask & ~mask

    def _is_starter(self, chunk: int) -> bool:
        num_members = len(self.members)
        for offset in range(num_members):
            member = self.members[(chunk + offset) % num_members]
            if member in self.living:
                return member == self._me
        return False

    def _start_chunks(self) -> list[Action]:
        return [
            self._contribute(chunk, 0, None)
            for chunk, state in enumerate(self._chunks)
            if state.sum_state == "absent" and state.average is None and self._is_starter(chunk)
        ]

    def _contribute(
        self, chunk: int, mask: int, payload: Payload | None, sender: PeerId | None = None
    ) -> Contribute:
        state = self._chunks[chunk]
        state.add(mask)
        return Contribute(chunk, payload, sender)

    def _advance(self, chunk: int) -> list[Action]:
        """Finishes or passes on the kept copy of a chunk, where the rules say so."""
        state = self._chunks[chunk]
        if state.copy is None or state.sum_state == "finishing" or self._is_out:
            return []
        if state.contributing_mask is not None:
            return []  # a better sum is on its way into the copy's place
        if self._covers_living(state.copy_mask):
            state.finish()
            return [FinishAverage(chunk, state.copy, state.copy_mask)]
        if state.copy_receiver is not None and state.copy_receiver in self.living:
            return []
        successor = self.successor
        assert successor is not None, "somebody living is not in the mask"
        state.pass_on(successor)
        return [Send(successor, chunk, state.copy_mask, None, state.copy)]

    def _take(self, chunk: int, average: Average, sender: PeerId | None) -> list[Action]:
        state = self._chunks[chunk]
        if not average.is_better_than(state.average):
            return []
        if sender is not None and self._is_early(average.mask):
            state.early[sender] = average
            return []
        if state.average is None:
            self._num_averages += 1
        state.average = average
        state.drop_copy()
        successor = self.successor
        if self._is_out or successor is None or successor == sender:
            return []
        return self._pass_on(successor, chunk, average)

    def _is_early(self, mask: int) -> bool:
        """Whether a final lacks a member that I hold to be in. Who is out does not ask."""
        return not self._is_out and not self._covers_living(mask)

    def _take_early(self, chunk: int) -> list[Action]:
        """Takes those of the early finals that are not early any more."""
        state = self._chunks[chunk]
        early, state.early = state.early, {}
        actions: list[Action] = []
        for sender, average in early.items():
            actions += self._take(chunk, average, sender)
        return actions

    def _pass_on(self, peer: PeerId, chunk: int, average: Average) -> list[Action]:
        if self.members[average.finisher] == peer:
            return []
        return [Send(peer, chunk, average.mask, average.finisher, average.payload, average.digest)]

    def _averages_for(self, peer: PeerId) -> list[Action]:
        actions: list[Action] = []
        for chunk, state in enumerate(self._chunks):
            if state.average is not None:
                actions += self._pass_on(peer, chunk, state.average)
        return actions
