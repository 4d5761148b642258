"""Which data this peer trains on, and how its tokens reach the trainer.

The feed claims partitions of the data (the claims are part of the peer's announcement), fetches
their shards from peers that have them, and queues their tokens at the trainer, about two rounds
ahead. What the trainer consumed goes into the next `Ready` as spans. What is held, and for how
long, is in `claims`. A claim that another living peer holds with a lower rank is given up, together
with what is queued of it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.peers.block_exchange import BlockService, FetchError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.training.claims import Claims, HeldPartitions, Piece
from gossamer.protocol.accounting.ledger import EpochProgress, Ledger, epoch_progress
from gossamer.protocol.accounting.partitions import Partitions
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.shard_index import ShardIndex
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import DATA_RANGES_MAX

ROUNDS_AHEAD = 2
"""Rounds of tokens kept queued: this one and, prefetched, the next."""

PIECES_AHEAD_MAX = DATA_RANGES_MAX // 2
"""Pieces of shards that are queued: the trainer takes no more than twice as many."""

QUEUED_CACHE_SHARE = 0.5
"""Part of the cache that the shards of what is queued may fill: they stay on disk until then."""

FETCHED_TOGETHER = 8
"""Shards in one fetch, once something is queued. Before that one alone comes sooner."""

RETRY_SECONDS = 2.0
"""Between attempts to get a shard that no peer had."""

NEXT_SECONDS = 0.2
"""Between a shard that no peer had and the next: each claim is announced to everybody."""

UNAVAILABLE_SECONDS = 60.0
"""A partition of which no peer had a shard is tried again after this long; its keepers may be
back."""

_PIN = "claimed shards"

log = structlog.get_logger("data")

Queue = Callable[[int, str, int, int], Awaitable[None]]


class DataFeed:
    """Keeps the trainer's queue filled. `run` hands (shard, path, start, stop) to the trainer."""

    def __init__(
        self,
        me: PeerId,
        index: ShardIndex,
        store: BlockStore,
        blocks: BlockService,
        *,
        shards_per_partition: int,
        sources: Callable[[], Sequence[PeerId]],
        others_claims: Callable[[], Claims],
        ledger: Callable[[], Ledger],
        on_claims: Callable[[], None],
    ) -> None:
        self._index = index
        self._store = store
        self._blocks = blocks
        self._sources = sources
        self._ledger = ledger
        self._on_claims = on_claims
        self._partitions = Partitions(
            [shard.num_tokens for shard in index.shards], shards_per_partition
        )
        self._held = HeldPartitions(
            me, self._partitions, ledger=ledger, others_claims=others_claims
        )
        num_bytes = sum(shard.num_bytes for shard in index.shards)
        self._tokens_per_byte = sum(self._partitions.tokens) / num_bytes
        self._smallest_shard_tokens = min(shard.num_tokens for shard in index.shards)
        self._progress: tuple[Ledger, EpochProgress] | None = None
        self._unavailable: dict[int, float] = {}
        """Partitions of which no peer had a shard, and until when they are not tried again."""
        self._only_here_until_seconds = -math.inf
        """Until then only what is on disk is claimed: it did not take another shard."""
        self._ahead_tokens = 0
        self._ahead_pieces = 0
        self._wanted_tokens = 0
        self._wake = trio.Event()
        self.problem: str | None = None
        self._said: str | None = None

    @property
    def claims(self) -> tuple[int, ...]:
        """Partitions that this peer holds for itself."""
        return self._held.held

    def epoch_progress(self) -> EpochProgress:
        """Where the committed chain stands in the data. Computed once for each ledger."""
        ledger = self._ledger()
        if self._progress is None or self._progress[0] is not ledger:
            self._progress = (ledger, epoch_progress(ledger, self._partitions))
        return self._progress[1]

    def want(self, tokens_per_round: int) -> None:
        """From now on keep this many tokens a round queued."""
        fitting = int(QUEUED_CACHE_SHARE * self._store.quota_bytes * self._tokens_per_byte)
        self._wanted_tokens = max(1, min(ROUNDS_AHEAD * tokens_per_round, fitting))
        self._poke()

    def need_more(self, tokens_queued: int) -> None:
        """The trainer's queue runs out."""
        if tokens_queued < self._ahead_tokens:
            self._ahead_tokens = tokens_queued
            # No piece but the first and the last of a partition's is shorter than a shard.
            pieces_max = 2 + 2 * tokens_queued // self._smallest_shard_tokens
            self._ahead_pieces = min(self._ahead_pieces, pieces_max)
        self._poke()

    def consumed(self, spans: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
        """Notes what the trainer consumed (offsets within shards); returns absolute spans, those
        that follow on each other as one."""
        absolute: list[Span] = []
        has_changed = False
        for shard, start, stop in spans:
            span, is_at_end = self._held.consumed(shard, start, stop)
            has_changed = has_changed or is_at_end
            add_span(absolute, span)
            self._ahead_tokens = max(0, self._ahead_tokens - (stop - start))
            if stop == self._index.shards[shard].num_tokens:
                self._ahead_pieces = max(0, self._ahead_pieces - 1)
        if has_changed:
            self._claims_changed()
        self._poke()
        return tuple(absolute)

    def carry(self, spans: Sequence[Span]) -> None:
        """Work on this data is carried, from an earlier life or from rounds that were abandoned."""
        self._held.carry(spans)
        self._claims_changed()

    def forget_progress(self) -> None:
        """Work was dropped: its data is not consumed. The queue has to be emptied as well."""
        self._held.forget_progress()
        self.requeue()

    def requeue(self) -> None:
        """The trainer's queue is empty (restarted, or told to forget): fill it anew."""
        self._held.requeue()
        self._ahead_tokens = self._ahead_pieces = 0
        self._poke()

    def give_up_lost_claims(self) -> bool:
        """Drops claims that others hold with a lower rank; says whether something was queued."""
        lost, is_queued = self._held.give_up_lost()
        if lost:
            log.info("data left to others", partitions=sorted(lost))
            self._claims_changed()
        return is_queued

    async def run(self, queue: Queue) -> None:
        """Keeps the queue filled until cancelled."""
        while True:
            if self._is_enough():
                await self._wake.wait()
                self._wake = trio.Event()
                continue
            pieces = self._next_pieces()
            if not pieces:
                self._say_there_is_none()
                await trio.sleep(RETRY_SECONDS)
                continue
            digests = [self._digest(piece.shard) for piece in pieces]
            missing: set[Digest] = set()
            try:
                # Asked once: with peers gone, what is left has to be found among many shards.
                await self._blocks.fetch_checked(digests, self._sources, passes=1)
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
                await trio.sleep(NEXT_SECONDS)

    def _is_enough(self) -> bool:
        return self._ahead_tokens >= self._wanted_tokens or self._ahead_pieces >= PIECES_AHEAD_MAX

    async def _queue(self, pieces: Sequence[Piece], missing: set[Digest], queue: Queue) -> None:
        """Queues what is here, each partition up to the first shard that is not."""
        stopped: set[int] = set()
        for piece in pieces:
            digest = self._digest(piece.shard)
            if digest in missing and piece.partition not in stopped:
                stopped.add(piece.partition)
                self._put_back(piece.partition)
            # A claim may have been lost, and the queue emptied, while something was awaited.
            if piece.partition in stopped or not self._held.queue(piece):
                continue
            self._ahead_tokens += piece.stop - piece.start
            self._ahead_pieces += 1
            await queue(piece.shard, str(self._store.path(digest)), piece.start, piece.stop)

    def _digest(self, shard: int) -> Digest:
        return Digest(self._index.shards[shard].digest)

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
        """What is to be queued next, of partitions that are held or newly claimed."""
        now = trio.current_time()
        self._unavailable = {p: until for p, until in self._unavailable.items() if until > now}
        num_wanted = FETCHED_TOGETHER if self._ahead_tokens else 1
        pieces = self._held.next_pieces(num_wanted, self._unavailable)
        if pieces:
            return pieces
        useless = set(self._unavailable)
        if now < self._only_here_until_seconds:
            useless |= self._not_here()
        if self._held.claim(self._wanted_tokens - self._ahead_tokens, useless):
            self._claims_changed()
        elif self._held.is_full or not self._held.extend(self._unavailable):
            return []
        return self._held.next_pieces(num_wanted, self._unavailable)

    def _not_here(self) -> set[int]:
        """Partitions of which a shard would have to be fetched."""
        partitions = self._partitions
        return {
            number
            for number in range(len(partitions))
            if not all(self._store.has(self._digest(shard)) for shard in partitions.shards(number))
        }

    def _put_back(self, partition: int) -> None:
        """No peer has a shard of it now: another partition is as good."""
        self._unavailable[partition] = trio.current_time() + UNAVAILABLE_SECONDS
        if self._held.give_up(partition):
            self._claims_changed()

    def _claims_changed(self) -> None:
        self._store.pin(_PIN, [self._digest(shard) for shard in self._held.shards_to_train])
        self._on_claims()

    def _poke(self) -> None:
        self._wake.set()


def add_span(spans: list[Span], span: Span) -> None:
    """Appends a span, merged with the last one where it follows on from it."""
    if spans and spans[-1].partition == span.partition and spans[-1].stop == span.start:
        spans[-1] = Span(span.partition, spans[-1].start, span.stop)
    else:
        spans.append(span)
