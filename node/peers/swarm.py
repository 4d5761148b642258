"""What this node knows of the others, and what it tells them of itself.

Joins gossip, membership and connections: statements of peers come in here, announcements go out,
and a connection that breaks is noticed. A peer counts as living while it announces itself *and* is
connected to us: a round can only be done with peers that can be reached.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.interface.metrics import Metrics
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import Transport
from gossamer.node.peers.gossip import Gossip
from gossamer.protocol.chain import Commit, Header, open_commit
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, short
from gossamer.protocol.limits import ADDRESSES_MAX
from gossamer.protocol.membership import ANNOUNCE_SECONDS, Membership
from gossamer.protocol.messages import Announce, Capacity, Phase, Signed, Statement

WATCH_SECONDS = 0.1
"""How late a broken connection is noticed."""

log = structlog.get_logger("swarm")


@dataclass(frozen=True)
class Standing:
    """Where this node stands: the changing part of its announcement."""

    phase: Phase
    round: int
    head: Digest
    tokens_total: int
    checkpoint_round: int
    claims: tuple[int, ...]
    capacity: Capacity


class Swarm:
    """The other peers of the run."""

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        run_id: Digest,
        incarnation: int,
        allowed: frozenset[str] | None,
        *,
        standing: Callable[[], Standing],
        knows_head: Callable[[Digest], bool],
        on_statement: Callable[[Signed, Statement], None],
        on_commit: Callable[[Commit, Header], None],
        on_disconnect: Callable[[PeerId], None],
        on_members: Callable[[], None],
        metrics: Metrics,
        randomness: random.Random,
    ) -> None:
        """`allowed`: peer ids whose statements count; None for everybody's."""
        self._transport = transport
        self.me = identity.peer_id
        self._run_id = run_id
        self._incarnation = incarnation
        self._allowed = allowed
        self._standing = standing
        self._knows_head = knows_head
        self._on_statement = on_statement
        self._on_commit = on_commit
        self._on_disconnect = on_disconnect
        self._on_members = on_members
        self._metrics = metrics
        self._sequence = 0
        self._connected: set[PeerId] = set()
        self.membership = Membership(identity.peer_id)
        self.gossip = Gossip(
            transport,
            identity,
            run_id,
            on_statement=self._heard,
            on_commit=self._heard_commit,
            on_offence=self.offence,
            randomness=randomness,
        )

    async def run(self) -> None:
        """Announces, gossips and watches connections until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.gossip.run)
            nursery.start_soon(self._watch_connections)
            while True:
                self.announce()
                await trio.sleep(ANNOUNCE_SECONDS)

    def announce(self) -> None:
        """Tells everybody where this node stands now."""
        standing = self._standing()
        self._sequence += 1
        self.gossip.say(
            Announce(
                incarnation=self._incarnation,
                sequence=self._sequence,
                phase=standing.phase,
                round=standing.round,
                head=standing.head,
                tokens_total=standing.tokens_total,
                checkpoint_round=standing.checkpoint_round,
                claims=standing.claims,
                addresses=tuple(self._transport.addresses()[:ADDRESSES_MAX]),
                capacity=standing.capacity,
            )
        )

    # What is known

    def living(self) -> dict[PeerId, Announce]:
        """Living, connected others, sorted by peer id."""
        connected = set(self._transport.peers())
        living = self.membership.living(trio.current_time())
        return {peer: announce for peer, announce in living.items() if peer in connected}

    def expected(self, recent_heads: Collection[Digest]) -> list[PeerId]:
        """Others that a round waits for: those at work on its head or on one shortly before it.

        Who is a little behind has committed that round too or is about to, or is a newcomer that
        has almost caught up: waiting for it, once, is what lets it in.
        """
        return [
            peer
            for peer, announce in self.living().items()
            if announce.phase in ("training", "averaging") and announce.head in recent_heads
        ]

    def sources(self) -> list[PeerId]:
        """Whom to ask for blocks: everybody connected."""
        return self._transport.peers()

    def claims(self) -> dict[PeerId, Collection[int]]:
        """The shards that living others hold."""
        return {peer: announce.claims for peer, announce in self.living().items()}

    async def reach(self, peer: PeerId) -> None:
        """Connects to a member that we have no connection to yet.

        Raises:
            ConnectError: it cannot be reached by any address that it announced.
        """
        if peer in self._transport.peers():
            return
        announce = self.membership.known().get(peer)
        await self._transport.connect_any(peer, announce.addresses if announce else ())

    # Events

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """A peer broke the protocol: it is counted and said."""
        self._metrics.offences.add(error.reason)
        log.warning("a peer broke the protocol", peer=short(peer), error=str(error))

    def _heard(self, signed: Signed, statement: Statement) -> None:
        author = PeerId(signed.author)
        if self._allowed is not None and author not in self._allowed:
            return
        if isinstance(statement, Announce):
            if self.membership.announced(trio.current_time(), author, statement):
                self._on_members()
            return
        self._on_statement(signed, statement)

    def _heard_commit(self, author: PeerId, commit: Commit) -> None:
        if self._knows_head(digest_of(commit.header)):
            return
        header = open_commit(commit, self._run_id, verify)
        if self._allowed is not None and not self._allowed.issuperset(
            member.peer_id for member in header.members
        ):
            return
        self._on_commit(commit, header)

    async def _watch_connections(self) -> None:
        while True:
            connected = set(self._transport.peers())
            for peer in sorted(self._connected - connected):
                log.info("disconnected", peer=short(peer))
                self.membership.disconnected(peer)
                self._on_disconnect(peer)
            if connected - self._connected:
                self.announce()  # so that the new one knows us at once
            self._connected = connected
            await trio.sleep(WATCH_SECONDS)
