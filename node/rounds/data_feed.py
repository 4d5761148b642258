"""Which shards this peer trains on, and how their tokens reach the trainer.

The feed claims shards (the claim is part of the peer's announcement), fetches them from whoever has
them, and queues their tokens at the trainer, about two rounds ahead. What the trainer consumed goes
into the next `Ready` as spans. A claim is kept until the chain has consumed the shard to its end,
and not only the trainer: others take up a shard that nobody claims. A claim that another living
peer holds with a lower rank is given up, together with what is queued of it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.peers.block_exchange import BlockService, FetchError
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import (
    EpochProgress,
    Ledger,
    choose_shards,
    epoch_progress,
    lost_claims,
)
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.shard_index import ShardIndex
from gossamer.protocol.wire.statements import Span

ROUNDS_AHEAD = 2
"""Rounds of tokens kept queued: this one and, prefetched, the next."""

RETRY_SECONDS = 2.0
"""Between attempts to get a shard that nobody had."""

NEXT_SECONDS = 0.2
"""Between a shard that nobody had and the next: each claim is announced to everybody."""

UNAVAILABLE_SECONDS = 60.0
"""A shard that nobody had is tried again after this long; its keepers may be back."""

_PIN = "claimed shards"

log = structlog.get_logger("data")

Claims = Mapping[PeerId, Collection[int]]
Queue = Callable[[int, str, int, int], Awaitable[None]]


class DataFeed:
    """Keeps the trainer's queue filled. `queue` hands (shard, path, start, stop) to the trainer."""

    def __init__(
        self,
        me: PeerId,
        index: ShardIndex,
        store: BlockStore,
        blocks: BlockService,
        *,
        sources: Callable[[], Sequence[PeerId]],
        others_claims: Callable[[], Claims],
        ledger: Callable[[], Ledger],
        on_claims: Callable[[], None],
    ) -> None:
        self._me = me
        self._index = index
        self._store = store
        self._blocks = blocks
        self._sources = sources
        self._others_claims = others_claims
        self._ledger = ledger
        self._on_claims = on_claims
        self._shard_tokens = [shard.num_tokens for shard in index.shards]
        self._claims: list[int] = []
        self._finished: dict[int, int] = {}
        """Shards that were trained to this absolute position, their end, and not committed yet."""
        self._consumed: dict[int, int] = {}
        """Absolute position up to which this peer trained each claimed shard."""
        self._queued: dict[int, int] = {}
        """Absolute position up to which each claimed shard is queued at the trainer."""
        self._unavailable: dict[int, float] = {}
        """Shards that nobody had, and until when they are not tried again."""
        self._only_here_until_seconds = -math.inf
        """Until then only what is on disk is claimed: it did not take another shard."""
        self._ahead_tokens = 0
        self._wanted_tokens = 0
        self._wake = trio.Event()
        self.problem: str | None = None
        self._said: str | None = None

    @property
    def claims(self) -> tuple[int, ...]:
        """Shards that this peer holds for itself."""
        return (*self._uncommitted(), *self._claims)[: limits.CLAIMS_MAX]

    def _uncommitted(self) -> list[int]:
        positions = self._ledger().as_dict()
        return [shard for shard, end in self._finished.items() if positions.get(shard, 0) < end]

    def epoch_progress(self) -> EpochProgress:
        """Where the committed chain stands in the data."""
        return epoch_progress(self._ledger(), self._shard_tokens)

    def want(self, tokens_per_round: int) -> None:
        """From now on keep this many tokens a round queued."""
        self._wanted_tokens = max(1, ROUNDS_AHEAD * tokens_per_round)
        self._poke()

    def need_more(self, tokens_queued: int) -> None:
        """The trainer's queue runs out."""
        self._ahead_tokens = min(self._ahead_tokens, tokens_queued)
        self._poke()

    def consumed(self, spans: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
        """Notes what the trainer consumed (offsets within shards); returns absolute spans."""
        absolute: list[Span] = []
        for shard, start, stop in spans:
            num_tokens = self._shard_tokens[shard]
            epoch = self._queued_from(shard) // num_tokens
            absolute.append(Span(shard, epoch * num_tokens + start, epoch * num_tokens + stop))
            self._consumed[shard] = epoch * num_tokens + stop
            self._ahead_tokens = max(0, self._ahead_tokens - (stop - start))
            if stop == num_tokens and shard in self._claims:
                self._claims.remove(shard)
                self._finished[shard] = epoch * num_tokens + stop
                self._queued.pop(shard, None)
                self._claims_changed()
        self._poke()
        return tuple(absolute)

    def carry(self, spans: Sequence[Span]) -> None:
        """Work on this data is carried, from an earlier life or from rounds that were abandoned.

        Where nobody else has taken them up meanwhile, its shards are claimed again.
        """
        positions, others = self._ledger().as_dict(), self._others_claims().values()
        theirs = {shard for claims in others for shard in claims}
        for span in sorted(spans, key=lambda span: (span.shard, span.start)):
            shard = span.shard
            reached = max(positions.get(shard, 0), self._consumed.get(shard, 0))
            if shard in theirs or not span.start <= reached < span.stop:
                continue
            self._consumed[shard] = span.stop
            if span.stop % self._shard_tokens[shard] == 0:
                self._finished[shard] = span.stop
            elif shard not in self._claims:
                self._claims.append(shard)
        self._claims_changed()

    def forget_progress(self) -> None:
        """Work was dropped: its data is not consumed. The queue has to be emptied as well."""
        self._consumed.clear()
        self._finished.clear()
        self.requeue()

    def requeue(self) -> None:
        """The trainer's queue is empty (restarted, or told to forget): fill it anew."""
        self._queued.clear()
        self._ahead_tokens = 0
        self._poke()

    def give_up_lost_claims(self) -> bool:
        """Drops claims that others hold with a lower rank; says whether something was queued."""
        lost = lost_claims(self._claims, self._others_claims(), self._me)
        if not lost:
            return False
        log.info("shards left to others", shards=sorted(lost))
        self._claims = [shard for shard in self._claims if shard not in lost]
        self._claims_changed()
        return any(shard in self._queued for shard in lost)

    async def run(self, queue: Queue) -> None:
        """Keeps the queue filled until cancelled."""
        while True:
            if self._ahead_tokens >= self._wanted_tokens:
                await self._wake.wait()
                self._wake = trio.Event()
                continue
            shard = self._next_shard()
            if shard is None:
                self._say_there_is_none()
                await trio.sleep(RETRY_SECONDS)
                continue
            info = self._index.shards[shard]
            try:
                # Asked once: with peers gone, what is left has to be found among many shards.
                await self._blocks.fetch_checked([Digest(info.digest)], self._sources, passes=1)
            except (FetchError, DiskError) as error:
                self.problem = str(error)
                if isinstance(error, DiskError):
                    self._only_here_until_seconds = trio.current_time() + UNAVAILABLE_SECONDS
                log.debug("a shard could not be fetched", shard=shard, error=str(error))
                self._put_back(shard)
                await trio.sleep(NEXT_SECONDS)
                continue
            self.problem = self._said = None
            if shard in self._claims:  # it may have been lost while it was fetched
                start = self._position(shard)
                offset = start % info.num_tokens
                self._queued[shard] = start - offset + info.num_tokens
                self._ahead_tokens += info.num_tokens - offset
                await queue(
                    shard, str(self._store.path(Digest(info.digest))), offset, info.num_tokens
                )

    def _say_there_is_none(self) -> None:
        problem = self.problem
        if not self._unavailable:
            self.problem = problem = "all shards are claimed by others"
        if problem != self._said:
            self._said = problem
            log.warning("no data to train on can be had now", problem=problem)

    def _next_shard(self) -> int | None:
        """A claimed shard that is not queued yet, or a newly claimed one."""
        for shard in self._claims:
            if shard not in self._queued:
                return shard
        uncommitted = self._uncommitted()
        self._finished = {shard: self._finished[shard] for shard in uncommitted}
        if len(self._claims) + len(uncommitted) >= limits.CLAIMS_MAX:
            return None
        now = trio.current_time()
        self._unavailable = {s: t for s, t in self._unavailable.items() if t > now}
        ours = {*self._claims, *uncommitted, *self._unavailable}
        if now < self._only_here_until_seconds:
            ours |= self._not_here()
        chosen = choose_shards(
            self._ledger(), self._shard_tokens, self._others_claims(), self._me, 1, ours
        )
        if not chosen:
            return None
        self._consumed.pop(chosen[0], None)
        self._claims.append(chosen[0])
        self._claims_changed()
        return chosen[0]

    def _not_here(self) -> set[int]:
        """Shards that would have to be fetched."""
        return {
            shard
            for shard, info in enumerate(self._index.shards)
            if not self._store.has(Digest(info.digest))
        }

    def _put_back(self, shard: int) -> None:
        """Nobody has it now: another one is as good."""
        self._unavailable[shard] = trio.current_time() + UNAVAILABLE_SECONDS
        if shard in self._claims:
            self._claims.remove(shard)
            self._claims_changed()

    def _position(self, shard: int) -> int:
        return max(self._ledger().as_dict().get(shard, 0), self._consumed.get(shard, 0))

    def _queued_from(self, shard: int) -> int:
        """A position in the epoch that is queued of a shard."""
        queued = self._queued.get(shard)
        return self._position(shard) if queued is None else queued - 1

    def _claims_changed(self) -> None:
        self._store.pin(_PIN, [Digest(self._index.shards[shard].digest) for shard in self._claims])
        self._on_claims()

    def _poke(self) -> None:
        self._wake.set()
