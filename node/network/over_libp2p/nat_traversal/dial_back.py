"""Asks members of other networks to dial this node, and does them the same service.

A peer that always dials first is never dialled, and would not learn that its port is open. The
helper runs noise's handshake, which proves that the asker itself answers, and no more: neither side
gets a connection that others could use. It dials from a fresh port, because many routers let in
what comes from an address and port that they have seen before. A router that goes by the address
alone makes this node look open; other peers then find it closed, and come by a relay.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import trio
from multiaddr import Multiaddr

from gossamer.node.network.dial_guard import DialGuard
from gossamer.node.network.dial_rules import is_private
from gossamer.node.network.frames import asked, receive_message, send_frame
from gossamer.node.network.over_libp2p.addresses import libp2p_id, port_of
from gossamer.node.network.over_libp2p.guards import GuardedSwarm
from gossamer.node.network.over_libp2p.nat_traversal.own_addresses import OwnAddresses
from gossamer.node.network.over_libp2p.tcp.carriers import host_behind
from gossamer.node.network.transport import ORDINARY_ENDS, Stream, Transport
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.dial_back_messages import (
    DIAL_BACK_BYTES_MAX,
    DIAL_BACK_PROTOCOL,
    PORTS_MAX,
    DialBack,
    DialBackMessage,
    Dialled,
    decode_dial_back,
)

logger = logging.getLogger(__name__)

DIAL_SECONDS_MAX = 4.0
"""A router that drops the dial says nothing; one lost packet costs a second."""

ANSWER_SECONDS_MAX = PORTS_MAX * DIAL_SECONDS_MAX + 10.0
"""The helper dials one port after another."""

LOOK_SECONDS = 5.0
"""Interval of the looks whether another member should be asked."""

REST_SECONDS = 60.0
"""The same after a look among the same peers in which nobody was to be asked: a look asks the
system for each connection's address. The move of this machine to another network is noticed so
late."""

ASK_AGAIN_SECONDS = 900.0
"""The same member is asked again after this time: the owner may have opened a port."""

HELP_AGAIN_SECONDS = 30.0
"""A peer is dialled back no more often than this."""

HELPED_MAX = 256
"""Peers whose last dial-back is remembered: as many as a ring has members."""

HELPS_AT_ONCE_MAX = 4


class DialBacks:
    """Asks others for dial-backs, and answers them."""

    def __init__(
        self,
        transport: Transport,
        swarm: GuardedSwarm,
        own: OwnAddresses,
        guard: DialGuard,
        peers: Callable[[], list[PeerId]],
    ) -> None:
        """
        Args:
            guard: bounds the dials that peers ask for.
            peers: the connected peers.
        """
        self._transport = transport
        self._swarm = swarm
        self._own = own
        self._guard = guard
        self._peers = peers
        self._asked: dict[PeerId, float] = {}
        self._rests_among: list[PeerId] = []
        self._rests_until = -math.inf
        """Local time until which nobody is asked among just these peers."""
        self._helped: OrderedDict[PeerId, float] = OrderedDict()
        self._num_helping = 0
        transport.handle(DIAL_BACK_PROTOCOL, self._answer, streams_per_peer_max=1)

    # The asker

    async def run(self) -> None:
        """Asks one member after another until one has dialled this node; until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self._own.reachability.reach == "open":
                continue
            peer = self._next()
            if peer is not None:
                self._asked[peer] = trio.current_time()
                await self._ask(peer)

    def _next(self) -> PeerId | None:
        now, peers = trio.current_time(), self._peers()
        if peers == self._rests_among and now < self._rests_until:
            return None
        self._rests_among, self._rests_until = peers, now + REST_SECONDS
        there = set(peers)
        self._asked = {peer: at for peer, at in self._asked.items() if peer in there}
        for peer in peers:
            host = self._host_of(peer)
            is_due = now >= self._asked.get(peer, -math.inf) + ASK_AGAIN_SECONDS
            if is_due and host is not None and self._is_in_another_network(host):
                self._rests_until = now
                return peer
        return None

    async def _ask(self, peer: PeerId) -> None:
        host, ports = self._host_of(peer), self._ports()
        if host is None or not ports:
            return
        try:
            question = to_msgpack(DialBack(ports))
            with trio.fail_after(ANSWER_SECONDS_MAX):
                async with asked(self._transport, peer, DIAL_BACK_PROTOCOL, question) as stream:
                    answer = await _hear(stream)
        except ORDINARY_ENDS as error:
            logger.debug("no dial-back from %s: %s", peer, error)
            return
        if isinstance(answer, Dialled) and answer.port:
            logger.debug("%s has dialled back at port %d", peer, answer.port)
            self._own.reachability.dialled_in(peer, host)

    def _ports(self) -> tuple[int, ...]:
        """Ports at which this node may answer outside, the most likely ones first."""
        ports = dict.fromkeys(port_of(Multiaddr(address)) for address in self._own.all())
        return tuple(islice((port for port in ports if port), PORTS_MAX))

    def _is_in_another_network(self, host: str) -> bool:
        return not is_private(host) and host not in self._own.reachability.hosts

    def _host_of(self, peer: PeerId) -> str | None:
        """The host at the other end of a direct connection; None without one."""
        for _, muxed in self._swarm.pairs_of(libp2p_id(peer)):
            if muxed.path.kind != "relayed" and (host := host_behind(muxed)):
                return host
        return None

    # The helper

    async def _answer(self, stream: Stream) -> None:
        with trio.fail_after(ANSWER_SECONDS_MAX):
            request = await _hear(stream)
            if not isinstance(request, DialBack):
                raise MalformedError("a dial-back that names no ports")
            host = self._host_of(stream.peer_id)
            port = 0
            if host is not None and self._may_help(stream.peer_id, host):
                self._num_helping += 1
                try:
                    port = await self._dial(stream.peer_id, host, request.ports)
                finally:
                    self._num_helping -= 1
            await send_frame(stream, to_msgpack(Dialled(port)))

    def _may_help(self, peer: PeerId, host: str) -> bool:
        if not self._is_in_another_network(host):
            return False
        now = trio.current_time()
        is_due = now >= self._helped.get(peer, -math.inf) + HELP_AGAIN_SECONDS
        if not is_due or self._num_helping >= HELPS_AT_ONCE_MAX:
            return False
        self._helped[peer] = now
        self._helped.move_to_end(peer)
        while len(self._helped) > HELPED_MAX:
            self._helped.popitem(last=False)
        return True

    async def _dial(self, peer: PeerId, host: str, ports: tuple[int, ...]) -> int:
        permit = self._guard.permit(self._own.neighbourhood())
        for port in ports:
            with trio.move_on_after(DIAL_SECONDS_MAX), suppress(OSError):
                permit.take(host)
                if await self._swarm.answers_at(libp2p_id(peer), host, port):
                    permit.proven(host)
                    return port
        return 0


async def _hear(stream: Stream) -> DialBackMessage:
    return decode_dial_back(await receive_message(stream, DIAL_BACK_BYTES_MAX))
