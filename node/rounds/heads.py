"""Heads: which one wins, and how this node gets there.

Announcements say which heads the others hold. Commit records prove it (`head_prover`), and only
proven heads count here. `better` names the heaviest head that wins over the committed one, and
`try_take_over` commits to it. `Settlement.settle` then accounts for the work that the rounds on
both branches took.

A proven head may still lead nowhere: its blocks may have left with the peers that held them, or its
signers may have signed a state that does not follow. A head that could not be reached is avoided
for a while. If newer heads on the same branch fail as well, the whole branch is avoided.
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
"""A head that could not be reached is avoided this long."""

BRANCH_FAILURES = 4
"""Heads of one branch in a row that could not be reached, before the whole branch is avoided. Where
rounds are quick, the blocks of the first ones may be gone before they are fetched."""

BRANCH_AVOID_SECONDS_MAX = 300.0
"""Longest time for which a branch is avoided. It begins with `AVOID_SECONDS` and doubles with each
failure."""

SIDE_ROUNDS_MAX = 4096
"""Upper bound on committed rounds that are kept although no known head descends from them. A split
swarm makes a few hundred, and each costs some 2 KiB of disk and memory."""

log = structlog.get_logger("node")


class Heads:
    """Knows which heads are proven, and takes them over."""

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
        """The heaviest proven head that wins over the committed one; None if no head does."""
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
        """The first round on the way to a head that is not an ancestor of the committed head."""
        committed = self._committed
        return (committed.chain.only_in(head, committed.head) or [head])[-1]

    def is_by_way_of(self, ring_id: Digest | None, head: Digest) -> bool:
        """Whether the branch of a head begins with the round that this ring commits."""
        chain = self._committed.chain
        return chain.header(self._branch_of(head)).ring_id == ring_id

    def is_on_mine(self, head: Digest) -> bool:
        """Whether a known head descends from the committed head."""
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
        """Whether this node is so few rounds behind a head that the others may wait for it."""
        committed = self._committed
        chain = committed.chain
        return committed.is_loaded and (
            head not in chain or committed.head in chain.ancestors(head, NEAR_ROUNDS)
        )

    def recent(self) -> list[Digest]:
        """The committed head and its ancestors, newest first, as far as `Swarm.awaited` looks."""
        committed = self._committed
        return committed.chain.ancestors(committed.head, TRAILING_ROUNDS)

    async def try_take_over(self, head: Digest) -> bool:
        """Makes a head the committed one.

        Returns:
            False if it could not be reached; it is avoided for a while then.

        Raises:
            DiskError: this node's disk does not take it, and would take no other head either.
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
        """Fetches what taking over the better head needs, while a round still ends at this node."""
        better = self.better()
        if better is not None and self._committed.is_loaded:
            await self._chain_sync.fetch_ahead(better.head, self._swarm.sources)

    def _avoid(self, head: Digest) -> None:
        """Avoids a head. A peer that announces it without helping others to it breaks the rules."""
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
                error = UnprovenError(f"at head {short(head)}, which cannot be reached")
                swarm.offence(peer, error)

    async def _take_over(self, head: Digest) -> None:
        committed = self._committed
        if committed.is_loaded and not committed.chain.is_heavier(head, committed.head):
            raise BehindError("it is lighter than the committed head by now")
        await self._chain_sync.follow(head, self._swarm.sources)

    def note_new(self) -> None:
        """The committed head has changed: forgets what belonged to earlier heads, and announces."""
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
        self._swarm.admission.forgive_accusers()
        self._swarm.announce()

    def _forget_side_rounds(self) -> None:
        chain, entry = self._committed.chain, self._committed.entry
        if len(chain) - entry.round - 1 > SIDE_ROUNDS_MAX:
            announced = {Digest(a.head) for a in self._swarm.living().values()}
            chain.forget_all_but([entry.head, *sorted(announced)])
