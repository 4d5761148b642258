"""The partitions of the data that one peer holds, how far it trained them, and what is queued.

Rules
-----
- A partition is held from the claim until the chain has consumed what this peer trained of it, and
  not only the trainer: others take up a partition that no peer claims.
- If the rounds do not count what this peer trained of a partition, others take the partition up
  first. This peer claims it again when the ledger has moved it, or if nothing else is free.
- Positions are absolute, as in the ledger: token t of epoch e of n has position e * n + t.
- The trainer consumes the tokens of a partition in the order in which they were queued. If no other
  partition is free, a held one is queued for its next epoch before the present epoch is committed:
  a corpus that is smaller than a round of all peers is trained on several times in one round.

No I/O and no clock; `data_feed` fetches shards and queues them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger, choose_partitions, claim_ranks, lost_claims
from gossamer.protocol.accounting.partitions import Partitions
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.statements import Span

Claims: TypeAlias = Mapping[PeerId, Collection[int]]


@dataclass(frozen=True)
class Piece:
    """One entry of the trainer's queue: tokens `start` to `stop` of one shard."""

    partition: int
    shard: int
    start: int
    stop: int


@dataclass
class _Queued:
    """The part of one partition that is queued, as absolute positions."""

    next: int
    """Position of the first token that the trainer did not report as consumed."""
    end: int
    """Position after the last queued token."""
    goal: int
    """End of the epoch up to which this partition is to be queued."""


class HeldPartitions:
    """One peer's claims on the data of a run.

    It has more than 15 public methods: each step from a claim to its commit is one.
    """

    def __init__(
        self,
        me: PeerId,
        partitions: Partitions,
        *,
        ledger: Callable[[], Ledger],
        others_claims: Callable[[], Claims],
        hearsay: Callable[[], Claims],
    ) -> None:
        """
        Args:
            ledger: gives the ledger of the committed head.
            others_claims: gives the partitions that the other living peers claim.
            hearsay: gives the same with peers that may be invented.
        """
        self.partitions = partitions
        self._me = me
        self._ledger = ledger
        self._others_claims = others_claims
        self._hearsay = hearsay
        self._ranks: list[bytes] | None = None
        self._read: tuple[Ledger, dict[int, int]] = (Ledger(), {})
        self._working: list[int] = []
        self._finished: dict[int, int] = {}
        """Partitions that were trained to the end of an epoch, which is not committed yet; the
        position of that end."""
        self._trained: dict[int, int] = {}
        """Position up to which this peer has trained each partition."""
        self._queued: dict[int, _Queued] = {}
        self._left: dict[int, int] = {}
        """Partitions that are left to others, each with its position in the ledger then."""

    @property
    def held(self) -> tuple[int, ...]:
        """All partitions that this peer claims."""
        return (*self._uncommitted(), *self._working)[: limits.CLAIMS_MAX]

    @property
    def is_full(self) -> bool:
        """Returns whether this peer holds as many partitions as one announcement can name."""
        return len(self._working) + len(self._uncommitted()) >= limits.CLAIMS_MAX

    @property
    def shards_to_train(self) -> list[int]:
        """Shards of the partitions that are being trained."""
        return [shard for number in self._working for shard in self.partitions.shards(number)]

    def _uncommitted(self) -> list[int]:
        positions = self._positions()
        return [number for number, end in self._finished.items() if positions.get(number, 0) < end]

    def _positions(self) -> dict[int, int]:
        """Consumed positions of the ledger. A ledger never changes, so each is read once."""
        ledger = self._ledger()
        if self._read[0] is not ledger:
            self._read = (ledger, ledger.as_dict())
        return self._read[1]

    def _position(self, partition: int) -> int:
        return max(self._positions().get(partition, 0), self._trained.get(partition, 0))

    # Claims

    def claim(self, num_tokens: int, excluded: Collection[int] = ()) -> bool:
        """Claims partitions of `num_tokens` in all. False if none is free."""
        uncommitted = self._uncommitted()
        self._finished = {number: self._finished[number] for number in uncommitted}
        num_held = len(self._working) + len(uncommitted)
        largest = max(self.partitions.tokens)
        num_wanted = min(max(1, -(-num_tokens // largest)), limits.CLAIMS_MAX - num_held)
        if num_wanted <= 0:
            return False
        if self._ranks is None or len(self._ranks) != len(self.partitions):
            self._ranks = claim_ranks(len(self.partitions), self._me)
        useless = {*self._working, *uncommitted, *excluded}
        left = self._left_to_others()
        chosen = self._choose(num_wanted, useless | left)
        if left and not chosen:
            chosen = self._choose(num_wanted, useless)
        for number in chosen:
            self._trained.pop(number, None)
        self._working += chosen
        return bool(chosen)

    def _choose(self, num_wanted: int, excluded: Collection[int]) -> list[int]:
        return choose_partitions(
            self._positions(),
            self.partitions.tokens,
            self._others_claims(),
            self._me,
            num_wanted,
            excluded,
            self._ranks,
            self._hearsay(),
        )

    def _left_to_others(self) -> set[int]:
        """The partitions that others are to take up first. Without others there are none."""
        if not any(self._others_claims().values()):
            self._left.clear()
        positions = self._positions()
        self._left = {n: at for n, at in self._left.items() if positions.get(n, 0) == at}
        return set(self._left)

    def extend(self, excluded: Collection[int] = ()) -> bool:
        """Holds one more epoch of the held partition that is the least far. False without one."""
        held = [n for n in (*self._uncommitted(), *self._working) if n not in excluded]
        if not held:
            return False
        tokens = self.partitions.tokens
        chosen = min(held, key=lambda number: self._end(number) // tokens[number])
        if chosen in self._finished:
            del self._finished[chosen]
            self._working.append(chosen)
        else:
            self._working.remove(chosen)
            self._working.append(chosen)
            self._queued[chosen].goal += tokens[chosen]
        return True

    def _end(self, partition: int) -> int:
        """Position at which the first epoch of a held partition begins that is not queued."""
        queued = self._queued.get(partition)
        return self._position(partition) if queued is None else queued.goal

    def give_up(self, partition: int) -> bool:
        """Drops a claim without queued tokens and without work that is not committed. Says whether
        the claim was dropped."""
        queued = self._queued.get(partition)
        is_begun = self._position(partition) > self._positions().get(partition, 0)
        if partition not in self._working or is_begun or (queued and queued.end > queued.next):
            return False
        self._working.remove(partition)
        self._queued.pop(partition, None)
        return True

    def give_up_lost(self) -> tuple[set[int], bool]:
        """Drops claims that others hold with a lower rank.

        Returns:
            The dropped partitions, and whether tokens of them are queued. The caller then has to
            empty the trainer's queue, see `requeue`.
        """
        lost = lost_claims(self._working, self._others_claims(), self._me)
        self._working = [number for number in self._working if number not in lost]
        return lost, not lost.isdisjoint(self._queued)

    def give_up_lost_unbegun(self) -> bool:
        """Drops claims that others hold with a lower rank, of which nothing is queued or trained
        yet. Says whether there were any."""
        lost = lost_claims(self._working, self._others_claims(), self._me)
        return sum(self.give_up(number) for number in sorted(lost)) > 0

    def leave(self, partitions: Iterable[int]) -> None:
        """Leaves partitions to others. `forget_progress` has to follow."""
        positions = self._positions()
        self._left |= {number: positions.get(number, 0) for number in partitions}
        self._working = [number for number in self._working if number not in self._left]

    def has_gap(self, spans: Iterable[Span]) -> bool:
        """Returns whether a held partition was trained further than the ledger comes with these
        spans. The chain would never count what follows."""
        positions, reached = self._positions(), dict[int, int]()
        for span in sorted(spans, key=lambda span: (span.partition, span.start)):
            at = reached.get(span.partition, positions.get(span.partition, 0))
            if span.start <= at < span.stop:
                reached[span.partition] = span.stop
        return any(
            self._trained.get(number, 0) > reached.get(number, positions.get(number, 0))
            for number in (*self._uncommitted(), *self._working)
        )

    def carry(self, spans: Iterable[Span]) -> None:
        """Work on this data is carried, from an earlier life or from rounds that left the chain.

        Its partitions are claimed again, unless another peer has claimed them meanwhile.
        """
        theirs = {number for claims in self._others_claims().values() for number in claims}
        for span in sorted(spans, key=lambda span: (span.partition, span.start)):
            number = span.partition
            if number in theirs or number >= len(self.partitions):
                continue
            if not span.start <= self._position(number) < span.stop:
                continue
            self._trained[number] = span.stop
            if span.stop % self.partitions.tokens[number] == 0:
                self._finished[number] = span.stop
            elif number not in self._working:
                self._working.append(number)

    # The queue

    def next_pieces(self, num_wanted: int, excluded: Collection[int]) -> list[Piece]:
        """The pieces of the partitions in work to queue next, in order; `queue` notes each."""
        pieces: list[Piece] = []
        for number in self._working:
            if len(pieces) == num_wanted:
                break
            if number not in excluded:
                pieces += self._pieces_of(number, num_wanted - len(pieces))
        return pieces

    def _pieces_of(self, partition: int, num_wanted: int) -> list[Piece]:
        size = self.partitions.tokens[partition]
        queued = self._queued.get(partition)
        position = self._position(partition) if queued is None else queued.end
        goal = position - position % size + size if queued is None else queued.goal
        pieces: list[Piece] = []
        while position < goal and len(pieces) < num_wanted:
            shard = self.partitions.shard_at(partition, position % size)
            start = position % size - self.partitions.offset_of(shard)
            stop = self.partitions.shard_tokens(shard)
            pieces.append(Piece(partition, shard, start, stop))
            position += stop - start
        return pieces

    def queue(self, piece: Piece) -> bool:
        """Notes that a piece is queued. False if it is not the next one of a partition in work: the
        claim may have been lost while the shard was fetched."""
        number = piece.partition
        if number not in self._working or piece not in self._pieces_of(number, 1):
            return False
        if number not in self._queued:
            size, position = self.partitions.tokens[number], self._position(number)
            goal = position - position % size + size
            self._queued[number] = _Queued(position, position, goal)
        self._queued[number].end += piece.stop - piece.start
        return True

    def requeue(self) -> None:
        """The trainer's queue is empty: tokens that were not consumed are to be queued anew."""
        self._queued.clear()

    def consumed(self, shard: int, start: int, stop: int) -> tuple[Span, bool]:
        """The trainer consumed tokens of a shard.

        Returns:
            The absolute span, and whether the partition came to its end.
        """
        number = self.partitions.partition_of(shard)
        size, offset = self.partitions.tokens[number], self.partitions.offset_of(shard) + start
        queued = self._queued.get(number)
        reached = self._position(number) if queued is None else queued.next
        begin = reached - reached % size + offset
        if queued is not None and begin < queued.next and begin + size < queued.end:
            begin += size
        end = begin + stop - start
        self._trained[number] = end
        if queued is not None:
            queued.next = end
        is_at_end = end % size == 0 and (queued is None or end >= queued.goal)
        if is_at_end and number in self._working:
            self._working.remove(number)
            self._finished[number] = end
            self._queued.pop(number, None)
        return Span(number, begin, end), is_at_end

    def forget_progress(self) -> None:
        """Work was dropped: its data is not consumed. The queue has to be emptied as well."""
        self._trained.clear()
        self._finished.clear()
        self.requeue()
