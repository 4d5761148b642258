"""The real network: py-libp2p over TCP, noise and yamux, with gossipsub.

Only this folder knows libp2p. Open the transport with `host.open_libp2p_transport`; what the node
sees of it is `gossamer.node.network.transport`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

import trio
from libp2p.abc import INetConn
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from multiaddr import Multiaddr

from gossamer.node.base.rate_limit import NO_LIMIT, RateLimit
from gossamer.node.network.dial_guard import DialGuard, Permit
from gossamer.node.network.over_libp2p import echoes
from gossamer.node.network.over_libp2p.addresses import (
    host_and_port,
    libp2p_id,
    parse_address,
    peer_id_of,
    why,
)
from gossamer.node.network.over_libp2p.gossip.pubsub import GuardedPubsub
from gossamer.node.network.over_libp2p.guards import GuardedSwarm
from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.over_libp2p.nat_traversal.dial_back import DialBacks
from gossamer.node.network.over_libp2p.nat_traversal.own_addresses import OwnAddresses
from gossamer.node.network.over_libp2p.nat_traversal.paths import Paths
from gossamer.node.network.over_libp2p.negotiation import GuardedHost
from gossamer.node.network.over_libp2p.streams import Streams
from gossamer.node.network.places import Rank
from gossamer.node.network.racing import RaceLost, race
from gossamer.node.network.reachability import Neighbourhood
from gossamer.node.network.relay import RelayTerms
from gossamer.node.network.transport import (
    ADDRESSES_TRIED_MAX,
    RACE_SECONDS,
    STREAMS_PER_PEER_MAX,
    ConnectError,
    GossipHandler,
    MayRelay,
    OffenceHandler,
    Path,
    PeerTest,
    ReachReport,
    Stream,
    StreamHandler,
    Transport,
)
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import GOSSIP_BYTES_MAX

logger = logging.getLogger(__name__)

# A handshake is some six round trips; 10 s leaves room for a satellite link and a lost packet.
CONNECT_SECONDS_MAX = 10.0
# How long an old connection has to prove that it lives before we dial over it.
PROBE_SECONDS_MAX = 5.0
# The end of a connection: a goodbye (`yamux.connection.CLOSE_SECONDS_MAX`), and word to listeners.
END_SECONDS_MAX = 5.0


class Libp2pTransport(Transport):
    """The real network.

    It has more than 15 public methods: those of the interface, which describes them. It has more
    than 12 attributes: the parts of libp2p, and what is added to them.
    """

    def __init__(
        self,
        host: GuardedHost,
        swarm: GuardedSwarm,
        pubsub: GuardedPubsub,
        nursery: trio.Nursery,
        own: OwnAddresses,
        guard: DialGuard,
        liveness: Liveness,
    ) -> None:
        self.own = own
        self._liveness = liveness
        self._guard = guard
        self._host = host
        self._swarm = swarm
        self._pubsub = pubsub
        self._nursery = nursery
        self._peer_id = peer_id_of(host.get_id())
        self._topics: dict[str, GossipHandler] = {}
        self._streams = Streams(host)
        self._streams.handle(echoes.PROTOCOL, echoes.answer, echoes.STREAMS_MAX)
        self._offence_handler: OffenceHandler = lambda _peer, _error: None
        self._admits: PeerTest = lambda _peer: True
        swarm.on_violation = self._on_offence
        self.paths = Paths(self, swarm, own, guard, nursery, self._streams)
        swarm.on_connected = self.paths.connected
        nursery.start_soon(DialBacks(self, swarm, own, guard, self.peers).run)
        pubsub.on_message = self._on_gossip
        pubsub.on_offence = self._on_offence
        pubsub.is_banned = swarm.refusals.is_banned

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self._swarm.tcp.ports()[0]

    def addresses(self) -> list[str]:
        return [f"{address}/p2p/{self._peer_id}" for address in self.own.all()]

    def reach(self) -> ReachReport:
        known, newcomers = self.own.reachability, self._swarm.newcomers
        return ReachReport(
            known.reach,
            known.num_confirmed,
            self.paths.circuits.carried_bytes,
            newcomers.num_unfinished,
            newcomers.num_turned_away,
        )

    # -- connections

    async def connect(self, address: str) -> PeerId:
        maddr, expected = parse_address(address)
        self._guard.note_typed(*host_and_port(maddr))
        return await self._connect(address, maddr, expected, None)

    async def _connect(
        self, address: str, maddr: Multiaddr, expected: ID | None, permit: Permit | None
    ) -> PeerId:
        me = self._host.get_id()
        own = ConnectError(f"{address} is this node's own address; give another peer's")
        if expected == me:
            raise own
        if expected is not None and await self._keep_or_drop(expected):
            return peer_id_of(expected)
        if expected is not None and self._swarm.refusals.is_banned(expected):
            raise ConnectError(f"cannot connect to {address}: this peer is banned here for a while")
        try:
            with trio.fail_after(CONNECT_SECONDS_MAX):
                connection = await self._swarm.dial_once(maddr, expected, permit)
        except Exception as error:
            raise ConnectError(f"cannot connect to {address}: {why(error)}") from error
        remote: ID = connection.muxed_conn.peer_id
        if remote == me:
            await self._close([connection])
            raise own
        return peer_id_of(remote)

    async def connect_any(self, peer_id: PeerId, addresses: Sequence[str]) -> str:
        neighbourhood = self.own.neighbourhood()

        async def attempt(address: str) -> None:
            maddr, expected = parse_address(address)
            if expected is not None and peer_id_of(expected) != peer_id:
                raise ConnectError(f"{address} belongs to another peer")
            is_typed = self._guard.is_typed(*host_and_port(maddr))
            permit = None if is_typed else self._guard.permit(neighbourhood)
            await self._connect(address, maddr, libp2p_id(peer_id), permit)

        ways = self._worth_dialling(addresses, neighbourhood)[:ADDRESSES_TRIED_MAX]
        try:
            address, _ = await race(attempt, ways, RACE_SECONDS, ConnectError)
        except RaceLost as lost:
            listed = str(lost) or (
                "all its addresses are in other networks" if addresses else "no address is known"
            )
            raise ConnectError(f"cannot reach peer {peer_id}: {listed}") from None
        return address

    def is_answering(self, peer_id: PeerId) -> bool:
        return libp2p_id(peer_id) in self._swarm.handshakes

    def _worth_dialling(self, addresses: Sequence[str], neighbourhood: Neighbourhood) -> list[str]:
        """Addresses of one peer without those of networks that this machine is not in. One that
        the owner typed is always worth it."""
        found = list(map(_host_and_port, addresses))
        worth = neighbourhood.worth_dialling([host for host, _ in found])
        return [
            address
            for address, is_worth, where in zip(addresses, worth, found, strict=True)
            if is_worth or self._guard.is_typed(*where)
        ]

    async def _keep_or_drop(self, peer: ID) -> bool:
        """Returns whether a connection to `peer` lives that goes through no relay. Otherwise those
        that do not live are dropped.

        Gossip never recovers with a peer that is dialled while a half-open connection to it is
        still in the books. A connection that the peer opens while the others are probed is live.
        """
        dead = []
        for connection, muxed in self._swarm.pairs_of(peer):
            lives = muxed.is_established and await muxed.signs.answers_within(PROBE_SECONDS_MAX)
            if lives and muxed.path.kind != "relayed":
                return True
            if not lives:
                dead.append(connection)
        await self._close(dead)
        left = self._swarm.pairs_of(peer)
        return any(muxed.path.kind != "relayed" for each, muxed in left if not each.is_closed)

    @staticmethod
    async def _close(connections: Sequence[INetConn]) -> None:
        """Ends connections, for which a cancellation waits.

        Symptom: py-libp2p keeps a connection whose end was cancelled in its books, and gossip goes
        on with the stream to a peer that has left.
        """
        with trio.CancelScope(shield=True), trio.move_on_after(END_SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                for connection in connections:
                    nursery.start_soon(connection.close)

    def peers(self) -> list[PeerId]:
        admits = self._admits
        return [peer_id for peer_id, _ in self._swarm.connected() if admits(peer_id)]

    def on_peers_changed(self, handler: Callable[[], None]) -> None:
        self._swarm.on_peers_changed = handler

    def admit(self, admits: PeerTest) -> None:
        self._admits = admits
        self._host.doors.admits = lambda peer: admits(peer_id_of(peer))

    def let_in(self, peer_id: PeerId) -> None:
        if self._swarm.get_connections(libp2p_id(peer_id)):
            self._pubsub.let_in(libp2p_id(peer_id))
            self.paths.let_in(libp2p_id(peer_id))
            self._swarm.on_peers_changed()

    def keep_places_of(
        self, is_known: PeerTest, has_standing: PeerTest, is_expected: PeerTest
    ) -> None:

        def rank_of(peer: ID) -> Rank:
            peer_id = peer_id_of(peer)
            if has_standing(peer_id):
                return Rank.STANDING
            if self._liveness.is_listened(peer):
                return Rank.IN_RING
            return Rank.ANNOUNCED if is_known(peer_id) else Rank.STRANGER

        self._swarm.rank_of = rank_of
        self._swarm.is_expected = lambda peer: is_expected(peer_id_of(peer))

    async def disconnect(self, peer_id: PeerId) -> None:
        await self._close(self._swarm.get_connections(libp2p_id(peer_id)))

    def ban(self, peer_id: PeerId, seconds: float, *, is_offender: bool = True) -> None:
        peer = libp2p_id(peer_id)
        self._swarm.refusals.ban(peer, seconds, is_offender=is_offender)
        self._nursery.start_soon(self._close, self._swarm.get_connections(peer))

    def round_trip_seconds(self, peer_id: PeerId) -> float | None:
        for _, muxed in self._swarm.pairs_of(libp2p_id(peer_id)):
            if muxed.signs.rtt_seconds > 0:
                return muxed.signs.rtt_seconds
        return None

    def heard_seconds(self, peer_id: PeerId) -> float | None:
        pairs = self._swarm.pairs_of(libp2p_id(peer_id))
        return max((muxed.signs.heard_seconds for _, muxed in pairs), default=None)

    def signs_seconds(self) -> float:
        return self._liveness.signs_seconds()

    def listen(self, peers: Collection[PeerId]) -> Callable[[], None]:
        listened = [libp2p_id(peer) for peer in peers]
        self._liveness.listen(listened)
        return lambda: self._liveness.end_listening(listened)

    async def connect_through(self, relay: PeerId, peer_id: PeerId) -> None:
        await self.paths.connect_through(relay, peer_id)

    def relay_for(
        self, may_relay: MayRelay, rate: RateLimit = NO_LIMIT, *, introduces: bool = False
    ) -> None:
        self.paths.circuits.terms = RelayTerms(may_relay, rate, introduces)

    def path(self, peer_id: PeerId) -> Path | None:
        return self.paths.path(peer_id)

    def network_of(self, peer_id: PeerId) -> str:
        return self.paths.network_of(peer_id)

    # -- streams

    async def open_stream(self, peer_id: PeerId, protocol: str, *, at_once: bool = False) -> Stream:
        connections = self.paths.connections(libp2p_id(peer_id))
        if not connections:
            raise ConnectError(f"not connected to {peer_id}")
        connection, muxed = connections[-1]
        muxed.search.begin()
        return await self._streams.open_on(connection, peer_id, protocol, at_once=at_once)

    def handle(
        self,
        protocol: str,
        handler: StreamHandler,
        *,
        streams_per_peer_max: int = STREAMS_PER_PEER_MAX,
        for_strangers: bool = False,
    ) -> None:
        if for_strangers:
            self._host.doors.for_strangers.add(TProtocol(protocol))
        self._streams.handle(protocol, handler, streams_per_peer_max)

    # -- gossip

    async def publish(self, topic: str, data: bytes) -> None:
        if len(data) > GOSSIP_BYTES_MAX:
            raise ValueError(
                f"a gossip message has at most {GOSSIP_BYTES_MAX} bytes, not {len(data)}"
            )
        await self._pubsub.publish(topic, data)

    def subscribe(self, topic: str, handler: GossipHandler, *, retains: bool = False) -> None:
        known = topic in self._topics
        self._topics[topic] = handler
        if retains:
            self._pubsub.retain(topic)
        if not known:
            self._nursery.start_soon(self._pubsub.subscribe, topic)

    def _on_gossip(self, message: rpc_pb2.Message) -> bool:
        author = peer_id_of(ID(message.from_id))
        topic = message.topicIDs[0]
        handler = self._topics.get(topic)
        if handler is None:
            return True
        try:
            return handler(author, message.data) is not False
        except Exception:
            logger.exception("gossip handler of %s failed on a message of %s", topic, author)
            return False

    # -- offences

    def on_offence(self, handler: OffenceHandler) -> None:
        self._offence_handler = handler

    def _on_offence(self, peer: ID, error: RemoteProtocolError) -> None:
        logger.debug("peer %s: %s", peer, error)
        self._offence_handler(peer_id_of(peer), error)

    def traffic(self) -> dict[str, tuple[int, int]]:
        return self._streams.traffic()


def _host_and_port(address: str) -> tuple[str, int]:
    """Of what cannot be dialled ("", 0): the dial says what is wrong with it."""
    try:
        return host_and_port(parse_address(address)[0])
    except ConnectError:
        return "", 0
