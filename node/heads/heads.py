"""Heads: which one wins, and how this node gets there.

Announcements say which heads the others hold. `prover` asks for the commit records on the way to
them, and `fetcher` gets the blocks of those that are proven and would win over the committed one,
and says which of them count. `better` names the heaviest of these, and `try_take_over` commits to
it. So a head without blocks, which costs its author nothing, stops no training.

`protocol/policy/heads/head_choice.py` has the rule: the members that worked with this node decide.

A head may still lead nowhere: its blocks may have left with the peers that held them, or its
signers may have signed a state that does not follow. A head that could not be reached is avoided
for a while, and so are all heads of signers whose heads fail again and again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.heads.allowed_heads import AllowedHeads
from gossamer.node.heads.avoided_heads import AvoidedHeads
from gossamer.node.heads.branches import Branches
from gossamer.node.heads.side_records import SideRecords
from gossamer.node.peers.chain.chain_records import BehindError
from gossamer.node.peers.chain.chain_sync import ChainSync, DamagedHereError
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress
from gossamer.protocol.errors import RemoteProtocolError, UnprovenError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.manifest import RoundConfig
from gossamer.protocol.policy.heads.head_choice import HeadChoice, HeadWeight
from gossamer.protocol.policy.membership import (
    NEAR_ROUNDS,
    NEAR_SECONDS,
    TRAILING_ROUNDS,
    near_rounds,
)
from gossamer.protocol.state.chain import Header
from gossamer.protocol.wire.statements import (
    AT_WORK,
    Announce,
    Signed,
    Vote,
    vote_key,
)

log = structlog.get_logger("node")


@dataclass(frozen=True)
class BetterHead:
    """A head that counts and wins over this node's committed head."""

    head: Digest
    weight: HeadWeight
    """Its weight where its chain parts from this node's."""
    since_seconds: float
    """Local time since which some head has been better than this node's."""


class Heads:
    """Knows which heads win, and takes them over.

    It has more than 7 parameters and 12 attributes: a choice of a head asks the chain, the members,
    the owner and the other peers, and remembers since when each head is known. It has more than 15
    public methods: the loop, the fetcher and the machines of a round each ask for something else.
    """

    def __init__(
        self,
        rules: RoundConfig,
        rounds: KnownRounds,
        choice: HeadChoice,
        committed: CommittedState,
        chain_sync: ChainSync,
        swarm: Swarm,
        metrics: Metrics,
        progress: Progress,
        allowed: AllowedHeads,
    ) -> None:
        """
        Args:
            rounds: those of the committed state's chain, as `choice` sees them.
            allowed: the heads at which this node may be.
        """
        self._gather_seconds = rules.gather_seconds
        self._committed = committed
        self._chain_sync = chain_sync
        self._swarm = swarm
        self._metrics = metrics
        self._progress = progress
        self.allowed = allowed
        self._rounds, self._choice = rounds, choice
        rounds.vote_of = self._vote_of
        self.branches = Branches(committed, rounds, swarm.me)
        self._counting: set[Digest] = set()
        """Proven heads that count: see `fetcher`."""
        self._seen_seconds: dict[Digest, float] = {}
        """Local time since which each of them is known."""
        self._avoided = AvoidedHeads(self._has_standing)
        self._better_since: float | None = None
        self.side_records = SideRecords(committed, choice.stakes_at, chain_sync.records, swarm)
        self._moved_seconds = deque[float](maxlen=TRAILING_ROUNDS)
        """Local times at which this node moved to its newest heads."""
        self._taking_seconds = math.inf
        """How long it took to take over the newest head that was taken over."""

    @property
    def mine(self) -> Digest:
        """The committed head of this node."""
        return self._committed.head

    def signers_of(self, head: Digest) -> frozenset[PeerId]:
        """The members that signed a known round."""
        return self._rounds.signers_of(head)

    def _vote_of(self, author: PeerId, ring_id: bytes) -> tuple[Signed, Vote] | None:
        store = self._swarm.gossip.statement_store
        signed, vote = store.get(vote_key(author, ring_id)) or (None, None)
        return (signed, vote) if signed is not None and isinstance(vote, Vote) else None

    def _note_signers(self) -> None:
        """Rounds may have got further signers."""
        if more := self._rounds.take_more_signers():
            self._choice.forget_signers(more)

    def better(self) -> BetterHead | None:
        """The heaviest head that counts and wins over the committed one; None if no head does."""
        now, chain, mine = trio.current_time(), self._committed.chain, self.mine
        allowed = self.allowed
        self._note_signers()
        if not allowed.own():
            self._counting |= allowed.rollbacks.parents()
        self._counting = {
            head for head in self._counting if head in chain and allowed.may_win(head)
        }
        self._seen_seconds = {
            head: self._seen_seconds.get(head, now) for head in sorted(self._counting)
        }
        heads = [*allowed.own(), *self._eligible(now)]
        if not heads or (best := self._choice.best(heads)) == mine:
            self._better_since = None
            return None
        if self._better_since is None:
            self._better_since = now
        fork = self._choice.fork_of(best, mine)
        return BetterHead(best, self._choice.weight(fork, best), self._better_since)

    def _eligible(self, now: float) -> list[Digest]:
        """The heads among which this node chooses, but its own."""
        return [
            head
            for head in sorted(self._counting)
            if not self._is_avoided(now, head) and self._may_follow(now, head)
        ]

    def attainable(self, better: BetterHead, weights: Mapping[PeerId, int]) -> HeadWeight:
        """The weight of the round on the committed head if these members commit it, each with the
        tokens of its work; see `HeadChoice.attainable`."""
        return self._choice.attainable(self.mine, better.head, weights)

    def wanted(self) -> list[Digest]:
        """The proven heads that win over the committed one and do not count yet, the heaviest
        first."""
        now, chain, mine = trio.current_time(), self._committed.chain, self.mine
        self._note_signers()
        whole = [head for head in chain.tips() if chain.is_whole(head)]
        return sorted(
            (
                head
                for head in {self._choice.anchor_of(head, mine) for head in whole}
                if head not in self._counting
                and self._is_best(now, head)
                and head not in self._chain_sync.records.unfinished
                and not self._is_avoided(now, head)
                and self._may_follow(now, head, was_time=True)
            ),
            key=self._weight,
        )

    def _is_best(self, now: float, head: Digest) -> bool:
        """Returns whether the best head is this one or descends from it."""
        if not self.allowed.may_win(head):
            return False
        best = self._choice.best([*self.allowed.own(), head, *self._eligible(now)])
        return self._choice.fork_of(best, head) == head

    def _weight(self, head: Digest) -> tuple[int, int, Digest]:
        weight = self._choice.weight(self._choice.fork_of(head, self.mine), head)
        return -weight.support, -weight.tokens_total, head

    def _may_follow(self, now: float, head: Digest, *, was_time: bool | None = None) -> bool:
        """Returns whether this node may follow a head that wins, see `HeadChoice.counts`."""
        if not self._committed.is_loaded or not self.allowed.own():
            return True
        mine, me = self.mine, self._swarm.me
        at_work = {
            peer
            for peer, announce in self._swarm.living().items()
            if announce.head == mine and announce.phase in AT_WORK
        }
        if self._progress.phase in AT_WORK:
            at_work.add(me)
        if was_time is None:
            since = self._swarm.ready_since(mine)
            if since is None:
                since = self._seen_seconds.get(head, now)
            was_time = now >= since + self._gather_seconds
        doubted = frozenset[PeerId]()
        if self.branches.is_from_my_ring(head):
            conduct = self._swarm.admission.partners.conduct
            doubted = conduct.doubted(self._committed.chain.entry(mine).round + 1)
        of_mine = self.branches.is_of_my_ring(head)
        return self._choice.counts(
            head, mine, at_work, was_time=was_time, is_of_my_ring=of_mine, doubted=doubted
        )

    def note_counting(self, head: Digest) -> None:
        """The blocks of a wanted head are here, or it counts without them."""
        self._counting.add(head)

    def counts_at_once(self, head: Digest) -> bool:
        """Returns whether a proven head counts before its blocks are here.

        A member that has stake has signed it, or most members of this node's own ring, or this
        node has no state that it could train.
        """
        if not self._committed.is_loaded or not self.allowed.own():
            return True
        if self.branches.is_of_my_ring(head):
            return True
        fork = self._choice.fork_of(head, self.mine)
        return self._choice.weight(fork, head).support > 0

    @property
    def stakes(self) -> Mapping[PeerId, int]:
        """Returns the stake of each peer that has one at this node's head, in tokens."""
        return self._choice.stakes_at(self.mine)

    @property
    def newest_credits(self) -> Mapping[PeerId, int]:
        """Returns what the newest round of this node's head took of each peer, in tokens."""
        return self._rounds.credits_of(self.mine)

    def _has_standing(self, peer: PeerId) -> bool:
        """Returns whether a peer has stake at this node's head."""
        return peer == self._swarm.me or peer in self.stakes

    def _is_avoided(self, now: float, head: Digest) -> bool:
        signers = self.signers_of(head)
        return self._avoided.is_avoided(now, head, signers, lambda: any(self._connected_at(head)))

    def _connected_at(self, head: Digest) -> tuple[set[PeerId], set[PeerId]]:
        """The connected peers that signed a head, and those that say that they are there."""
        sources, living = {*self._swarm.sources()}, self._swarm.living()
        announced = {peer for peer, announce in living.items() if announce.head == head}
        return sources & self.signers_of(head), sources & announced

    def is_on_disk(self, head: Digest) -> bool:
        """Returns whether this disk has a way to a known head; in a thread."""
        return self._chain_sync.needs_no_peer(head)

    def is_near(self, head: Digest) -> bool:
        """Returns whether this node is so few rounds behind a head, or catches up so quickly, that
        the others may wait for it."""
        committed = self._committed
        chain = committed.chain
        rounds = TRAILING_ROUNDS if self._taking_seconds <= NEAR_SECONDS else NEAR_ROUNDS
        return committed.is_loaded and (
            head not in chain or committed.head in chain.ancestors(head, rounds)
        )

    def is_lost(self, announce: Announce) -> bool:
        """Returns whether an announced head is on a branch that loses to the committed head.

        A head that is not proven here counts as one: a lie costs one gathering and no more.
        """
        head = Digest(announce.head)
        if not self._committed.chain.is_whole(head) or not self.allowed.may_stand(head):
            return True
        if self.allowed.is_beyond_end(head):
            return True
        return self._choice.best([self.mine, head]) == self.mine

    def near_rounds(self) -> int:
        """Returns how many rounds a peer may be behind and still be waited for."""
        return near_rounds(trio.current_time(), self._moved_seconds)

    async def try_take_over(self, head: Digest) -> bool:
        """Makes a head the committed one.

        Returns:
            False if it could not be reached; it is avoided for a while then.

        Raises:
            DiskError: this node's disk does not take it, and would take no other head either.

        Where it ends early, by a cancellation too, this node may be nearer to that head.
        """
        began, before, is_there = trio.current_time(), self._committed.head, False
        try:
            await self._take_over(head)
            is_there = True
        except (BehindError, RemoteProtocolError) as error:
            log.warning(
                "a heavier head could not be taken over", head=short(head), error=str(error)
            )
            self.avoid(head, error)
            return False
        finally:
            if not is_there and self._committed.head != before:
                self.note_new()
        self._taking_seconds = trio.current_time() - began
        self._avoided.reached(self.signers_of(head))
        self.note_new()
        entry = self._committed.entry
        log.info("at the swarm's head", round=entry.round, head=short(entry.head))
        return True

    def avoid(self, head: Digest, error: BehindError | RemoteProtocolError) -> None:
        """Avoids a head. A peer that announces it without helping others to it breaks the rules.

        Only peers that this node can ask for blocks are blamed, and each of them now and then
        (`avoided_heads.BLAME_SECONDS`). Nobody is blamed for the damage of this node's own disk, or
        where this node spares its own line. A peer behind a router may be known by its word alone
        for a while, until the two have crossed their routers.

        Args:
            error: what kept this node from the head.
        """
        self._counting.discard(head)
        now, swarm = trio.current_time(), self._swarm
        if isinstance(error, DamagedHereError) or swarm.spares_line():
            self._avoided.failed(now, head, ())
            return
        signers, holders = self._connected_at(head)
        self._avoided.failed(now, head, signers, was_asked=bool(signers | holders))
        for peer in sorted(holders):
            if not self._avoided.may_blame(now, peer):
                continue
            unproven = UnprovenError(f"at head {short(head)}, which cannot be reached")
            swarm.offence(peer, unproven)

    async def _take_over(self, head: Digest) -> None:
        committed = self._committed
        if committed.is_loaded and not self._is_best(trio.current_time(), head):
            raise BehindError("it does not win over the committed head any more")
        await self._chain_sync.follow(head, self._swarm.sources)

    def note_new(self, header: Header | None = None) -> None:
        """The committed head has changed: forgets what belonged to earlier heads, and announces.

        Args:
            header: of the new head, if this node was in the ring that committed it, and no member
                was out of that ring.
        """
        entry = self._committed.entry
        self._better_since = None
        self._moved_seconds.append(trio.current_time())
        self.branches.forget_rings()
        self._metrics.round.set(entry.round)
        self.side_records.forget(lambda head: self._is_avoided(trio.current_time(), head))
        self._swarm.begin_round(entry.round + 1)
        if header is None:
            self._swarm.announce()
        else:
            self._swarm.committed(header)
