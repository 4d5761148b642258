"""Heads: which one wins, and how this node gets there.

Announcements say which heads the others hold; commit records prove it (`head_prover`), and only
what is proven counts here. `better` names the heaviest head that wins over ours; `try_take_over`
makes it ours. `Settlement.settle` then sees to what the rounds on both ways took of our work.

A proven head may still lead nowhere: its blocks are gone with those who had them, or its signers
signed a state that does not follow. A head that could not be reached is left alone for a while, and
so is all that follows from the same round, if newer ones fail as well.
"""

from __future__ import annotations

import math

import structlog
import trio

from gossamer.node.peers.chain_sync import BehindError, ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.decisions import BetterHead, Decision, is_overtaken
from gossamer.node.storage.committed import CommittedState
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.errors import RemoteProtocolError, UnprovenError
from gossamer.protocol.ids import Digest, short
from gossamer.protocol.policy.membership import NEAR_ROUNDS, TRAILING_ROUNDS
from gossamer.protocol.state.chain import is_heavier
from gossamer.protocol.wire.statements import Ready, Roster

AVOID_SECONDS = 20.0
"""A head that could not be reached is left alone this long."""

BRANCH_FAILURES = 4
"""Heads in a row that could not be reached by way of one round, before all by that way are left
alone. Where rounds are quick the first ones may have gone before they were fetched."""

BRANCH_AVOID_SECONDS_MAX = 300.0
"""From `AVOID_SECONDS` on, twice as long at each further failure."""

SIDE_ROUNDS_MAX = 4096
"""Committed rounds that are kept although they are not on the way to a head that anybody has: a
split swarm makes a few hundred, and each costs some 2 KiB of disk and memory."""

log = structlog.get_logger("node")


class Heads:
    """What is known of heads."""

    def __init__(
        self, committed: CommittedState, chain_sync: ChainSync, swarm: Swarm, metrics: Metrics
    ) -> None:
        self._committed = committed
        self._chain_sync = chain_sync
        self._swarm = swarm
        self._metrics = metrics
        self._avoided: dict[Digest, float] = {}
        self._branch_failures: dict[Digest, int] = {}
        self._better_since: float | None = None

    @property
    def mine(self) -> Digest:
        """The committed head of this node."""
        return self._committed.head

    def better(self) -> BetterHead | None:
        """The heaviest proven head that wins over ours; None if ours is the best."""
        now = trio.current_time()
        committed = self._committed
        chain, mine = committed.chain, committed.entry
        best: tuple[int, Digest] | None = None
        for head in chain.tips():
            tokens = chain.entry(head).tokens_total
            if (
                is_heavier(tokens, head, mine.tokens_total, mine.head)
                and (best is None or is_heavier(tokens, head, best[0], best[1]))
                and chain.is_whole(head)
                and head not in self._chain_sync.unfinished
                and not self._is_avoided(now, head)
            ):
                best = (tokens, head)
        if best is None:
            self._better_since = None
            return None
        if self._better_since is None:
            self._better_since = now
        return BetterHead(best[1], best[0], self._better_since)

    def _is_avoided(self, now: float, head: Digest) -> bool:
        return any(self._avoided.get(one, -math.inf) > now for one in (head, self._branch_of(head)))

    def _branch_of(self, head: Digest) -> Digest:
        """The first round on the way to a head that is not on the way to mine."""
        committed = self._committed
        return (committed.chain.only_in(head, committed.head) or [head])[-1]

    def is_by_way_of(self, ring_id: Digest | None, head: Digest) -> bool:
        """Whether the first round on the way to a head that is not on mine is this ring's."""
        chain = self._committed.chain
        return chain.header(self._branch_of(head)).ring_id == ring_id

    def is_on_mine(self, head: Digest) -> bool:
        """Whether a known head goes on from my own."""
        committed = self._committed
        return not committed.chain.only_in(committed.head, head)

    def overtaken(
        self, ring_id: Digest | None, attainable_tokens: int, *, is_at_work: bool
    ) -> Decision:
        """Whether a better head makes this node's present round not worth waiting for.

        Args:
            ring_id: the ring that this node follows; None without one.
            attainable_tokens: tokens of the chain if that ring commits with all present members.
            is_at_work: whether this node still passes chunks of that ring on.
        """
        better = self.better()
        if better is None:
            return Decision(False, "no better head is known")
        return is_overtaken(
            better,
            attainable_tokens,
            trio.current_time(),
            is_on_mine=self.is_on_mine(better.head),
            is_finishing=is_at_work and self.is_by_way_of(ring_id, better.head),
        )

    def is_near(self, head: Digest) -> bool:
        """Whether I am so few rounds behind a head that the others may wait for me."""
        committed = self._committed
        chain = committed.chain
        return committed.is_loaded and (
            head not in chain or committed.head in chain.ancestors(head, NEAR_ROUNDS)
        )

    def recent(self) -> list[Digest]:
        """My head and those before it, newest first, as far as `awaited` looks."""
        committed = self._committed
        return committed.chain.ancestors(committed.head, TRAILING_ROUNDS)

    async def try_take_over(self, head: Digest) -> bool:
        """Makes a head ours; False, and the head is avoided for a while, if that cannot be done.

        Raises:
            DiskError: our own disk does not take it. No other head would fare better.
        """
        try:
            await self._take_over(head)
        except (BehindError, RemoteProtocolError) as error:
            log.warning(
                "a heavier head could not be taken over", head=short(head), error=str(error)
            )
            self._avoid(head)
            return False
        self.note_new()
        entry = self._committed.entry
        log.info("at the swarm's head", round=entry.round, head=short(entry.head))
        return True

    async def fetch_ahead(self) -> None:
        """What taking over the better head will want comes while a round here is still ended."""
        better = self.better()
        if better is not None and self._committed.is_loaded:
            await self._chain_sync.fetch_ahead(better.head, self._swarm.sources)

    def _avoid(self, head: Digest) -> None:
        """Leaves a head alone; who says to be there does not help others there."""
        now = trio.current_time()
        branch = self._branch_of(head)
        failures = self._branch_failures.get(branch, 0) + 1
        self._avoided = {h: t for h, t in self._avoided.items() if t > now}
        self._avoided[head] = now + AVOID_SECONDS
        if failures >= BRANCH_FAILURES:
            doublings = min(failures - BRANCH_FAILURES, 10)
            seconds = min(AVOID_SECONDS * 2**doublings, BRANCH_AVOID_SECONDS_MAX)
            self._avoided[branch] = now + seconds
        if len(self._branch_failures) >= SIDE_ROUNDS_MAX:
            self._branch_failures.clear()
        self._branch_failures[branch] = failures
        swarm = self._swarm
        for peer, announce in swarm.living().items():
            if announce.head == head:
                swarm.offence(peer, UnprovenError(f"at head {short(head)}, to which nobody gets"))

    async def _take_over(self, head: Digest) -> None:
        committed = self._committed
        if committed.is_loaded and not committed.chain.is_heavier(head, committed.head):
            raise BehindError("it is lighter than mine by now")
        await self._chain_sync.follow(head, self._swarm.sources)

    def note_new(self) -> None:
        """The committed head has changed: tidy up what belonged to earlier ones, and say so."""
        entry = self._committed.entry
        self._better_since = None
        self._metrics.round.set(entry.round)
        statement_store = self._swarm.gossip.statement_store
        statement_store.age()
        statement_store.keep(
            lambda _signed, statement: (
                not isinstance(statement, Ready | Roster) or statement.round > entry.round
            )
        )
        self._branch_failures.clear()
        self._forget_side_rounds()
        self._swarm.forgive_accusers()
        self._swarm.announce()

    def _forget_side_rounds(self) -> None:
        chain, entry = self._committed.chain, self._committed.entry
        if len(chain) - entry.round - 1 > SIDE_ROUNDS_MAX:
            announced = {Digest(a.head) for a in self._swarm.living().values()}
            chain.forget_all_but([entry.head, *sorted(announced)])
