"""Finding peers and staying connected to them.

A node starts from addresses that a person gave and from peers that it knew before. The peers that
it is connected to pass on the announcements of all members, and those carry addresses. So one
living address leads to the whole swarm, and no node depends on the first seed. Each node keeps a
connection to every living member of its run, up to `CONNECTIONS_MAX`. Now and then it tries a few
other addresses, which may lead to members that these have not heard of.
"""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.ticks import sleep_to_tick
from gossamer.node.network.racing import RaceLost, race
from gossamer.node.network.transport import ConnectError, PeerTest, Transport
from gossamer.node.peers.members.entrance import Entrance
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.policy.membership import Membership
from gossamer.protocol.policy.redial import BACK_OFF_SECONDS_MIN, Redial
from gossamer.protocol.policy.relay_choice import RelayMemory, relay_order
from gossamer.protocol.wire.statements import Announce

LOOK_SECONDS = 1.0

RELAYED_LOOKS = 10
"""Of so many looks one is for peers that are connected through another one. It asks for the path to
each peer, and these peers are dialled seldom."""

DIALS_AT_ONCE_MAX = 16
"""A dial into a dead line holds its place for some 12 s."""

CONNECTIONS_MAX = 192
"""Every ring member may have to reach every other; a ring has at most 256 members, and the
transport refuses inbound connections above its own limit."""

UNHEARD_MAX = 8
"""Peers of earlier lives, and addresses of the owner, that are dialled while a member is connected
and has not heard of them. Most are gone. The first half are always the same: the owner's, and the
newest. Each of these is dialled once in ten minutes in the end. The others take turns."""

UNHEARD_LOOKS = 600
"""Looks of one turn, ten minutes: each peer of it is dialled five times. A hundred peers of earlier
lives have their turns within five hours, for two dials a minute."""

DIRECT_SECONDS = 1.5
"""Time for an answer at a peer's own addresses, after which it is tried through another peer: one
lost packet costs a second. A machine that has answered gets the time of a whole dial: where it or
this one is busy a circuit would only be more work for both."""

RELAYS_TRIED_MAX = 3
"""Peers that are asked for a circuit. One that is connected to both ends is nearly always among
the first: peers that can be reached are connected to everybody. At the next attempt those that
failed come last, so all are asked in the end."""

log = structlog.get_logger("peers")


@dataclass(frozen=True)
class _Target:
    """A peer to connect to. `peer` is None if only the address is known."""

    peer: PeerId | None
    addresses: tuple[str, ...]
    is_relayed: bool = False
    """Whether the peer is connected through another one."""


class Discovery:
    """Dials the peers that should be connected and are not.

    It has more than 7 parameters and 12 attributes: addresses come from the owner, the disk and the
    members, and all dials share one back-off.
    """

    def __init__(
        self,
        transport: Transport,
        known: KnownPeers,
        bootstrap: Sequence[str],
        membership: Membership,
        metrics: Metrics,
        randomness: random.Random,
        awake: AwakeClock,
        entrance: Entrance,
        is_elsewhere: PeerTest = lambda _peer: False,
    ) -> None:
        """
        Args:
            bootstrap: addresses that are dialled while there is no connection to a member, and now
                and then otherwise.
            randomness: for the back-off between two dials.
            awake: tells when this process did not run, because connections break meanwhile.
            entrance: is told of each peer that was dialled, and knows who was put out.
            is_elsewhere: whether a peer is in another run, and is left alone.
        """
        self._transport = transport
        self._known = known
        self._bootstrap = tuple(bootstrap)
        self._membership = membership
        self._metrics = metrics
        self._awake = awake
        self._entrance = entrance
        self._is_elsewhere = is_elsewhere
        self._answered: dict[str, PeerId] = {}
        """The peer that answered last at each address of `bootstrap`."""
        self._looked_seconds = -math.inf
        """Local time up to which stalls of this process were noticed."""
        self._redial = Redial(randomness)
        self._relay_memory = RelayMemory()
        self._dialling: set[str] = set()
        self._num_looks = 0
        self._relayed: frozenset[PeerId] = frozenset()
        """Peers that are connected through another one, at the newest look for them."""
        self._was_alone = True

    async def run(self) -> None:
        """Dials until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._note_stalls()
                self._look(nursery)
                await sleep_to_tick(LOOK_SECONDS)

    def _note_stalls(self) -> None:
        """Makes every peer due for a dial if this process did not run, because connections broke
        meanwhile."""
        stalls = self._awake.stalls_since(self._looked_seconds)
        self._looked_seconds = trio.current_time()
        for stall in stalls:
            seconds = round(stall.lost_seconds, 1)
            log.warning(
                "this process did not run for a while: the machine slept, or was too busy",
                seconds=seconds,
            )
            self._metrics.stalled_seconds.inc(stall.lost_seconds)
        if stalls:
            self._redial.hurry(self._looked_seconds)

    def _look(self, nursery: trio.Nursery) -> None:
        connected = set(self._transport.peers())
        now = trio.current_time()
        if connected and self._was_alone:
            self._redial.hurry(now)
        self._was_alone = not connected
        if self._num_looks % RELAYED_LOOKS == 0:
            self._relayed = frozenset(filter(self._is_relayed, connected))
        self._note_relays(now)
        self._num_looks += 1
        if len(connected) >= CONNECTIONS_MAX:
            return
        members = self._membership.known()
        targets = self._targets(now, members, connected)
        self._redial.keep(targets, members)
        for key in self._redial.due(now, alone=not connected):
            if len(self._dialling) >= DIALS_AT_ONCE_MAX:
                break
            if key not in self._dialling:
                self._dialling.add(key)
                nursery.start_soon(self._connect, key, targets[key])

    def _targets(
        self, now: float, members: dict[PeerId, Announce], connected: set[PeerId]
    ) -> dict[str, _Target]:
        """Peers that should be connected and are not, by the key of their count of failures.

        A connected peer that has announced nothing in this run may be in another run or in none: it
        leads nowhere, and keeps nobody from looking further. A member that is connected leads to
        those that it has heard of. There may be others: those of a part of the swarm that was cut
        off when both parts started. So addresses of which nobody speaks are dialled all the same,
        as seldom as peers behind a circuit.
        """
        me = self._transport.peer_id
        targets: dict[str, _Target] = {}
        for peer, announce in members.items():
            self._redial.heard(now, peer, (announce.incarnation, announce.sequence))
            is_here = announce.phase != "leaving" and not self._is_left(peer)
            is_relayed = peer in self._relayed and self._is_relayed(peer)
            if (peer not in connected or is_relayed) and peer != me and is_here:
                addresses = self._known.in_order(peer, announce.addresses)
                targets[peer] = _Target(peer, addresses, is_relayed)
                # Of two peers that know each other the lower id dials at once. The other waits.
                patience = 0.0 if me < peer else BACK_OFF_SECONDS_MIN
                self._redial.want(now, peer, patience, is_relayed=is_relayed)
        is_alone, here = connected.isdisjoint(members), {me, *connected}
        others = list(self._others(here if is_alone else here.union(members)))
        for key, target in others if is_alone else self._in_turn(others):
            if key not in targets:
                targets[key] = target
                self._redial.want(now, key, 0.0, is_relayed=not is_alone)
        return {key: target for key, target in targets.items() if target.addresses}

    def _others(self, known: Container[PeerId]) -> Iterator[tuple[str, _Target]]:
        """Yields the addresses that the owner gave, and the peers of earlier lives, the newest
        first, but for these peers."""
        for address in self._bootstrap:
            peer = self._answered.get(address, PeerId(address.rpartition("/p2p/")[2]))
            if peer not in known and not self._is_left(peer):
                yield address, _Target(None, (address,))
        for peer, addresses in self._known.newest_first():
            if peer not in known and not self._is_left(peer):
                yield peer, _Target(peer, addresses)

    def _in_turn(self, others: list[tuple[str, _Target]]) -> list[tuple[str, _Target]]:
        """Returns the `UNHEARD_MAX` of these whose turn it is. Where the first ones are gone for
        good, a later one may still lead to a part of the swarm that was cut off."""
        half = UNHEARD_MAX // 2
        first, rest = others[:half], others[half:]
        if len(rest) > half:
            turn = self._num_looks // UNHEARD_LOOKS * half % len(rest)
            rest = [*rest[turn:], *rest[:turn]][:half]
        return first + rest

    def _note_relays(self, now: float) -> None:
        """Notes which circuits stand, and what became of those that stood."""
        memory = self._relay_memory
        for peer in {*memory.standing(), *self._relayed}:
            path = self._transport.path(peer)
            if path is not None and path.kind == "relayed" and path.relay is not None:
                memory.stands(now, peer, path.relay)
            elif peer in memory.standing():
                if path is None:
                    memory.ended(now, peer)
                else:
                    memory.crossed(peer)

    def _is_left(self, peer: PeerId) -> bool:
        """Returns whether a peer is not in this run, or not any more."""
        return self._entrance.is_out(peer) or self._is_elsewhere(peer)

    def _is_relayed(self, peer: PeerId) -> bool:
        path = self._transport.path(peer)
        return path is not None and path.kind == "relayed"

    async def _connect(self, key: str, target: _Target) -> None:
        try:
            if target.peer is not None and target.is_relayed:
                await self._transport.connect_any(target.peer, target.addresses)
                self._redial.reached(trio.current_time(), key)
                log.info("connected directly", peer=short(target.peer))
                return
            if target.peer is None:
                peer, address = await self._transport.connect(target.addresses[0]), key
                self._answered[key] = peer
            else:
                peer = target.peer
                address = await self._reach(peer, target.addresses)
            self._redial.reached(trio.current_time(), key)
            if address:
                self._known.reached(peer, address)
            self._metrics.dials.add("connected")
            await self._entrance.introduce(peer)
        except ConnectError as error:
            self._metrics.dials.add("unreachable")
            self._redial.failed(trio.current_time(), key)
            log.debug("could not connect", error=str(error))
        finally:
            self._dialling.discard(key)

    async def _reach(self, peer: PeerId, addresses: tuple[str, ...]) -> str:
        """Connects to a peer by its addresses, or through another peer if nothing answers there.
        Returns the address that led to it; empty if another peer did. ConnectError: neither does.

        A circuit lets both ends cross their routers. It costs several times as much as a dial.
        """

        async def attempt(relay: PeerId | None) -> str:
            if relay is None:
                return await self._transport.connect_any(peer, addresses)
            try:
                await self._transport.connect_through(relay, peer)
            except ConnectError:
                self._relay_memory.failed(trio.current_time(), peer, relay)
                raise
            self._relay_memory.stands(trio.current_time(), peer, relay)
            return ""

        def is_near(relay: PeerId | None) -> bool:
            return relay is None and self._transport.is_answering(peer)

        ways = [None, *self._relays(peer)]
        try:
            _, address = await race(attempt, ways, DIRECT_SECONDS, ConnectError, is_near=is_near)
        except RaceLost as lost:
            raise ConnectError(str(lost)) from None
        return address

    def _relays(self, peer: PeerId) -> list[PeerId]:
        """Connected members that may reach a peer, the first to be asked first."""
        members = self._membership.known()
        direct = {}
        for relay in self._transport.peers():
            path = self._transport.path(relay)
            if path is not None and path.kind != "relayed" and relay in members:
                direct[relay] = members[relay]
        order = relay_order(self._transport.peer_id, peer, direct)
        return self._relay_memory.in_order(trio.current_time(), peer, order)[:RELAYS_TRIED_MAX]
