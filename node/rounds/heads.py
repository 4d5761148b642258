"""Heads: which one wins, and how this node gets there.

Announcements say which heads the others hold. An announcement is a claim, and a reason to ask its
author for the commit records on the way to that head (`HeadProver`, while the node goes on with its
rounds). So a peer that announces a head which does not exist, or with a wrong weight, delays only
itself. Its failure to prove a head is an offence of little weight, because it may have lost its
disk since; a wrong weight is an offence of much weight.

Only proven heads count in `Heads`. `better` names the heaviest head that wins over the committed
one, and `try_take_over` commits to it. `Settlement.settle` then accounts for the work that the
rounds on both branches took.

A proven head may still lead nowhere: its blocks may have left with the peers that held them, or its
signers may have signed a state that does not follow. A head that could not be reached is avoided
for a while. If newer heads on the same branch fail as well, the whole branch is avoided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.base.orders import Orders
from gossamer.node.peers.chain_sync import BehindError, ChainSync, UnknownHeadError
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.decisions import BetterHead, Decision, is_overtaken
from gossamer.node.storage.committed import CommittedState
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.errors import ImplausibleError, RemoteProtocolError, UnprovenError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.policy.membership import NEAR_ROUNDS, TRAILING_ROUNDS
from gossamer.protocol.state.chain import is_heavier
from gossamer.protocol.wire.statements import Announce, Ready, Roster

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

LOOK_SECONDS = 1.0
"""Interval of the looks without a new announcement: a peer may be due to be asked again."""

ASKED_MAX = 8
"""Peers that are asked at a time: enough that a few silent ones do not delay an honest one."""

HEDGE_SECONDS = 3.0
"""A second holder of a head is asked if the first one takes longer than this."""

RETRY_SECONDS_MIN = 2.0
RETRY_SECONDS_MAX = 60.0
"""The pause before a peer that could not prove its head is asked again; it doubles each time."""

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
        """Returns whether the branch of a head begins with the round that this ring commits."""
        chain = self._committed.chain
        return chain.header(self._branch_of(head)).ring_id == ring_id

    def is_on_mine(self, head: Digest) -> bool:
        """Returns whether a known head descends from the committed head."""
        committed = self._committed
        return not committed.chain.only_in(committed.head, head)

    def overtaken(
        self, ring_id: Digest | None, attainable_tokens: int, *, is_at_work: bool
    ) -> Decision:
        """Returns whether a better head makes this node's present round not worth waiting for.

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
        """Returns whether this node is so few rounds behind a head that the others may wait for
        it."""
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


@dataclass
class _Holder:
    """A peer that is or was asked."""

    head: Digest
    """The newest head that it was asked for."""
    asked_seconds: float
    is_asked: bool = True
    failures: int = 0
    retry_seconds: float = 0.0


class HeadProver:
    """Proves announced heads that would win over the committed one."""

    def __init__(
        self, committed: CommittedState, chain_sync: ChainSync, swarm: Swarm, orders: Orders
    ) -> None:
        """`orders` is notified of each head that is proven."""
        self._committed = committed
        self._chain_sync = chain_sync
        self._swarm = swarm
        self._orders = orders
        self._holders: dict[PeerId, _Holder] = {}
        self._news = trio.Event()

    def wake(self) -> None:
        """There is a new announcement."""
        self._news.set()

    async def run(self) -> None:
        """Asks until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._news = trio.Event()
                self._look(nursery)
                with trio.move_on_after(LOOK_SECONDS):
                    await self._news.wait()

    @property
    def has_open_questions(self) -> bool:
        """Returns whether a peer announces a better head and was not asked yet, or did not answer
        yet."""
        wanted = self._wanted()
        return any(
            peer not in self._holders or self._holders[peer].is_asked for peer in sorted(wanted)
        )

    def _wanted(self) -> dict[PeerId, Announce]:
        """Living peers whose announced head would win over the committed one and is not proven."""
        mine, chain = self._committed.entry, self._committed.chain
        return {
            peer: announce
            for peer, announce in self._swarm.living().items()
            if is_heavier(announce.tokens_total, announce.head, mine.tokens_total, mine.head)
            and not chain.is_whole(Digest(announce.head))
        }

    def _look(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        wanted = self._wanted()
        for peer in [p for p, holder in self._holders.items() if not holder.is_asked]:
            if peer not in wanted and now > self._holders[peer].retry_seconds:
                del self._holders[peer]
        num_asked = sum(holder.is_asked for holder in self._holders.values())
        for peer in sorted(wanted, key=self._failures_of):
            if num_asked >= ASKED_MAX:
                return
            head = Digest(wanted[peer].head)
            if self._may_ask(now, peer, head):
                num_asked += 1
                failures = self._failures_of(peer)[0]
                holder = self._holders[peer] = _Holder(head, now, failures=failures)
                nursery.start_soon(self._ask, peer, holder, wanted[peer].tokens_total)

    def _failures_of(self, peer: PeerId) -> tuple[int, PeerId]:
        holder = self._holders.get(peer)
        return (0 if holder is None else holder.failures, peer)

    def _may_ask(self, now: float, peer: PeerId, head: Digest) -> bool:
        holder = self._holders.get(peer)
        if holder is not None and (holder.is_asked or now < holder.retry_seconds):
            return False
        return not any(
            other.is_asked and other.head == head and now < other.asked_seconds + HEDGE_SECONDS
            for other in self._holders.values()
        )

    async def _ask(self, peer: PeerId, holder: _Holder, claimed_tokens: int) -> None:
        chain, swarm = self._committed.chain, self._swarm
        try:
            await self._chain_sync.learn(holder.head, peer)
            if chain.entry(holder.head).tokens_total != claimed_tokens:
                raise ImplausibleError("a head announced with tokens that are not in its chain")
        except UnknownHeadError as error:
            self._note_failure(holder, str(error))
            swarm.offence(peer, UnprovenError(str(error)))
        except BehindError as error:
            self._note_failure(holder, str(error))
        except RemoteProtocolError as error:
            self._note_failure(holder, str(error))
            swarm.offence(peer, error)
        else:
            holder.failures = 0
            self._orders.notify()
        finally:
            holder.is_asked = False

    @staticmethod
    def _note_failure(holder: _Holder, problem: str) -> None:
        doublings = min(holder.failures, 10)
        seconds = min(RETRY_SECONDS_MIN * 2**doublings, RETRY_SECONDS_MAX)
        holder.failures += 1
        holder.retry_seconds = trio.current_time() + seconds
        log.info("an announced head is not proven", head=short(holder.head), problem=problem)
