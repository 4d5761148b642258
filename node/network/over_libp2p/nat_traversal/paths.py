"""Ways to peers that no dial reaches: circuits through a third peer, and crossings."""

from __future__ import annotations

import logging
from collections import Counter

import trio
from libp2p.abc import INetConn, INetStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID

from gossamer.node.network.counted import counted
from gossamer.node.network.dial_guard import DialGuard
from gossamer.node.network.over_libp2p.addresses import libp2p_id, peer_id_of, why
from gossamer.node.network.over_libp2p.gossip.pubsub import GOSSIP_PREFIX
from gossamer.node.network.over_libp2p.guards import GuardedSwarm
from gossamer.node.network.over_libp2p.nat_traversal import crossing
from gossamer.node.network.over_libp2p.nat_traversal.crossing import Crossing
from gossamer.node.network.over_libp2p.nat_traversal.own_addresses import OwnAddresses
from gossamer.node.network.over_libp2p.streams import Streams
from gossamer.node.network.over_libp2p.tcp.carriers import CircuitEnd, host_behind
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.stream import YamuxStream
from gossamer.node.network.places import network_of
from gossamer.node.network.racing import RaceLost, race
from gossamer.node.network.reachability import Endpoint
from gossamer.node.network.relay import Circuits, carry, ends
from gossamer.node.network.transport import RACE_SECONDS, ConnectError, Path, Stream, Transport
from gossamer.protocol.ids import PeerId

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS_MAX = 10.0
"""Longest handshake over a circuit: six round trips of two legs each."""

LOOK_SECONDS = 0.05
"""Interval of the looks for the connection that the other end's dial made during a crossing."""

REDIAL_SECONDS = 0.1
"""Pause between two dials of a crossing, if the first one failed at once."""

DRAIN_SECONDS_MAX = 600.0
"""Longest time for which a circuit stays beside a direct connection because of what is under way on
it: a ring of 150 M parameters over a slow line takes some minutes. After that the relay gets its
line back."""

DRAIN_LOOK_SECONDS = 0.25
"""Interval of the looks whether anything is still under way on such a circuit."""

PROBE_SECONDS_MAX = 5.0
"""Longest wait for the other end's answers before such a circuit ends."""

RETRY_SECONDS_MIN = 20.0
RETRY_SECONDS_MAX = 600.0
"""The pause before two peers try again to cross their routers; it doubles each time. A crossing
fails by chance where a packet is lost, and for good between two strict routers."""

PAUSE_LOOK_SECONDS = 2.0
"""Interval of the looks, in that pause, whether a dial has made a direct connection meanwhile. Then
the circuit ends, which is in no hurry."""


class Paths:
    """Makes connections that need a third peer, and knows which path each connection takes."""

    def __init__(
        self,
        transport: Transport,
        swarm: GuardedSwarm,
        own: OwnAddresses,
        guard: DialGuard,
        nursery: trio.Nursery,
        streams: Streams,
    ) -> None:
        self._swarm = swarm
        self._own = own
        self._guard = guard
        self._nursery = nursery
        self._streams = streams
        self.circuits = Circuits(transport, self._serve_end, self.network_of)
        self._crossings = Counter[PeerId]()
        """Crossings under way with each peer: its connections show no open port of this node."""
        swarm.is_crossing = lambda peer: peer_id_of(peer) in self._crossings
        self._crossing = Crossing(self._dial, own.outer)
        transport.handle(
            crossing.PROTOCOL, self._crossing.answer, streams_per_peer_max=crossing.STREAMS_MAX
        )

    def connections(self, peer: ID) -> list[tuple[INetConn, YamuxConnection]]:
        """Connections to a peer that can be used: relayed ones first, and the newest last."""
        found = [each for each in self._swarm.pairs_of(peer) if each[1].is_established]
        return sorted(found, key=lambda each: each[1].path.kind != "relayed")

    def path(self, peer: PeerId) -> Path | None:
        """See `Transport.path`."""
        connections = self.connections(libp2p_id(peer))
        return connections[-1][1].path if connections else None

    def network_of(self, peer: PeerId) -> str:
        """See `Transport.network_of`."""
        connections = self.connections(libp2p_id(peer))
        return network_of(host_behind(connections[-1][1])) if connections else ""

    def connected(self, connection: INetConn) -> None:
        """A connection has come about: what it shows, and what has to follow."""
        muxed = connection.muxed_conn
        if not isinstance(muxed, YamuxConnection):
            return
        peer = peer_id_of(muxed.peer_id)
        if muxed.path.kind != "relayed":
            self._learn(connection, muxed)
        elif not muxed.was_dialled:
            # The specification lets the end that was called begin.
            self._nursery.start_soon(self._cross, connection, peer)

    def let_in(self, peer: ID) -> None:
        """A peer is no stranger any more: it may say now where it sees this node."""
        for connection, muxed in self.connections(peer):
            if muxed.path.kind != "relayed" and muxed.was_dialled:
                self._learn(connection, muxed)

    def _learn(self, connection: INetConn, muxed: YamuxConnection) -> None:
        async def open_stream(protocol: str) -> Stream:
            return await self._streams.open_on(connection, peer_id_of(muxed.peer_id), protocol)

        self._nursery.start_soon(self._own.learn, muxed, open_stream)

    # Circuits

    async def connect_through(self, relay: PeerId, peer: PeerId) -> None:
        """See `Transport.connect_through`."""
        stream, path = await self.circuits.open(relay, peer)
        failed = f"no connection to {peer} through {relay}"
        try:
            near, far = ends()
        except OSError as error:
            await stream.reset()
            raise ConnectError(f"{failed}: {error.strerror}") from error
        self._nursery.start_soon(carry, stream, far)
        raw_conn = RawConnection(CircuitEnd(near, path), True)
        try:
            with trio.fail_after(HANDSHAKE_SECONDS_MAX):
                await self._swarm.connect_over(raw_conn, libp2p_id(peer), path)
        except Exception as error:
            raise ConnectError(f"{failed}: {why(error)}") from error

    async def _serve_end(self, path: Path, end: trio.SocketStream) -> None:
        try:
            await self._swarm.serve(CircuitEnd(end, path))
        except Exception as error:
            logger.debug("a circuit through %s failed: %s", path.relay, why(error))

    async def _retire(self, circuit: INetConn, peer: PeerId) -> None:
        """Ends a circuit beside a direct connection, when nothing is under way on it any more.

        A ring that goes through it would take its end for the death of a member. Returns early if
        the direct connection ends first.
        """
        with trio.move_on_after(DRAIN_SECONDS_MAX):
            # Streams set no event when they end.
            while self._is_direct(peer) and not await self._is_idle(circuit, peer):  # noqa: ASYNC110
                await trio.sleep(DRAIN_LOOK_SECONDS)
        if self._is_direct(peer):
            await circuit.close()

    async def _is_idle(self, circuit: INetConn, peer: PeerId) -> bool:
        """Returns whether a circuit is of no use to either end beside a direct connection.

        Once the other end has answered on the direct connection, it opens streams there. What it
        has opened on the circuit before then is known here when it has answered on that as well.
        """
        if _has_streams(circuit):
            return False
        direct = self.connections(libp2p_id(peer))[-1][1]
        for muxed in (direct, circuit.muxed_conn):
            assert isinstance(muxed, YamuxConnection)
            if not await muxed.signs.answers_within(PROBE_SECONDS_MAX):
                return False
        return not _has_streams(circuit)

    # Crossings

    def _is_direct(self, peer: PeerId) -> bool:
        path = self.path(peer)
        return path is not None and path.kind != "relayed"

    async def _cross(self, connection: INetConn, peer: PeerId) -> None:
        async def open_stream() -> Stream:
            return await self._streams.open_on(connection, peer, crossing.PROTOCOL)

        pause_seconds = RETRY_SECONDS_MIN
        while not connection.is_closed:
            if self._is_direct(peer) or await self._crossing.begin(peer, open_stream):
                await self._retire(connection, peer)
                continue
            with trio.move_on_after(pause_seconds):
                # A dial or the other end may make a direct connection in the meantime.
                while not (self._is_direct(peer) or connection.is_closed):  # noqa: ASYNC110 - no event
                    await trio.sleep(PAUSE_LOOK_SECONDS)
            pause_seconds = min(2 * pause_seconds, RETRY_SECONDS_MAX)

    async def _dial(self, peer: PeerId, endpoints: list[Endpoint], seconds: float) -> bool:
        """Dials a peer's outer addresses from the listening port, until one side's dial succeeds;
        says whether it did."""
        neighbourhood = self._own.neighbourhood()
        worth = neighbourhood.worth_dialling([each.host for each in endpoints])
        ways = [each for each, is_worth in zip(endpoints, worth, strict=True) if is_worth]

        permit = self._guard.permit_to_cross(neighbourhood)

        async def attempt(endpoint: Endpoint) -> None:
            permit.take(endpoint.host)
            raw_conn = await self._swarm.tcp.dial_from_listener(endpoint.host, endpoint.port)
            await self._swarm.connect_over(raw_conn, libp2p_id(peer), Path("crossed"))
            permit.proven(endpoint.host)

        async def keep_dialling() -> None:
            while True:
                try:
                    await race(attempt, ways, RACE_SECONDS, Exception)
                except RaceLost as lost:
                    logger.debug("crossing to %s: %s", peer, lost)
                await trio.sleep(REDIAL_SECONDS)

        with counted(self._crossings, peer), trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_dialling)
                while not self._is_direct(peer):  # noqa: ASYNC110 - connections set no event
                    await trio.sleep(LOOK_SECONDS)
                nursery.cancel_scope.cancel()
        return self._is_direct(peer)


def _has_streams(connection: INetConn) -> bool:
    """Returns whether anything but gossip is under way on a connection. Gossip begins anew on
    another one."""
    return any(
        not (each.get_protocol() or "").startswith(GOSSIP_PREFIX) and _is_used(each)
        for each in connection.get_streams()
    )


def _is_used(net_stream: INetStream) -> bool:
    stream = getattr(net_stream, "muxed_stream", None)
    return isinstance(stream, YamuxStream) and not stream.closed and stream.discarded_at is None
