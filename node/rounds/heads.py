"""Heads: which one wins, and how this node gets there.

Announcements say which heads the others hold; commit records prove it. `better` names the heaviest
head that wins over ours; `take_over` makes it ours, and puts the work that abandoned rounds had
taken from us back into what we carry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.peers.chain_sync import BehindError
from gossamer.node.rounds.parts import Parts
from gossamer.protocol.chain import is_heavier
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, short
from gossamer.protocol.messages import Ready, Roster

NEAR_ROUNDS = 2
"""Rounds that a peer may be behind the head and still be waited for. Without it a newcomer would
run after a swarm of quick rounds for ever."""

AVOID_SECONDS = 20.0
"""A head that could not be reached is left alone this long."""

log = structlog.get_logger("node")


@dataclass(frozen=True)
class BetterHead:
    """A head that wins over ours."""

    head: Digest
    tokens_total: int
    """Tokens in its chain: proven, or as its holders say."""
    since_seconds: float
    """Since when some head has been better than ours (local clock)."""


class Heads:
    """What is known of heads."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._avoided: dict[Digest, float] = {}
        self._better_since: float | None = None

    def better(self) -> BetterHead | None:
        """The heaviest known head that wins over ours; None if ours is the best."""
        now = trio.current_time()
        committed = self._parts.committed
        chain, mine = committed.chain, committed.entry
        best: tuple[int, Digest] | None = None
        announced = self._parts.swarm.living().values()
        known = [(Digest(a.head), a.tokens_total) for a in announced]
        known += [(head, 0) for head in chain.tips()]
        for head, claimed_tokens in known:
            tokens = chain.entry(head).tokens_total if head in chain else claimed_tokens
            if self._avoided.get(head, -math.inf) > now:
                continue
            if is_heavier(tokens, head, mine.tokens_total, mine.head) and (
                best is None or is_heavier(tokens, head, best[0], best[1])
            ):
                best = (tokens, head)
        if best is None:
            self._better_since = None
            return None
        if self._better_since is None:
            self._better_since = now
        return BetterHead(best[1], best[0], self._better_since)

    def is_near(self, head: Digest) -> bool:
        """Whether I am so few rounds behind a head that the others may wait for me."""
        committed = self._parts.committed
        chain = committed.chain
        return committed.is_loaded and (
            head not in chain or committed.head in chain.ancestors(head, NEAR_ROUNDS)
        )

    def recent(self) -> list[Digest]:
        """My head and those shortly before it."""
        committed = self._parts.committed
        return committed.chain.ancestors(committed.head, NEAR_ROUNDS)

    async def try_take_over(self, head: Digest) -> bool:
        """Makes a head ours; False, and the head is avoided for a while, if that cannot be done."""
        try:
            await self._take_over(head)
        except (BehindError, RemoteProtocolError) as error:
            log.warning(
                "a heavier head could not be taken over", head=short(head), error=str(error)
            )
            now = trio.current_time()
            self._avoided = {h: t for h, t in self._avoided.items() if t > now}
            self._avoided[head] = now + AVOID_SECONDS
            return False
        self.note_new()
        entry = self._parts.committed.entry
        log.info("at the swarm's head", round=entry.round, head=short(entry.head))
        return True

    async def _take_over(self, head: Digest) -> None:
        parts = self._parts
        chain = parts.committed.chain
        if head not in chain or chain.path_between(chain.genesis, head) is None:
            await self._learn(head)
        mine = parts.committed.head
        if parts.committed.is_loaded and not chain.is_heavier(head, mine):
            raise BehindError("it is lighter than was said")
        await parts.chain_sync.follow(head, parts.swarm.sources)
        for lost in chain.only_in(mine, head):
            await parts.run_in_thread(lambda lost=lost: parts.work.reclaim(lost))  # type: ignore[misc]

    async def _learn(self, head: Digest) -> None:
        """The commit records on the way to a head, from one of its holders."""
        swarm = self._parts.swarm
        holders = [peer for peer, a in swarm.living().items() if a.head == head]
        if not holders:
            raise BehindError("nobody who has it is connected")
        for holder in holders:
            try:
                await self._parts.chain_sync.learn(head, holder)
                return
            except BehindError:
                if holder == holders[-1]:
                    raise
            except RemoteProtocolError as error:
                swarm.offence(holder, error)
                raise

    def note_new(self) -> None:
        """The committed head has changed: tidy up what belonged to earlier ones, and say so."""
        entry = self._parts.committed.entry
        self._better_since = None
        self._parts.metrics.round.set(entry.round)
        board = self._parts.swarm.gossip.board
        board.age()
        board.keep(
            lambda _signed, statement: (
                not isinstance(statement, Ready | Roster) or statement.round > entry.round
            )
        )
        self._parts.swarm.announce()
