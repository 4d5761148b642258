"""Gets the blocks of the heads that would win, while the node goes on with its rounds.

A proven head is a claim that there is a heavier state. `HeadFetcher` asks for the blocks that lead
there. The signers of the head decide what that means for the node's own round:

- A head that members with stake signed counts at once, because a round that this node ended without
  them would be on a branch that loses.
- A head of others counts when its blocks are here, if it counts at all (`HeadChoice.counts`).

The round of a ring that is nearly finished here is not fetched. The averages that it lacks are on
their way, and the peers that have them would send all of them again, over lines that the ring
needs. If the ring takes too long, the node gives it up and fetches the round (`rounds.decisions`).

Fetches run side by side, so one that does not answer delays no other one. A fetch ends when the
node has reached the head in another way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.orders import Orders
from gossamer.node.heads.branches import RingAtWork
from gossamer.node.heads.heads import Heads
from gossamer.node.peers.chain.chain_records import BehindError
from gossamer.node.peers.chain.chain_sync import ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.protocol.ids import Digest, PeerId, short

LOOK_SECONDS = 1.0
"""Interval of the looks without news: a head may be avoided no longer."""

CLAIMS_MAX = 2
"""Heads that are fetched at a time, of peers that this node has worked with and of others: one that
does not answer delays no other one, and the line is not divided among many."""

log = structlog.get_logger("node")


@dataclass(eq=False)
class _Claim:
    """A head whose blocks are being fetched."""

    signers: frozenset[PeerId]
    counts_at_once: bool
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class HeadFetcher:
    """Fetches for one node."""

    def __init__(self, heads: Heads, chain_sync: ChainSync, swarm: Swarm, orders: Orders) -> None:
        """`orders` tells of heads that are proven, and is notified of those that count."""
        self._heads = heads
        self._chain_sync = chain_sync
        self._swarm = swarm
        self._orders = orders
        self._claims: dict[Digest, _Claim] = {}
        self.finishing_ring: Callable[[], RingAtWork | None] = lambda: None
        """Returns the ring that this node itself is finishing; None without one."""

    async def run(self) -> None:
        """Fetches until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                if not self._orders.spares_line:
                    self._look(nursery)
                await self._orders.wait_to_tick(LOOK_SECONDS)

    @property
    def is_at_work(self) -> bool:
        """Returns whether a head is being fetched, or is about to be."""
        return bool(self._claims) or bool(self._heads.wanted())

    def _look(self, nursery: trio.Nursery) -> None:
        """Begins fetches, at most one for each signer at a time, and ends those of no use."""
        for head, claim in self._claims.items():
            if self._heads.branches.is_reached(head):
                claim.scope.cancel()
        for head in self._heads.wanted():
            signers = self._heads.signers_of(head)
            counts_at_once = self._heads.counts_at_once(head)
            if counts_at_once:
                self._heads.note_counting(head)
                self._orders.notify()
                if self._heads.branches.is_by_way_of(self.finishing_ring(), head):
                    continue
            rivals = [c for c in self._claims.values() if c.counts_at_once == counts_at_once]
            if (
                head not in self._claims
                and len(rivals) < CLAIMS_MAX
                and not any(claim.signers & signers for claim in rivals)
            ):
                self._claims[head] = claim = _Claim(signers, counts_at_once)
                nursery.start_soon(self._fetch, head, claim)

    async def _fetch(self, head: Digest, claim: _Claim) -> None:
        try:
            with claim.scope:
                await self._chain_sync.fetch(head, self._swarm.sources)
            if claim.scope.cancelled_caught:
                return
        except BehindError as error:
            log.info("the blocks of a heavier head cannot be had", head=short(head), why=str(error))
            if not claim.counts_at_once:
                self._heads.avoid(head, error)
        except DiskError:
            self._heads.note_counting(head)  # taking it over meets the same error, and reports it
        else:
            self._heads.note_counting(head)
        finally:
            del self._claims[head]
        self._orders.notify()
