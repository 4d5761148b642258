"""py-libp2p 0.8.1 made fit for a daemon: each guard, and the symptom it cures.

Every class here overrides one class of py-libp2p and is passed in where that would be used;
nothing is patched from outside. The guards of gossip are in `over_libp2p/gossip/`, those of the
data path in `over_libp2p/yamux/` and `over_libp2p/noise/`, those of reaching agreement on
protocols in `over_libp2p.negotiation`. `tests/node/network/over_libp2p/test_libp2p_guards.py` and
its neighbours have a test for each that fails without it, so that a guard can go when upstream has
mended the defect.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from libp2p.abc import IMuxedConn, INetConn, IRawConnection
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from gossamer.node.base.address_text import bind_remedy
from gossamer.node.network.counted import counted
from gossamer.node.network.dial_guard import Permit
from gossamer.node.network.over_libp2p.addresses import host_of, peer_id_of, why
from gossamer.node.network.over_libp2p.inbound_places import giving_way
from gossamer.node.network.over_libp2p.noise.newcomers import (
    ArrivingConnection,
    Newcomers,
    Refusals,
)
from gossamer.node.network.over_libp2p.tcp.carriers import CircuitEnd, host_behind
from gossamer.node.network.over_libp2p.tcp.tcp import PortReusingTcp
from gossamer.node.network.over_libp2p.unread import UnreadBytes
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.places import NoPlaceError, Rank, inbound_max, network_of
from gossamer.node.network.stream_turns import STRANGERS_FRAMES_RATE, StreamTurns
from gossamer.node.network.transport import ListenError, Path
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId, public_key_of

logger = logging.getLogger(__name__)

ENTRY_SECONDS_MAX = 5.0
"""Longest time to start the tasks of a connection and to tell the listeners of it. None of them
waits for the other end; a host that is closing may have no listener any more."""


_SOMEWHERE = Multiaddr("/ip4/0.0.0.0/tcp/0")
"""In the place of a listener's address, which py-libp2p names in its debug log."""


class _NoAutoConnector(AutoConnector):
    """Does not start, so it dials no peer; and remembers none.

    Symptom: py-libp2p dials, on its own, whatever addresses peers have told it, towards a target
    between its watermarks that cannot be set to zero. Each peer that leaves is remembered, and only
    the task that dials forgets any.
    """

    async def start(self) -> None:
        """Nothing to start."""

    def record_disconnect(self, peer_id: ID) -> None:
        """Nothing: this says how soon a peer may be dialled again."""


class GuardedSwarm(Swarm):
    """Connections: slots that are given back, newcomers that cannot be kept out, bans.

    The transport sets what is asked and told here.
    """

    on_violation: Callable[[ID, RemoteProtocolError], None] = staticmethod(
        lambda _peer, _error: None
    )
    on_connected: Callable[[SwarmConn], None] = staticmethod(lambda _connection: None)
    on_peers_changed: Callable[[], None] = staticmethod(lambda: None)
    """Is called when a connection begins or ends."""
    rank_of: Callable[[ID], Rank] = staticmethod(lambda _peer: Rank.STRANGER)
    """Returns what a peer has done here, which says who keeps a place when places are short."""
    is_expected: Callable[[ID], bool] = staticmethod(lambda _peer: False)
    """Returns whether a peer is let in from a network that is banned."""
    is_crossing: Callable[[ID], bool] = staticmethod(lambda _peer: False)
    """Returns whether this node and a peer dial each other through their routers now."""

    def __init__(
        self,
        tcp: PortReusingTcp,
        peer_id: ID,
        peerstore: PeerStore,
        upgrader: TransportUpgrader,
        **kwargs: Any,
    ) -> None:
        """`tcp`: listens and dials. The rest: see `Swarm`."""
        super().__init__(peer_id, peerstore, upgrader, transports=[tcp], **kwargs)
        self.tcp = tcp
        self.auto_connector = _NoAutoConnector(self)
        self._num_arriving = 0
        """Connections that have a place, and are being entered in the books."""
        self._connected: list[tuple[PeerId, ID]] | None = None  # None: to be looked up
        self.handshakes = Counter[ID | None]()
        """Handshakes that this node has begun and not ended, by the peer that is to be there."""
        self.newcomers = Newcomers()
        self.refusals = Refusals()
        self._turns = StreamTurns()
        self._frames = StreamTurns(STRANGERS_FRAMES_RATE)
        self._unread = UnreadBytes(self.get_connections, self._is_stranger)

    async def serve(self, carrier: ReadWriteCloser) -> None:
        """Run one connection that a peer has opened, from accept to end: of TCP, or over a circuit.

        Symptoms: py-libp2p keeps a slot for each inbound connection until shutdown, so that a
        host refuses everybody after 250 connections in all; and 300 silent connections keep
        newcomers out until their handshakes time out.
        """
        raw_conn = ArrivingConnection(carrier, False)
        begun = self.newcomers.begin(_origin_of(carrier))
        if begun is None:
            await raw_conn.close()
            return
        arrival, scope = begun
        muxed_conn = None
        try:
            with scope:
                muxed_conn = await self.upgrade_inbound_raw_conn(raw_conn, _SOMEWHERE)
        finally:
            # One that only dials back proves its key and leaves.
            is_over = raw_conn.is_proven and not scope.cancel_called and not raw_conn.is_refused
            self.newcomers.end(arrival, is_proven=muxed_conn is not None or is_over)
            if muxed_conn is None:
                with trio.CancelScope(shield=True):
                    await raw_conn.close()
        if muxed_conn is not None:
            await _yamux(muxed_conn).event_closed.wait()

    async def dial_once(
        self, maddr: Multiaddr, peer_id: ID | None, permit: Permit | None = None
    ) -> SwarmConn:
        """One attempt at one address; with `peer_id` None any peer may answer. `permit`: see
        `PortReusingTcp.dial`.

        Symptoms: py-libp2p dials only the first TCP address of a peer, refuses a peer for 60 s
        after one failed dial, retries by itself, and must know the peer id.

        Raises:
            SwarmException, OSError and others: py-libp2p has no list.

        Cancellation: the half-open connection is closed.
        """
        if len(self.get_connections()) >= self.connection_config.max_connections:
            raise SwarmException("we have as many connections as we allow")
        raw_conn = await self.tcp.dial(maddr, permit)
        remote = raw_conn.get_remote_address()
        if permit is not None and remote is not None and self._is_refused(peer_id, remote[0]):
            await raw_conn.close()
            raise SwarmException("its network is banned here for a while")
        connection = await self.connect_over(raw_conn, peer_id, Path("direct"))
        if permit is not None and remote is not None:
            permit.proven(host_of(maddr), remote[0])
        return connection

    async def connect_over(
        self, raw_conn: IRawConnection, peer_id: ID | None, path: Path
    ) -> SwarmConn:
        """Run the initiator's handshakes on a connection, see `dial_once`."""
        muxed_conn: IMuxedConn | None = None
        with counted(self.handshakes, peer_id):
            try:
                secured = await self.upgrader.security_multistream.secure_outbound(
                    raw_conn,
                    peer_id,  # type: ignore[arg-type]  # None: `FastNoiseTransport` accepts anybody
                )
                remote = secured.get_remote_peer()
                muxed_conn = await self.upgrader.upgrade_connection(secured, remote)
                _yamux(muxed_conn).path = path
                return await self.add_conn(muxed_conn, direction="outbound")
            except BaseException:
                with trio.CancelScope(shield=True):
                    try:
                        if muxed_conn is not None:
                            await muxed_conn.close()
                    finally:
                        await raw_conn.close()
                raise

    async def answers_at(self, peer_id: ID, host: str, port: int) -> bool:
        """Dials an address from a fresh port; says whether that peer answers. No connection stays.

        Raises:
            OSError: the kernel's reason why nothing answers.
        """
        raw_conn = await self.tcp.dial_afresh(host, port)
        try:
            await self.upgrader.security_multistream.secure_outbound(raw_conn, peer_id)
        except Exception as error:
            logger.debug("%s does not answer at %s:%d: %s", peer_id, host, port, why(error))
            return False
        finally:
            with trio.CancelScope(shield=True):
                await raw_conn.close()
        return True

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        """Take a connection in, unless its peer or its address may not have it.

        Symptom: py-libp2p enters a connection in its books and tells its listeners afterwards. A
        task that looks for the connection sees it in between and cancels the dial, which then
        closes the connection that it has made. So a dial that is cancelled here ends first.
        """
        yamux = _yamux(muxed_conn)
        reason = self._why_not(yamux, direction)
        if reason is None and direction == "inbound":
            reason = self._take_place(yamux)
        if reason is not None:
            await yamux.close()
            raise SwarmException(reason)
        yamux.on_violation = partial(self._note_violation, yamux.peer_id)
        yamux.on_ending = self._peers_changed
        yamux.turn = partial(self._turn_of_stream, yamux)
        yamux.small_frames.turn = partial(self._turn_of_frames, yamux)
        yamux.on_received = self._unread.came
        yamux.was_dialled = direction == "outbound"
        carrier = yamux.secured_conn.carrier
        if isinstance(carrier, CircuitEnd):
            yamux.path = carrier.path
        elif self.is_crossing(yamux.peer_id):
            # Before it is in the books, where the crossing sees it and ends.
            yamux.path = Path("crossed")
        num_places = int(direction == "inbound")
        self._num_arriving += num_places
        try:
            with trio.CancelScope(shield=True), trio.fail_after(ENTRY_SECONDS_MAX):
                connection = await super().add_conn(yamux, direction)
                if self.refusals.is_banned(yamux.peer_id):
                    # The ban came meanwhile, and ended only what was in the books.
                    await connection.close()
                    raise SwarmException("this peer is banned here for a while")
        finally:
            self._num_arriving -= num_places
            self._peers_changed()
        self.on_connected(connection)
        return connection

    async def _turn_of_stream(self, connection: YamuxConnection) -> None:
        """Return when a stream that a peer has opened may be served.

        Symptom: py-libp2p serves streams as fast as they come, and many identities, each within
        the rate of a connection, take all of a processor.
        """
        if self._is_stranger(connection.peer_id):
            await self._turns.turn(network_of(host_behind(connection)))

    async def _turn_of_frames(self, connection: YamuxConnection, num_frames: float) -> None:
        """Return when a peer that has sent so many small frames may send more."""
        if self._is_stranger(connection.peer_id):
            await self._frames.turn(network_of(host_behind(connection)), num_frames)

    def _is_stranger(self, peer_id: ID) -> bool:
        return self.rank_of(peer_id) < Rank.IN_RING

    def remove_conn(self, swarm_conn: SwarmConn) -> None:
        """Take a connection out of the books."""
        super().remove_conn(swarm_conn)
        self._peers_changed()

    def pairs_of(self, peer: ID | None = None) -> list[tuple[INetConn, YamuxConnection]]:
        """The connections to a peer that are in the books, or all of them, each with what it is
        multiplexed by."""
        return [(each, _yamux(each.muxed_conn)) for each in self.get_connections(peer)]

    def connected(self) -> list[tuple[PeerId, ID]]:
        """The peers with a connection that has not ended, strangers among them, sorted.

        The list is kept until a connection begins or ends: several questions a second read it, and
        more the more peers there are.
        """
        if self._connected is None:
            self._connected = sorted(
                (peer_id_of(peer), peer)
                for peer, connections in self.connections.items()
                if any(not connection.is_closed for connection in connections)
            )
        return self._connected

    def _peers_changed(self) -> None:
        self._connected = None
        self.on_peers_changed()

    async def _notify(self, method: str, *args: Any) -> None:
        """Tell the listeners of connections and of addresses, and not of each stream.

        Symptom: py-libp2p runs a nursery with a task for each of its three listeners when a stream
        opens, and twice when one ends, and none of the three does anything then. That was an eighth
        of the processor time of a node that waits.
        """
        if method not in ("opened_stream", "closed_stream"):
            await super()._notify(method, *args)

    def _why_not(self, connection: YamuxConnection, direction: str) -> str | None:
        """Why a connection is refused; None if it is not."""
        peer_id = connection.peer_id
        try:
            public_key_of(PeerId(peer_id.to_base58()))
        except MalformedError as error:
            return str(error)
        arriving = connection.secured_conn.raw_conn
        host = host_behind(connection)
        reason = None
        if self.refusals.is_banned(peer_id):
            reason = "this peer is banned here for a while"
        elif direction == "inbound" and self._is_refused(peer_id, host):
            reason = "its network is banned here for a while"
        if reason is not None and isinstance(arriving, ArrivingConnection):
            arriving.is_refused = True
        elif host:
            self.refusals.came_from(peer_id, host)
            if self.is_expected(peer_id):
                self.newcomers.know(network_of(host))
        return reason

    def _is_refused(self, peer_id: ID | None, host: str) -> bool:
        """Returns whether a peer that is not expected would come from a network that is banned."""
        is_expected = peer_id is not None and self.is_expected(peer_id)
        return not is_expected and self.refusals.is_network_banned(host)

    def _take_place(self, newcomer: YamuxConnection) -> str | None:
        """Ends a connection for a newcomer if need be; says why there is no place for it."""
        places_max = inbound_max(self.connection_config.max_connections) - self._num_arriving
        try:
            connection = giving_way(newcomer, self.pairs_of(), self.rank_of, places_max)
        except NoPlaceError as error:
            return str(error)
        if connection is not None:
            logger.info(
                "places are short: the connection of %s ends", connection.muxed_conn.peer_id
            )
            self.remove_conn(connection)  # type: ignore[arg-type]  # the place is free at once
            assert self.background_nursery is not None
            self.background_nursery.start_soon(connection.close)
        return None

    def _note_violation(self, peer_id: ID, problem: str) -> None:
        self.on_violation(peer_id, RemoteProtocolError(problem))

    async def listen_or_raise(self, maddr: Multiaddr) -> None:
        """Listen on one address.

        Symptom: `Swarm.listen` answers False for an address in use and says nothing.

        Raises:
            ListenError: names the address and the reason.
        """
        await self.event_background_nursery_created.wait()
        assert self.background_nursery is not None
        try:
            listener = self.tcp.listen(maddr, self.serve, self.newcomers.may_come)
        except OSError as error:
            raise ListenError(
                f"cannot listen on {maddr}: {error.strerror or error}. "
                f"{bind_remedy(error, '--listen')}"
            ) from error
        self.background_nursery.start_soon(listener.serve)
        self.listeners[str(maddr)] = listener  # type: ignore[assignment]  # it listens already


def _yamux(connection: IMuxedConn) -> YamuxConnection:
    assert isinstance(connection, YamuxConnection), "`GuardedMuxer` makes no others"
    return connection


def _origin_of(carrier: ReadWriteCloser) -> str:
    """The IP address from which a connection comes; the relay that carries a circuit."""
    if isinstance(carrier, CircuitEnd):
        return f"relay {carrier.path.relay}"
    return host_behind(carrier)
