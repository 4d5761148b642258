"""This peer's parts in the shared steps of one ring (`shared_steps`).

A step is a chunk, or several. What this peer gives to one of them follows from what it decided for
the step: it has a part in all chunks, or in none. Where members sign their parts there is one
signature for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import trio

from gossamer.node.modes.sync_mode import OpenedParts
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import tokens_taken
from gossamer.protocol.state.digest import FloatVector


@dataclass(frozen=True)
class RingParts:
    """This peer's parts in the steps of one ring, at the end of its round."""

    ring_id: Digest
    tokens: int
    """Upper bound on this peer's tokens already removed from the momentum."""
    has_left_out: bool
    """Whether this peer took a step without a part that it gave and that its momentum kept."""


class Part(NamedTuple):
    """The part that this peer gives to one chunk of a step."""

    update: bytes
    """Its signs; empty where it abstains."""
    block: bytes
    """What travels: the signs, and where members sign their parts the signature."""


_NOTHING = Part(b"", b"")

SignStep: TypeAlias = Callable[[int, Digest], bytes]
"""Function from (step, root) to this peer's signature under the root over its parts of the step."""


class PartSource(Protocol):
    """The source that `RingSteps` asks for this peer's parts."""

    async def part(self, steps: RingSteps, chunk: int, partial_sum_seconds: float | None) -> Part:
        """This peer's part in a chunk of a step; it abstains if it is late.

        Args:
            partial_sum_seconds: local time at which a partial sum of the chunk came that has parts
                of others; None for a chunk that this peer begins, or that others abstained from.
        """

    def partial_sum_came(self, steps: RingSteps, chunk: int) -> None:
        """A partial sum that has other members' parts in a step has come."""


class RingSteps:
    """This peer's parts in the steps of one ring (a `Contribution`).

    More than 15 public methods and 12 attributes: it has all methods of a `Contribution`, and keeps
    what was given, decided and taken of the steps under way.
    """

    def __init__(
        self,
        ring: Ring,
        me: PeerId,
        payloads: SignPayloads,
        num_chunks: int,
        source: PartSource,
        sign_step: SignStep,
    ) -> None:
        """
        Args:
            num_chunks: of all steps of the round.
        """
        self._payloads = payloads
        self._sign_step = sign_step
        self.members = ring.members
        self._chunks_of_step = payloads.coder.num_chunks
        self._position = ring.members.index(me)
        self._tokens = ring.ready[self._position].tokens
        self._source = source
        self._given: dict[int, Part] = {}
        """The part given to each chunk."""
        self._decided: dict[int, tuple[Part, ...]] = {}
        """This peer's parts in all chunks of each step for which it decided whether it has one."""
        self._taken_from: set[int] = set()
        """Steps of which a taken average contains this peer's part."""
        self._is_empty = True
        """Whether no member has a part in what was taken of the newest step."""
        self._timed_step = -1
        """The newest step of which a partial sum came."""
        self.ring_id: Digest = ring.ring_id
        self.num_chunks = num_chunks
        self.num_taken = 0
        """Number of chunks that are taken."""
        self.taken_seconds = trio.current_time()
        """Local time at which the newest step was taken."""
        self.is_void = False
        """Whether this peer follows another ring by now."""
        self._next: dict[int, trio.Event] = {}
        """Of steps with a waiting task: set when the step is the next one. Tasks of all chunks wait
        from the beginning of a ring on, and most news matter to the next step alone."""
        self._num_out = 0
        """Chunks to which a part was given that has left the trainer's momentum."""

    def step_of(self, chunk: int) -> int:
        """Returns the step that a chunk belongs to."""
        return chunk // self._chunks_of_step

    def taken(self, chunk: int, average: Payload) -> None:
        """Notes that a chunk was taken, the one after the chunk before."""
        step = self.step_of(chunk)
        contributors = self._payloads.contributors(average, None)
        if contributors >> self._position & 1:
            self._taken_from.add(step)
        is_first = chunk % self._chunks_of_step == 0
        self._is_empty = not contributors and (is_first or self._is_empty)
        self.num_taken = chunk + 1
        if self.step_of(self.num_taken) == step:
            return
        # The trainer is not told about a void ring: it offers the part again.
        if self.is_taken_from(step) and not self.is_void:
            self._num_out += self._num_given_to(step)
        self.taken_seconds = trio.current_time()
        for waiting in [each for each in self._next if each <= step + 1]:
            self._next.pop(waiting).set()

    def is_taken_from(self, step: int) -> bool:
        """Returns whether an average of the step that was taken contains this peer's part."""
        return step in self._taken_from

    @property
    def took_nothing(self) -> bool:
        """Returns whether no member has a part in the step that was taken last."""
        return self._is_empty

    async def until_next(self, step: int) -> None:
        """Waits until a step is the next one to be taken, or no step of this ring is any more."""
        if self.step_of(self.num_taken) < step and not self.is_void:
            await self._next.setdefault(step, trio.Event()).wait()

    def decided_part(self, chunk: int) -> Part | None:
        """Returns this peer's part in a chunk, as decided for another chunk of the same step; None
        if nothing is decided."""
        parts = self._decided.get(self.step_of(chunk))
        return None if parts is None else parts[chunk % self._chunks_of_step]

    def decide(self, chunk: int, update: bytes | None) -> Part:
        """Decides this peer's part in the step of a chunk: an update of the trainer, or None to
        abstain. Returns the part in that chunk. A step is decided once: two signatures for one
        would be a proof against this peer."""
        step, updates = self.step_of(chunk), (b"",) * self._chunks_of_step
        assert step not in self._decided
        if update is not None:
            updates = self._payloads.coder.cut(update)
        blocks = self._payloads.signed_blocks(updates, partial(self._sign_step, step))
        self._decided[step] = tuple(map(Part, updates, blocks))
        return self._decided[step][chunk % self._chunks_of_step]

    def late_part(self, chunk: int) -> Part:
        """Returns this peer's part in a chunk whose average it has, or that it waits for no more.

        It is empty. Where members sign their parts it is the one that was decided for the step,
        because the signature is under the parts of all its chunks.
        """
        if not self._payloads.are_signed:
            return _NOTHING
        decided = self.decided_part(chunk)
        return self.decide(chunk, None) if decided is None else decided

    def comes_first(self, chunk: int) -> bool:
        """Returns whether a partial sum is the first to come of the next step, and notes that one
        came."""
        step = self.step_of(chunk)
        is_first = step == self.step_of(self.num_taken) and step != self._timed_step
        self._timed_step = max(step, self._timed_step)
        return is_first

    def become_void(self) -> None:
        """Notes that this peer follows another ring."""
        self.is_void = True
        self.wake()

    def wake(self) -> None:
        """Ends each `until_next`."""
        while self._next:
            self._next.popitem()[1].set()

    @property
    def has_given(self) -> bool:
        """Returns whether this peer gave a part that is not empty to any step."""
        return any(part.update for part in self._given.values())

    @property
    def parts(self) -> RingParts:
        """This peer's parts in the ring, at the end of the round."""
        # The trainer was told that a part of unknown fate was taken.
        num_out = self._num_out
        if not self.is_void:
            num_out += self._num_given_to(self.step_of(self.num_taken))
        num_given = sum(bool(part.update) for part in self._given.values())
        tokens = tokens_taken(self._tokens, num_out, self.num_chunks)
        return RingParts(self.ring_id, tokens, has_left_out=num_out < num_given)

    def has_part_in(self, step: int) -> bool:
        """Returns whether this peer gave a part that is not empty to a step."""
        return self._num_given_to(step) > 0

    def _num_given_to(self, step: int) -> int:
        """Returns the number of a step's chunks to which this peer gave a part."""
        first = step * self._chunks_of_step
        chunks = range(first, first + self._chunks_of_step)
        return sum(bool(self._given.get(chunk, _NOTHING).update) for chunk in chunks)

    def _has_parts(self, partial_sum: Payload) -> bool:
        """Returns whether a partial sum has a part of any member."""
        try:
            return self._payloads.contributors(partial_sum, None) != 0
        except MalformedError:  # `add` refuses it, with its sender
            return False

    async def due(self, chunk: int, partial_sum: Payload | None) -> None:
        """See `Contribution`: waits for the trainer, but not for long."""
        if chunk in self._given:
            return
        partial_sum_seconds = None
        if partial_sum is not None and self._has_parts(partial_sum):
            partial_sum_seconds = trio.current_time()
            self._source.partial_sum_came(self, chunk)
        part = await self._source.part(self, chunk, partial_sum_seconds)
        # A partial sum that came meanwhile may have got a part already: there may not be two.
        self._given.setdefault(chunk, part)

    def add(self, chunk: int, payload: Payload | None, mask: int) -> Payload:
        """See `Contribution`."""
        return add_record(payload, self._position, self._given[chunk].block)

    def finish_average(self, chunk: int, payload: Payload, mask: int) -> Payload:
        """See `Contribution`: every peer takes the step itself."""
        return payload

    def opened(self) -> OpenedParts:
        """See `OpensChunks`: what this peer gave, and nothing where it was not asked."""
        return OpenedParts(self._updates, lambda _chunk: b"")

    def _updates(self) -> Iterator[bytes]:
        return (self._given.get(chunk, _NOTHING).update for chunk in range(self.num_chunks))

    def error_of(self, chunk: int) -> FloatVector | None:
        """See `Contribution`: what this peer did not send is in the trainer's momentum."""
        return None
