"""What this node knows of the others, and what it tells them of itself.

Joins gossip, membership and connections: statements of peers come in here, announcements go out,
and a connection that breaks is noticed. A peer counts as living while it announces itself *and* is
connected to us: a round can only be done with peers that can be reached.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
import trio

from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import Transport
from gossamer.node.peers.gossip import Gossip
from gossamer.node.peers.offences import Offences
from gossamer.node.storage.incarnation import Incarnation
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, short
from gossamer.protocol.limits import ADDRESSES_MAX
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.membership import ANNOUNCE_SECONDS, Awaited, Membership, awaited
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.policy.throttle import Rate, Throttle
from gossamer.protocol.state.chain import Commit, Header, open_commit
from gossamer.protocol.wire.statements import (
    Announce,
    Capacity,
    Phase,
    RingStatement,
    Roster,
    Signed,
    Statement,
)

WATCH_SECONDS = 0.1
"""How late a broken connection is noticed."""

FAR_MAX = 8
"""Peers that are not connected here and may be in a ring with this one, in a small swarm."""

FAR_HEADS_MAX = 4

ANNOUNCE_RATE = Rate(per_second=10, burst=200)
"""Half of what others take of one author (`gossip_gate.AUTHOR_RATE`): the other half is left for
the statements of a round. A round has three announcements, and one for each shard that is claimed
or finished."""

OWN_SECONDS = 60.0
"""A higher number of this node's own life is answered at once, with a warning, this often. Two
nodes of one identity would otherwise answer each other without end."""

GREET_SECONDS = 0.5
"""New connections are greeted with an announcement at most this often: everybody hears it, and a
peer that comes and goes could make us repeat it without end."""

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


class SwarmListener(Protocol):
    """The part of the node that takes part in rounds, as the swarm sees it."""

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A peer made a statement about some round."""

    def heard_commit(self, commit: Commit, header: Header) -> None:
        """A commit record came whose votes are checked, of a head that is not known here."""

    def disconnected(self, peer: PeerId) -> None:
        """The connection to a peer broke."""

    def members_changed(self) -> None:
        """An announcement changed what is known of the members."""


class KnownHeads(Protocol):
    """The chain, as the swarm sees it."""

    def __contains__(self, head: bytes, /) -> bool:
        """Whether the commit record of a head is known here."""


class Swarm:
    """The other peers of the run."""

    def __init__(
        self,
        transport: Transport,
        identity: Identity,
        manifest: Manifest,
        incarnation: Incarnation,
        known_heads: KnownHeads,
        offences: Offences,
        randomness: random.Random,
        *,
        awake_seconds: Callable[[], float] = trio.current_time,
    ) -> None:
        """
        Args:
            known_heads: the chain; commit records of a head in it are not heard again.
            awake_seconds: a clock that stops while this process does not run, so that a peer is
                not held to be silent for that time.
        """
        self._transport = transport
        self.me = identity.peer_id
        self._run_id = manifest.run_id
        self._incarnation = incarnation
        self._allowed = frozenset(manifest.allowed) if manifest.admission == "allow" else None
        self._bounds = WorkBounds(manifest)
        self._known_heads = known_heads
        self._listener: SwarmListener | None = None
        self._standing: Callable[[], Standing] | None = None
        self._offences = offences
        self._awake_seconds = awake_seconds
        self._sequence = 0
        self._connected: set[PeerId] = set()
        self._greeted_seconds = float("-inf")
        self._own_seconds = float("-inf")
        """When a higher number of this node's own life was last answered."""
        self._announcements = Throttle(ANNOUNCE_RATE)
        self._has_news = False
        """Whether an announcement waits for `ANNOUNCE_RATE`."""
        self._accusers: set[PeerId] = set()
        """Who put this node out of a ring on the present head."""
        self._far_ready: dict[bytes, set[PeerId]] = {}
        """By head: who is ready for it and was not connected when that was heard."""
        self.membership = Membership(identity.peer_id)
        self.gossip = Gossip(
            transport,
            identity,
            self._run_id,
            on_statement=self._heard,
            on_commit=self._heard_commit,
            on_offence=self.offence,
            randomness=randomness,
            on_own=self._heard_own,
            is_welcome=self.is_welcome,
            admits=self.admits,
        )

    def start(self, listener: SwarmListener, standing: Callable[[], Standing]) -> None:
        """Begins to listen to gossip. Call once, before `run` and before the first announcement.

        Args:
            standing: the present changing part of this node's announcement.
        """
        self._listener = listener
        self._standing = standing
        self.gossip.start()

    async def run(self) -> None:
        """Announces, gossips and watches connections until cancelled, after `start`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.gossip.run)
            nursery.start_soon(self._watch_connections)
            while True:
                self.announce()
                await trio.sleep(ANNOUNCE_SECONDS)

    @property
    def _told(self) -> SwarmListener:
        """The listener. Nothing is heard before `start`."""
        assert self._listener is not None
        return self._listener

    @property
    def incarnation(self) -> int:
        """Of this life."""
        return self._incarnation.number

    def new_sequence(self) -> int:
        """A higher one than all that this life has used."""
        self._sequence += 1
        return self._sequence

    def announce(self) -> None:
        """Tells all peers where this node stands: now, or as soon as `ANNOUNCE_RATE` allows it."""
        self._has_news = True
        self._announce_news()

    def _announce_news(self) -> None:
        if not self._has_news or not self._announcements.try_take(trio.current_time()):
            return
        self._has_news = False
        assert self._standing is not None
        standing = self._standing()
        self.gossip.say(
            Announce(
                incarnation=self.incarnation,
                sequence=self.new_sequence(),
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
        living = self.living_anywhere()
        return {peer: announce for peer, announce in living.items() if peer in connected}

    def living_anywhere(self) -> dict[PeerId, Announce]:
        """Living others, connected to us or not, sorted by peer id."""
        return self.membership.living(self._awake_seconds())

    def awaited(self, chain: Sequence[Digest], round_number: int, tokens_total: int) -> Awaited:
        """Others that a round waits for, see `membership.awaited`."""
        living = {p: said for p, said in self.living().items() if p not in self._accusers}
        return awaited(living, chain, round_number, tokens_total)

    def sources(self) -> list[PeerId]:
        """Whom to ask for blocks: everybody connected."""
        return self._transport.peers()

    def claims(self) -> dict[PeerId, Collection[int]]:
        """The shards that living others hold; of those whose trainer failed they are free."""
        return {
            peer: announce.claims
            for peer, announce in self.living().items()
            if announce.phase != "failed"
        }

    async def reach(self, peer: PeerId) -> None:
        """Connects to a member that we have no connection to yet.

        Raises:
            ConnectError: it cannot be reached by any address that it announced.
        """
        if peer in self._transport.peers():
            return
        announce = self.membership.known().get(peer)
        await self._transport.connect_any(peer, announce.addresses if announce else ())

    @property
    def num_banned(self) -> int:
        """Peers that nobody here talks to now."""
        return self._offences.num_banned()

    # Who may say what

    def is_welcome(self, author: PeerId) -> bool:
        """Whether the run admits a peer at all."""
        return self._allowed is None or author in self._allowed

    def admits(self, author: PeerId, statement: Statement) -> bool:
        """Whether a statement of a welcome author is taken now; what is not may come again.

        - Of a banned peer only what it says of rings that it is in counts: the others hear it too,
          and a ring needs one view of who is out of it.
        - Who has not announced itself has nothing else to say. So the number of authors is bounded.
        - Of peers that are not connected here only a few count as ready (`_far_max`), and a ring
          with more of them is none: enough for newcomers that are still about to connect to
          everybody. Else somebody could fill every ring with identities that it invented.

        Raises:
            RemoteProtocolError: nobody may say this.
        """
        if isinstance(statement, RingStatement):
            return author in self._transport.peers() or self.membership.is_known(author)
        if self._offences.is_banned(author):
            return False
        if isinstance(statement, Announce):
            return True
        if isinstance(statement, Roster):
            return self.admits_ring(statement)
        self._bounds.check_statement(statement, self._run_id)
        return author in self._transport.peers() or self._is_among_few(author, statement.head)

    def admits_ring(self, roster: Roster) -> bool:
        """Likewise for a roster, whoever made it: that a ring member follows it is good enough.

        Raises:
            ImplausibleError: a member claims what it cannot have done.
        """
        self._bounds.check_statement(roster, self._run_id)
        members = {PeerId(member.author) for member in roster.members}
        far = members - {*self._transport.peers(), self.me}
        if members & self._accusers or len(far) > self._far_max:
            return False
        return all(map(self.is_welcome, members))

    @property
    def _far_max(self) -> int:
        return max(FAR_MAX, len(self._transport.peers()))

    def _is_among_few(self, author: PeerId, head: bytes) -> bool:
        """Whether a peer that is not connected is one of the few that may be ready for a head."""
        if head not in self._far_ready and len(self._far_ready) >= FAR_HEADS_MAX:
            del self._far_ready[next(iter(self._far_ready))]
        far = self._far_ready.setdefault(head, set())
        if author not in far and len(far) < self._far_max:
            far.add(author)
        return author in far

    # Events

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """A peer broke the protocol: it is counted and said, and in the end it is banned."""
        self._offences.note(peer, error)

    def accused_by(self, peer: PeerId) -> None:
        """A member put this node out of their ring.

        The line between the two is broken, or it lies. In either case no ring on this head can have
        both of them in it: what is tried next does not wait for that peer. So whoever accuses
        everybody is alone in the end, and costs the others an attempt and not the round.
        """
        self._accusers.add(peer)

    def forgive_accusers(self) -> None:
        """There is a new head, and with it new rings."""
        self._accusers.clear()

    def _heard_own(self, announce: Announce) -> None:
        """Others know a later life of ours than this one: it was forgotten here, or goes on."""
        if not self._incarnation.raise_above(announce.incarnation):
            return
        now = trio.current_time()
        if now >= self._own_seconds + OWN_SECONDS:
            self._own_seconds = now
            log.warning(
                "others know this node by a higher number: its state directory was put back, or "
                "another node has the same identity. If one has, give it a state directory of its "
                "own"
            )
            self.announce()

    def _heard(self, signed: Signed, statement: Statement) -> None:
        author = PeerId(signed.author)
        if isinstance(statement, Announce):
            now = self._awake_seconds()
            if self.membership.announced(now, author, statement, self._transport.peers()):
                self._told.members_changed()
            return
        self._told.heard(signed, statement)

    def _heard_commit(self, _author: PeerId, commit: Commit) -> bool:
        if digest_of(commit.header) in self._known_heads:
            return False
        header = self.open_commit(commit)
        log.debug("commit", round=header.round, head=short(digest_of(commit.header)))
        self._told.heard_commit(commit, header)
        return True

    def open_commit(self, commit: Commit) -> Header:
        """The header of a commit record that counts in this run.

        Raises:
            RemoteProtocolError: it is not committed, or takes what its members cannot have done, or
                has members that the run does not admit.
        """
        header = open_commit(commit, self._run_id, verify)
        self._bounds.check_header(header)
        if self._allowed is not None and not self._allowed.issuperset(
            member.peer_id for member in header.members
        ):
            raise ForgedError("header with members that the run does not admit")
        return header

    async def _watch_connections(self) -> None:
        while True:
            now = trio.current_time()
            connected = set(self._transport.peers())
            for peer in sorted(self._connected - connected):
                log.info("disconnected", peer=short(peer))
                self.membership.disconnected(peer)
                self._told.disconnected(peer)
            if connected - self._connected and now >= self._greeted_seconds + GREET_SECONDS:
                self._greeted_seconds = now
                self.announce()  # so that the new one knows us at once
            self._connected = connected
            self._announce_news()
            await trio.sleep(WATCH_SECONDS)
