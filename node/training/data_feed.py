"""The feed: it chooses the data that this peer trains on, and brings its tokens to the trainer.

The feed claims partitions of the data, and the peer announces the claims. It fetches their shards
from peers that have them, and queues their tokens at the trainer, about two rounds ahead. The next
`Ready` names the tokens that the trainer consumed as spans. `claims` has the rules of how long a
partition is held. If another living peer holds a claim with a lower rank, this peer gives the
partition up: when its shards have come, if nothing of it is queued or trained, or else when the
next round begins, together with what is queued of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.training.claims import HeldPartitions, Piece
from gossamer.node.training.feed import ROUNDS_AHEAD, Feed, Queue
from gossamer.protocol.accounting.ledger import EpochProgress, Ledger, epoch_progress
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import Digest
from gossamer.protocol.wire.statements import Span

QUEUED_CACHE_SHARE = 0.5
"""Part of the cache that the shards of queued tokens may fill: they stay on disk until consumed."""

FETCHED_TOGETHER = 8
"""Shards in one fetch while the queue has tokens. With an empty queue, one shard comes sooner."""

RETRY_SECONDS = 2.0
"""Pause between attempts to find data while none can be had."""

NEXT_SECONDS = 0.2
"""Pause between a shard that no peer had and the next one: each claim is announced to all peers."""

LOOK_SHARE = 0.05
"""Largest part of the time that looks for another partition take. Among 32,000 one takes 20 ms."""

UNAVAILABLE_SECONDS = 60.0
"""A partition of which no peer had a shard is tried again after this time: peers may be back."""

LOST_MIN = 8
"""Partitions of which no peer had a shard, from which on a node without queued tokens goes first to
those on its disk. Of a corpus that is mostly lost each partition would be tried before a later
epoch of these, and after `UNAVAILABLE_SECONDS` the first ones again before the last."""

_PIN = "claimed shards"

log = structlog.get_logger("data")


class DataFeed(Feed):
    """Keeps the trainer's queue filled from the run's data.

    It has more than 12 attributes: where data comes from, and what was last known of it.
    """

    def __init__(
        self,
        data: RunData,
        store: BlockStore,
        blocks: BlockService,
        swarm: Swarm,
        committed: CommittedState,
    ) -> None:
        """`data`: the shards of the run; `data_has_grown` says when there are more of them."""
        super().__init__(min(shard.num_tokens for shard in data.shards))
        self._data = data
        self._store = store
        self._blocks = blocks
        self._swarm = swarm
        self._committed = committed
        self._partitions = data.partitions
        self._held = HeldPartitions(
            swarm.me,
            self._partitions,
            ledger=lambda: committed.ledger,
            others_claims=swarm.claims,
            hearsay=swarm.claims_heard_of,
        )
        self._progress: tuple[Ledger, EpochProgress] | None = None
        self._unavailable: dict[int, float] = {}
        """Partitions of which no peer had a shard; local time until which each is not tried."""
        self._looked_up: tuple[tuple[int, int], frozenset[int]] | None = None
        """Changes of the store, number of partitions, and those that were not on disk then."""
        self._only_here_until_seconds = -math.inf
        """Local time until which only partitions on disk are claimed: it took no other shard."""
        self._announced: set[int] = set()
        """Claims that the other peers know."""
        self._said: str | None = None

    @property
    def claims(self) -> tuple[int, ...]:
        """Partitions that this peer claims."""
        return self._held.held

    def epoch_progress(self) -> EpochProgress:
        """The progress of the committed chain in the data. Computed once for each ledger."""
        ledger = self._committed.ledger
        if self._progress is None or self._progress[0] is not ledger:
            self._progress = (ledger, epoch_progress(ledger, self._partitions))
        return self._progress[1]

    def want(self, tokens_per_round: int) -> None:
        """See `Feed`. No more is wanted than the cache holds."""
        tokens_per_byte = self._data.num_tokens / self._data.num_bytes
        fitting = int(QUEUED_CACHE_SHARE * self._store.quota_bytes * tokens_per_byte)
        self._level.wanted_tokens = max(1, min(ROUNDS_AHEAD * tokens_per_round, fitting))
        self._wake.set()

    def data_has_grown(self) -> None:
        self._progress = None
        self._level.smallest_shard_tokens = min(shard.num_tokens for shard in self._data.shards)
        self._wake.set()

    def consumed(self, spans: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
        absolute: list[Span] = []
        has_changed = False
        for shard, start, stop in spans:
            span, is_at_end = self._held.consumed(shard, start, stop)
            has_changed = has_changed or is_at_end
            add_span(absolute, span)
            is_end_of_piece = stop == self._data.shards[shard].num_tokens
            self._level.consumed(stop - start, is_end_of_piece=is_end_of_piece)
        if has_changed:
            self._claims_changed()
        self._wake.set()
        return tuple(absolute)

    def carry(self, spans: Sequence[Span]) -> None:
        self._held.carry(spans)
        self._claims_changed()

    def leave(self, spans: Sequence[Span]) -> None:
        self._held.leave({span.partition for span in spans})

    def has_gap(self, spans: Sequence[Span]) -> bool:
        return self._held.has_gap(spans)

    def forget_progress(self) -> None:
        self._held.forget_progress()
        super().forget_progress()

    def requeue(self) -> None:
        self._held.requeue()
        super().requeue()

    def give_up_lost_claims(self) -> bool:
        lost, is_queued = self._held.give_up_lost()
        if lost:
            log.info("data left to others", partitions=sorted(lost))
            self._claims_changed()
        return is_queued

    async def _fill(self, queue: Queue) -> None:
        began_seconds = trio.current_time()
        pieces = self._next_pieces()
        look_seconds = trio.current_time() - began_seconds
        if not pieces:
            self._say_there_is_none()
            await trio.sleep(RETRY_SECONDS)
            return
        digests = [self._digest(piece.shard) for piece in pieces]
        missing: set[Digest] = set()
        try:
            # One pass: with peers gone, what is left has to be found among many shards.
            await self._blocks.fetch_checked(digests, self._swarm.sources, passes=1)
        except (FetchError, DiskError) as error:
            self.problem = str(error)
            if isinstance(error, DiskError):
                self._only_here_until_seconds = trio.current_time() + UNAVAILABLE_SECONDS
            log.debug("shards could not be fetched", error=str(error))
            missing = set(self._store.missing(digests))
        else:
            self.problem = self._said = None
        await self._queue(pieces, missing, queue)
        if missing:
            await trio.sleep(max(NEXT_SECONDS, look_seconds / LOOK_SHARE))

    async def _queue(self, pieces: Sequence[Piece], missing: set[Digest], queue: Queue) -> None:
        """Queues the pieces of each partition up to its first missing shard."""
        # Two newcomers may have claimed the same at one moment. Now both have heard of it, and
        # neither has trained on it.
        if self._held.give_up_lost_unbegun():
            self._claims_changed()
        stopped: set[int] = set()
        for piece in pieces:
            digest = self._digest(piece.shard)
            if digest in missing and piece.partition not in stopped:
                stopped.add(piece.partition)
                self._put_back(piece.partition)
            # A claim may have been lost, and the queue emptied, while something was awaited.
            if piece.partition in stopped or not self._held.queue(piece):
                continue
            self._level.queued(piece.stop - piece.start)
            await queue(piece.shard, str(self._store.path(digest)), piece.start, piece.stop)

    def _digest(self, shard: int) -> Digest:
        return Digest(self._data.shards[shard].digest)

    def _say_there_is_none(self) -> None:
        problem = self.problem
        if self._held.is_full:
            self.problem = problem = (
                f"this node holds {len(self.claims)} partitions of the data, as many as it can "
                "announce: it goes on when a round that trained them is committed"
            )
        elif not self._unavailable:
            self.problem = problem = "all shards are claimed by others"
        if problem != self._said:
            self._said = problem
            log.warning("no data to train on can be had now", problem=problem)

    def _next_pieces(self) -> list[Piece]:
        """The pieces to queue next, of partitions that are held or newly claimed."""
        now = trio.current_time()
        self._unavailable = {p: until for p, until in self._unavailable.items() if until > now}
        num_wanted = FETCHED_TOGETHER if self._level.tokens else 1
        pieces = self._held.next_pieces(num_wanted, self._unavailable)
        if pieces:
            return pieces
        useless = set(self._unavailable)
        if now < self._only_here_until_seconds:
            useless |= self._not_here()
        choices = [useless]
        if len(self._unavailable) >= LOST_MIN and not self._level.tokens:
            choices.insert(0, useless | self._not_here() | self._claimed_by_others())
        if any(self._held.claim(self._level.missing_tokens, each) for each in choices):
            self._claims_changed()
        elif self._held.is_full or not self._held.extend(self._unavailable):
            return []
        return self._held.next_pieces(num_wanted, self._unavailable)

    def _not_here(self) -> frozenset[int]:
        """Partitions with a shard that is not on this disk. Looked up anew when the disk has
        changed."""
        partitions, store = self._partitions, self._store
        seen = store.num_changes, len(partitions)
        if self._looked_up is None or self._looked_up[0] != seen:
            found = frozenset(
                number
                for number in range(len(partitions))
                if not all(store.has(self._digest(shard)) for shard in partitions.shards(number))
            )
            self._looked_up = seen, found
        return self._looked_up[1]

    def _claimed_by_others(self) -> set[int]:
        return {number for claims in self._swarm.claims().values() for number in claims}

    def _put_back(self, partition: int) -> None:
        """No peer has a shard of this partition now: another partition is as good."""
        self._unavailable[partition] = trio.current_time() + UNAVAILABLE_SECONDS
        if self._held.give_up(partition):
            self._claims_changed()

    def _claims_changed(self) -> None:
        self._store.pin(_PIN, [self._digest(shard) for shard in self._held.shards_to_train])
        # A claim that was dropped is no news: who holds it now has a lower rank, or no peer has it.
        claims = set(self.claims)
        if not claims <= self._announced:
            self._swarm.announce_soon()
        self._announced = claims


def add_span(spans: list[Span], span: Span) -> None:
    """Appends a span, merged with the last one where it follows on from it."""
    if spans and spans[-1].partition == span.partition and spans[-1].stop == span.start:
        spans[-1] = Span(span.partition, spans[-1].start, span.stop)
    else:
        spans.append(span)
