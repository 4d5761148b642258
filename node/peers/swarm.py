"""The other peers of the run: what this node knows of them and tells them of itself.

`Swarm` joins gossip, membership and connections (`connection_watch`). Statements of peers come in
here, and announcements go out. A peer counts as living while it gives signs of life *and*
is connected to this node, because a round can only be done with peers that can be reached.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

import structlog
import trio

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.rate_limit import RateLimit
from gossamer.node.base.ticks import sleep_to_tick
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport
from gossamer.node.peers.admission import Admission
from gossamer.node.peers.announcer import Announcer
from gossamer.node.peers.connection_watch import ConnectionWatch
from gossamer.node.peers.statements.equivocations import Equivocations
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.peers.statements.listeners import SwarmListener, VerdictListener
from gossamer.node.storage.incarnation import Incarnation
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, short
from gossamer.protocol.policy.membership import (
    ANNOUNCE_SECONDS,
    Awaited,
    Membership,
    awaited,
    heralds,
)
from gossamer.protocol.rounds.ring_order import encode_links
from gossamer.protocol.state.chain import Commit, Header, credits_of
from gossamer.protocol.wire.audit_messages import AnyVerdict
from gossamer.protocol.wire.statements import (
    Announce,
    Equivocation,
    Ready,
    Roster,
    Signed,
    Statement,
)

FUTURE_ROUNDS = 64
"""Statements on rounds that are further ahead are forgotten. A node that is so far behind gets them
again when it has caught up, and one that invents rounds keeps no room with them."""

READY_HEADS_MAX = 64
"""Heads for which the time of the first `Ready` is remembered. A peer can make up heads; then the
time since a head was seen counts instead."""

log = structlog.get_logger("swarm")


class Swarm:
    """The other peers of the run.

    It has more than 15 public methods and 12 attributes: rounds, data, heads, gossip and the status
    page each ask it their questions about the other peers.
    """

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        membership: Membership,
        admission: Admission,
        incarnation: Incarnation,
        randomness: random.Random,
        awake: AwakeClock,
    ) -> None:
        """
        Args:
            membership: empty; the announcements of the others go into it.
            awake: the silence of others is measured with it, so that no peer is held to be silent
                for the time in which this process did not run.
        """
        self._transport = transport
        self.me = identity.peer_id
        self.membership = membership
        self.admission = admission
        self._awake = awake
        self._listener: SwarmListener | None = None
        self._together: tuple[Digest, frozenset[PeerId]] | None = None
        """The newest head that a ring of this node committed as a whole, and the ring's members."""
        self._ready_since: dict[Digest, float] = {}
        """By head; the oldest first."""
        self.spares_line: Callable[[], bool] = lambda: False
        """Returns whether this node carries no new connections of others: its line is metered."""
        self.gossip = Gossip(transport, identity, admission.run_id, self, randomness)
        admission.has_standing = lambda peer: self.gossip.statement_store.has_standing(peer)
        admission.is_stored = self.gossip.statement_store.has
        self.equivocations = Equivocations(
            identity.peer_id,
            admission.run_id,
            admission.offences,
            lambda peer: peer in transport.peers() or membership.is_known(peer),
            self.gossip.say,
            self.gossip.statement_store,
        )
        self._announcer = Announcer(transport, self.gossip, incarnation)
        self._connections = ConnectionWatch(
            transport, membership, admission.partners.conduct, self._announcer, awake,
            lambda: self._told,
        )  # fmt: skip
        self.verdicts: VerdictListener | None = None
        """None in a run without audits."""

    def start(self, listener: SwarmListener, standing: Callable[[], Announce]) -> None:
        """Begins to listen to gossip. Call once, before `run` and before the first announcement.

        Args:
            standing: returns what this node says of itself now, see `Announcer.start`.
        """
        self._listener = listener
        self._transport.on_peers_changed(self._connections.changed)
        self._announcer.start(standing)
        self.gossip.start()

    async def run(self) -> None:
        """Announces, gossips and watches connections until cancelled, after `start`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.gossip.run)
            nursery.start_soon(self._connections.run)
            self.announce()
            while True:
                await sleep_to_tick(ANNOUNCE_SECONDS)
                self._announcer.renew(is_apart=self.is_apart())

    @property
    def _told(self) -> SwarmListener:
        """The listener. Nothing is heard before `start`."""
        assert self._listener is not None
        return self._listener

    # This node

    @property
    def incarnation(self) -> int:
        """The number of this life."""
        return self._announcer.incarnation.number

    def new_sequence(self) -> int:
        """Returns a sequence number above all numbers that this life has used."""
        return self._announcer.new_sequence()

    def announce(self) -> None:
        """Announces this node's standing to all peers, see `Announcer.announce`."""
        self._announcer.announce()
        self._connections.wake()

    def announce_soon(self) -> None:
        """The same within `connection_watch.WATCH_SECONDS`, together with other news."""
        self._announcer.announce_soon()
        self._connections.wake()

    def committed(self, header: Header) -> None:
        """A round is committed in whose ring this node was, and no member was out of it. They know
        that of each other, so only the heralds announce the new head."""
        credits = credits_of(header)
        self._together = header.digest, frozenset(credits) - {self.me}
        self.membership.committed(credits, header.digest, header.round, header.tokens_total)
        if self.me in heralds(header.digest, credits):
            self.announce()

    def begin_round(self, round_number: int) -> None:
        """Rounds of this number are next: forgets what was said of earlier ones."""
        store = self.gossip.statement_store
        store.age()
        store.keep(lambda _signed, statement: self._is_kept(statement, round_number))
        self.admission.partners.begin_round(round_number)

    def _is_kept(self, statement: Statement, round_number: int) -> bool:
        """Returns whether a statement matters for this round, or for later ones."""
        if isinstance(statement, Equivocation):
            return self.equivocations.is_kept(statement)
        if isinstance(statement, AnyVerdict):
            return self.verdicts is not None and self.verdicts.is_kept(statement)
        if isinstance(statement, Ready | Roster):
            return round_number <= statement.round < round_number + FUTURE_ROUNDS
        return True

    # The others

    def living(self) -> dict[PeerId, Announce]:
        """Living, connected others, sorted by peer id."""
        connected = set(self._transport.peers())
        living = self.living_anywhere()
        return {peer: announce for peer, announce in living.items() if peer in connected}

    def unheard(self) -> list[PeerId]:
        """Connected peers that have not announced themselves in this run (yet)."""
        known = self.membership.known()
        return [peer for peer in self._transport.peers() if peer not in known]

    def living_anywhere(self) -> dict[PeerId, Announce]:
        """Living others, connected to this node or not, sorted by peer id."""
        return self.membership.living(self._awake.awake_seconds())

    def awaited(
        self,
        chain: Sequence[Digest],
        round_number: int,
        is_lost: Callable[[Announce], bool],
        near_rounds: int,
    ) -> Awaited:
        """Others that a round waits for, see `membership.awaited`.

        These are connected to this node, or were in the ring that led here: members behind routers
        are in one ring before all of them are connected to each other, or have heard each other.
        """
        head, together = self._together or (None, frozenset[PeerId]())
        together = together if chain[:1] == [head] else frozenset()
        connected = {*self._transport.peers()}
        living = {
            peer: said
            for peer, said in self.living_anywhere().items()
            if (peer in connected or peer in together) and self._may_be_awaited(peer)
        }
        has_standing = self.gossip.statement_store.has_standing
        found = awaited(living, chain, round_number, is_lost, near_rounds, has_standing)
        unheard = {peer for peer in together if not self.membership.is_known(peer)}
        at_work = sorted({*found.at_work, *filter(self._may_be_awaited, unheard)})
        return found._replace(at_work=at_work)

    def _may_be_awaited(self, peer: PeerId) -> bool:
        partners = self.admission.partners
        return not partners.is_accuser(peer) and not partners.sits_out(peer)

    def sources(self) -> list[PeerId]:
        """Peers that can be asked for blocks: the connected ones, but for those behind a relay. The
        relay would carry each block twice, and has most blocks itself."""
        linked, relayed = self._linked_and_relayed()
        return linked or relayed or self._transport.peers()

    def _linked_and_relayed(self) -> tuple[list[PeerId], list[PeerId]]:
        """Peers that this node is connected to, by a path of their own, and through a relay that
        carries what a ring sends."""
        linked: list[PeerId] = []
        relayed: list[PeerId] = []
        for peer in self._transport.peers():
            path = self._transport.path(peer)
            if path is not None and not path.introduced:
                (relayed if path.kind == "relayed" else linked).append(peer)
        return linked, relayed

    def is_connected(self, peer: PeerId) -> bool:
        """Returns whether this node has a connection to a peer."""
        return peer in self._transport.peers()

    def neighbours(self) -> tuple[list[PeerId], list[PeerId]]:
        """Peers beside which this node can be in a ring: well, and where no order does without.

        The latter are behind a relay, or had trouble with this node in a ring lately.
        """
        linked, relayed = self._linked_and_relayed()
        avoided = {*filter(self.admission.partners.is_avoided, linked)}
        return [peer for peer in linked if peer not in avoided], [*relayed, *sorted(avoided)]

    def links(self) -> bytes:
        """The peers beside which this node can be in a ring, as its `Ready` names them; empty if
        these are all peers that it knows."""
        good, makeshift = self.neighbours()
        if self.living_anywhere().keys() <= {*good}:
            return b""
        return encode_links(good, makeshift)

    def claims(self) -> dict[PeerId, Collection[int]]:
        """The partitions of data that living others hold.

        A peer without a connection to this node counts if it has standing: a newcomer hears of most
        members before it is connected to them. Others without one may be invented.
        """
        connected = {*self._transport.peers()}
        has_standing = self.gossip.statement_store.has_standing
        return {
            peer: claims
            for peer, claims in self.claims_heard_of().items()
            if peer in connected or has_standing(peer)
        }

    def claims_heard_of(self) -> dict[PeerId, Collection[int]]:
        """The partitions that all living others say they hold, those too that may be invented. A
        peer that trains no more holds none."""
        return {
            peer: announce.claims
            for peer, announce in self.living_anywhere().items()
            if announce.phase not in ("failed", "finished")
        }

    async def reach(self, peer: PeerId) -> None:
        """Connects to a member, if there is no connection yet.

        Raises:
            ConnectError: it cannot be reached by any address that it announced.
        """
        if self.is_connected(peer):
            return
        announce = self.membership.known().get(peer)
        await self._transport.connect_any(peer, announce.addresses if announce else ())

    def relay(self, rate: RateLimit, *, introduces: bool) -> None:
        """Carries connections between members of the run that cannot reach each other; see
        `Transport.relay_for`."""
        self._transport.relay_for(self._why_not_relayed, rate, introduces=introduces)

    def _why_not_relayed(self, *ends: PeerId) -> str:
        """Says why this node does not carry a circuit; empty for members of the run."""
        if self.spares_line():
            return "this peer's line is metered"
        known = self.membership.known()
        strangers = [peer for peer in ends if peer not in known or not self.is_welcome(peer)]
        return f"{short(strangers[0])} is not known as a member of the run" if strangers else ""

    @property
    def num_banned(self) -> int:
        """Number of peers that this node has banned now."""
        return self.admission.offences.num_banned()

    # Called by gossip, see `GossipListener`

    def is_welcome(self, author: PeerId) -> bool:
        return self.admission.entrance.admits(author)

    def admits(self, author: PeerId, statement: Statement) -> bool:
        if isinstance(statement, Equivocation):  # any peer may carry it
            return self.equivocations.admits(statement)
        if isinstance(statement, AnyVerdict):
            return (
                self.verdicts is not None
                and not self.admission.offences.is_banned(author)
                and self.verdicts.admits(author, statement)
            )
        return self.admission.admits(author, statement)

    def verified(self, signed: Signed, statement: Statement) -> None:
        self.equivocations.heard(signed, statement)
        if isinstance(statement, AnyVerdict) and self.verdicts is not None:
            self.verdicts.heard(PeerId(signed.author), statement)

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """Counts and logs that a peer broke the protocol. Repeated offences lead to a ban."""
        self.admission.offences.note(peer, error)

    def is_apart(self) -> bool:
        return not self.living_anywhere().keys() <= {*self._transport.peers()}

    def is_member(self, peer: PeerId) -> bool:
        return self.membership.is_living(self._awake.awake_seconds(), peer)

    def heard_own(self, announce: Announce) -> None:
        self._announcer.heard_own(announce)

    def heard_statement(self, signed: Signed, statement: Statement) -> bool:
        author = PeerId(signed.author)
        if isinstance(statement, Announce):
            now = self._awake.awake_seconds()
            is_new = self.membership.announced(now, author, statement, self._transport.peers())
            if is_new:
                self._told.members_changed()
            self.equivocations.met(author)
            return is_new
        if isinstance(statement, Equivocation | AnyVerdict):
            return True
        if isinstance(statement, Ready):
            self._note_ready(Digest(statement.head))
        self._told.heard(signed, statement)
        return True

    def _note_ready(self, head: Digest) -> None:
        if head not in self._ready_since:
            self._ready_since[head] = trio.current_time()
            if len(self._ready_since) > READY_HEADS_MAX:
                del self._ready_since[next(iter(self._ready_since))]

    def ready_since(self, head: Digest) -> float | None:
        """Local time since which some other peer has been ready for the round after a head; None:
        no other peer was."""
        return self._ready_since.get(head)

    def heard_commit(self, commit: Commit) -> bool:
        if self.admission.is_known(commit):
            return False
        header = self.admission.open_commit(commit)
        log.debug("commit", round=header.round, head=short(digest_of(commit.header)))
        self._told.heard_commit(commit, header)
        return True
