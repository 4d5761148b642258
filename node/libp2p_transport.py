"""The real network: py-libp2p over TCP, noise and yamux, with gossipsub.

The only module (with its siblings `libp2p_guards`, `libp2p_noise` and `libp2p_yamux`) that knows
libp2p. Open it with `open_libp2p_transport`; everything else is `gossamer.node.transport`.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import psutil
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.stream.net_stream import NetStream
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer.exceptions import MultiselectClientError
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.pubsub.pb import rpc_pb2
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.tools.anyio_service.context import background_trio_service
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from gossamer.node.identity import Identity
from gossamer.node.libp2p_guards import (
    GuardedGossipSub,
    GuardedHost,
    GuardedMuxer,
    GuardedPubsub,
    GuardedSwarm,
    GuardedTcp,
)
from gossamer.node.libp2p_noise import FastNoiseTransport
from gossamer.node.libp2p_yamux import YamuxConnection, YamuxStream
from gossamer.node.transport import (
    Bytes,
    ConnectError,
    GossipHandler,
    ListenError,
    ProtocolRefused,
    Stream,
    StreamClosed,
    StreamHandler,
)
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import ADDRESS_CHARACTERS_MAX, GOSSIP_BYTES_MAX

logger = logging.getLogger(__name__)

# A handshake is some six round trips; 10 s leaves room for a satellite link and a lost packet.
CONNECT_SECONDS_MAX = 10.0
# Two round trips, on a peer that may be busy with a batch of bulk data.
OPEN_STREAM_SECONDS_MAX = 10.0
# How long an old connection has to prove that it lives before we dial over it.
PROBE_SECONDS_MAX = 5.0
# A ring has at most 256 members; the rest is for newcomers and observers.
CONNECTIONS_MAX = 400
# Both sides may dial at once; more than two of one peer are leftovers.
CONNECTIONS_PER_PEER_MAX = 3
# Everyone in everyone's mesh up to 200 peers: with the usual 6 to 12, hosts with more topic peers
# than the upper degree lose messages even without churn (measured: 88 of 128 in a star of 8).
GOSSIP_DEGREE, GOSSIP_DEGREE_LOW, GOSSIP_DEGREE_HIGH = 200, 100, 400
# Upstream's 120 s leave a newcomer out of the mesh for two minutes.
GOSSIP_HEARTBEAT_SECONDS = 1
GOSSIP_PROTOCOLS = ("/meshsub/1.2.0", "/meshsub/1.1.0", "/meshsub/1.0.0")
HANDLER_CLOSE_SECONDS_MAX = 5.0


class Libp2pStream:
    """One stream of py-libp2p as a `gossamer.node.transport.Stream`."""

    def __init__(self, net_stream: NetStream, muxed: YamuxStream, protocol: str) -> None:
        self._net_stream = net_stream
        self._muxed = muxed
        self._protocol = protocol
        self._peer_id = _peer_id_of(muxed.conn.peer_id)

    @property
    def peer_id(self) -> PeerId:
        """The authenticated peer."""
        return self._peer_id

    @property
    def protocol(self) -> str:
        """The negotiated protocol."""
        return self._protocol

    async def send(self, *parts: Bytes) -> None:
        """See `Stream.send`."""
        try:
            await self._muxed.send(*parts)
        except MuxedStreamError as error:
            raise self._closed(error) from None

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        """See `Stream.receive_exactly`."""
        try:
            return await self._muxed.receive_exactly(num_bytes)
        except MuxedStreamError as error:
            raise self._closed(error) from None

    async def close(self) -> None:
        """See `Stream.close`."""
        self._muxed.discard()
        await self._net_stream.close()

    async def reset(self) -> None:
        """See `Stream.reset`."""
        self._muxed.abort()
        with trio.CancelScope(shield=True):  # only bookkeeping, nothing here waits for the peer
            await self._net_stream.reset()

    def _closed(self, error: MuxedStreamError) -> StreamClosed:
        return StreamClosed(f"{self._protocol} with {self._peer_id}: {error}")


class Libp2pTransport:
    """`gossamer.node.transport.Transport` over the real network."""

    def __init__(
        self, host: GuardedHost, swarm: GuardedSwarm, pubsub: GuardedPubsub, nursery: trio.Nursery
    ) -> None:
        self._host = host
        self._swarm = swarm
        self._pubsub = pubsub
        self._nursery = nursery
        self._peer_id = _peer_id_of(host.get_id())
        self._topics: dict[str, GossipHandler] = {}
        self._traffic: dict[str, list[int]] = {}
        host.count_stream = self._count
        pubsub.on_message = self._on_gossip

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._peer_id

    def addresses(self) -> list[str]:
        """See `Transport.addresses`; a wildcard listener is spelled out per interface."""
        found: list[str] = []
        for bound in self._host.get_transport_addrs():
            for address in _dialable(bound):
                found.append(f"{address}/p2p/{self._peer_id}")
        return list(dict.fromkeys(found))

    # -- connections

    async def connect(self, address: str) -> PeerId:
        """See `Transport.connect`."""
        maddr, expected = parse_address(address)
        if expected == self._host.get_id():
            raise ConnectError(f"{address} is this node's own address; give another peer's")
        if expected is not None and await self._keep_or_drop(expected):
            return _peer_id_of(expected)
        if expected is not None and self._swarm.is_banned(expected):
            raise ConnectError(f"cannot connect to {address}: this peer is banned here for a while")
        try:
            with trio.fail_after(CONNECT_SECONDS_MAX):
                connection = await self._swarm.dial_once(maddr, expected)
        except Exception as error:
            raise ConnectError(f"cannot connect to {address}: {_why(error)}") from error
        remote: ID = connection.muxed_conn.peer_id
        if remote == self._host.get_id():
            await connection.close()
            raise ConnectError(f"{address} is this node's own address; give another peer's")
        return _peer_id_of(remote)

    async def connect_any(self, peer_id: PeerId, addresses: Sequence[str]) -> None:
        """See `Transport.connect_any`."""
        problems = []
        for address in addresses:
            _, expected = parse_address(address)
            if expected is not None and _peer_id_of(expected) != peer_id:
                problems.append(f"{address} belongs to another peer")
                continue
            whole = address if expected is not None else f"{address}/p2p/{peer_id}"
            try:
                await self.connect(whole)
            except ConnectError as error:
                problems.append(str(error))
            else:
                return
        listed = "; ".join(problems) or "no address is known"
        raise ConnectError(f"cannot reach peer {peer_id}: {listed}")

    async def _keep_or_drop(self, peer: ID) -> bool:
        """Whether a connection to `peer` lives; if none does, the dead ones are dropped.

        Gossip never recovers with a peer that is dialled while a half-open connection to it is
        still in the books.
        """
        connections = self._swarm.get_connections(peer)
        for connection in connections:
            muxed = connection.muxed_conn
            if isinstance(muxed, YamuxConnection) and muxed.is_established:
                heard_from = await muxed.answers_within(PROBE_SECONDS_MAX)
                if heard_from:
                    return True
        if connections:
            await self._drop(peer)
        return False

    async def _drop(self, peer: ID) -> None:
        async with trio.open_nursery() as nursery:
            for connection in self._swarm.get_connections(peer):
                nursery.start_soon(connection.close)

    def peers(self) -> list[PeerId]:
        """See `Transport.peers`."""
        return sorted(
            _peer_id_of(peer)
            for peer, connections in self._swarm.get_connections_map().items()
            if any(not connection.is_closed for connection in connections)
        )

    async def disconnect(self, peer_id: PeerId) -> None:
        """See `Transport.disconnect`."""
        await self._drop(_libp2p_id(peer_id))

    def ban(self, peer_id: PeerId, seconds: float) -> None:
        """See `Transport.ban`."""
        peer = _libp2p_id(peer_id)
        self._swarm.banned[peer] = trio.current_time() + seconds
        self._nursery.start_soon(self._drop, peer)

    def round_trip_seconds(self, peer_id: PeerId) -> float | None:
        """See `Transport.round_trip_seconds`."""
        for connection in self._swarm.get_connections(_libp2p_id(peer_id)):
            muxed = connection.muxed_conn
            if isinstance(muxed, YamuxConnection) and muxed.rtt() > 0:
                return muxed.rtt()
        return None

    # -- streams

    async def open_stream(self, peer_id: PeerId, protocol: str) -> Stream:
        """See `Transport.open_stream`."""
        candidates = [
            connection
            for connection in self._swarm.get_connections(_libp2p_id(peer_id))
            if isinstance(connection.muxed_conn, YamuxConnection)
            and connection.muxed_conn.is_established
        ]
        if not candidates:
            raise ConnectError(f"not connected to {peer_id}")
        what = f"stream {protocol} to {peer_id}"
        stream: NetStream | None = None
        try:
            with trio.fail_after(OPEN_STREAM_SECONDS_MAX):
                stream = await candidates[-1].new_stream()  # type: ignore[assignment]
                assert stream is not None
                await self._host.multiselect_client.select_one_of(
                    [TProtocol(protocol)],
                    MultiselectCommunicator(stream),
                    int(OPEN_STREAM_SECONDS_MAX * 2),  # the deadline above is the one that counts
                )
        except BaseException as error:
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await stream.reset()
            if isinstance(error, trio.TooSlowError):
                raise ConnectError(f"{what}: no answer in {OPEN_STREAM_SECONDS_MAX:.0f} s") from None
            if isinstance(error, MultiselectClientError) and "not supported" in str(error):
                raise ProtocolRefused(f"{what}: the peer does not speak it") from None
            if isinstance(error, Exception):
                raise ConnectError(f"{what}: {_why(error)}") from error
            raise
        stream.set_protocol(TProtocol(protocol))
        self._host.count(stream)
        assert isinstance(stream.muxed_stream, YamuxStream)
        return Libp2pStream(stream, stream.muxed_stream, protocol)

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """See `Transport.handle`."""

        async def run(net_stream: NetStream) -> None:
            assert isinstance(net_stream.muxed_stream, YamuxStream)
            self._host.count(net_stream)
            stream = Libp2pStream(net_stream, net_stream.muxed_stream, protocol)
            try:
                await handler(stream)
            except StreamClosed as error:
                logger.debug("%s", error)
                await stream.reset()
            except Exception:
                logger.exception("handler of %s failed with peer %s", protocol, stream.peer_id)
                await stream.reset()
            except BaseException:
                await stream.reset()
                raise
            else:
                with trio.move_on_after(HANDLER_CLOSE_SECONDS_MAX):
                    await stream.close()

        self._host.set_stream_handler(TProtocol(protocol), run)  # type: ignore[arg-type]

    # -- gossip

    async def publish(self, topic: str, data: bytes) -> None:
        """See `Transport.publish`."""
        if len(data) > GOSSIP_BYTES_MAX:
            raise ValueError(
                f"a gossip message has at most {GOSSIP_BYTES_MAX} bytes, not {len(data)}"
            )
        await self._pubsub.publish(topic, data)

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """See `Transport.subscribe`."""
        known = topic in self._topics
        self._topics[topic] = handler
        if not known:
            self._nursery.start_soon(self._pubsub.subscribe, topic)

    def _on_gossip(self, message: rpc_pb2.Message) -> None:
        author = ID(message.from_id)
        if author == self._host.get_id() or len(message.data) > GOSSIP_BYTES_MAX:
            return
        if self._swarm.is_banned(author):
            return
        for topic in message.topicIDs:
            handler = self._topics.get(topic)
            if handler is None:
                continue
            try:
                handler(_peer_id_of(author), message.data)
            except Exception:
                logger.exception("gossip handler of %s failed on a message of %s", topic, author)

    # -- counting

    def _count(self, protocol: str, stream: YamuxStream) -> None:
        """Let `stream` add its bytes to its protocol's sum from now on."""
        key = "gossip" if protocol.startswith("/meshsub/") else protocol
        counter = self._traffic.setdefault(key, [0, 0])
        if stream.traffic is not counter:
            stream.traffic = counter

    def traffic(self) -> dict[str, tuple[int, int]]:
        """See `Transport.traffic`."""
        return {key: (sent, received) for key, (sent, received) in sorted(self._traffic.items())}


@asynccontextmanager
async def open_libp2p_transport(
    identity: Identity,
    listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",),
    *,
    connections_max: int = CONNECTIONS_MAX,
) -> AsyncIterator[Libp2pTransport]:
    """Run a node's network until the block ends.

    Args:
        identity: our key.
        listen: multiaddrs; port 0 lets the kernel choose.
        connections_max: to all peers together, both directions.

    Raises:
        ListenError: an address is malformed, not ours or in use; nothing is left open then.
    """
    listen_addresses = [_parse_listen(address) for address in listen]
    key_pair = create_new_key_pair(identity.private_bytes())
    noise_key = create_new_x25519_key_pair().private_key
    peer = ID.from_pubkey(key_pair.public_key)
    peerstore = PeerStore()
    peerstore.add_key_pair(peer, key_pair)
    # Noise only: py-libp2p's default also accepts plaintext, where anybody can claim any peer id.
    upgrader = TransportUpgrader(
        {NOISE_PROTOCOL: FastNoiseTransport(key_pair, noise_privkey=noise_key)},
        {TProtocol(YAMUX_PROTOCOL): Yamux},
    )
    upgrader.muxer_multistream = GuardedMuxer({TProtocol(YAMUX_PROTOCOL): Yamux})
    swarm = GuardedSwarm(
        peer,
        peerstore,
        upgrader,
        transports=[GuardedTcp()],
        retry_config=RetryConfig(max_retries=0),
        connection_config=ConnectionConfig(
            max_connections=connections_max,
            max_connections_per_peer=CONNECTIONS_PER_PEER_MAX,
            # Whom to connect to is the node's decision: no dialling and no pruning by libp2p.
            min_connections=0,
            low_watermark=0,
            high_watermark=connections_max,
        ),
    )
    host = GuardedHost(swarm, disable_identify_address_discovery=True)
    router = GuardedGossipSub(
        [TProtocol(protocol) for protocol in GOSSIP_PROTOCOLS],
        degree=GOSSIP_DEGREE,
        degree_low=GOSSIP_DEGREE_LOW,
        degree_high=GOSSIP_DEGREE_HIGH,
        heartbeat_interval=GOSSIP_HEARTBEAT_SECONDS,
        adaptive_gossip_enabled=False,
        spam_protection_enabled=False,
        eclipse_protection_enabled=False,
    )
    pubsub = GuardedPubsub(host, router)
    # Message ids are author and counter: after a restart within 120 s a counter that begins again
    # would make everything we say look like a repetition.
    pubsub.counter = time.time_ns()
    async with host.run([]):
        try:
            for address in listen_addresses:
                await swarm.listen_or_raise(address)
            async with (
                background_trio_service(pubsub),
                background_trio_service(router),
                trio.open_nursery() as nursery,
            ):
                await pubsub.wait_until_ready()
                yield Libp2pTransport(host, swarm, pubsub, nursery)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await host.close()  # leaving run() alone leaves sockets open


def parse_address(address: str) -> tuple[Multiaddr, ID | None]:
    """A full multiaddr's TCP part and the peer id at its end, if it has one.

    Raises:
        ConnectError: not a multiaddr that we can dial.
    """
    hint = "expected /ip4/HOST/tcp/PORT/p2p/PEER_ID"
    if len(address) > ADDRESS_CHARACTERS_MAX:
        raise ConnectError(f"an address of {len(address)} characters is not one of ours; {hint}")
    try:
        maddr = Multiaddr(address)
        names = [protocol.name for protocol in maddr.protocols()]
        peer = None
        if names[-1] == "p2p":
            text = str(maddr.value_for_protocol("p2p"))
            peer = ID.from_base58(text)
            maddr = maddr.decapsulate(Multiaddr(f"/p2p/{text}"))
            names.pop()
    except Exception as error:
        raise ConnectError(f"{address!r} is not a multiaddr ({error}); {hint}") from None
    if len(names) != 2 or names[0] not in _HOST_PROTOCOLS or names[1] != "tcp":
        raise ConnectError(f"{address!r} is not a TCP address; {hint}")
    return maddr, peer


_HOST_PROTOCOLS = ("ip4", "ip6", "dns", "dns4", "dns6")


def _parse_listen(address: str) -> Multiaddr:
    try:
        maddr = Multiaddr(address)
        names = [protocol.name for protocol in maddr.protocols()]
    except Exception as error:
        raise ListenError(
            f"{address!r} is not a multiaddr ({error}); expected /ip4/0.0.0.0/tcp/PORT"
        ) from None
    if len(names) != 2 or names[0] not in ("ip4", "ip6") or names[1] != "tcp":
        raise ListenError(f"cannot listen on {address!r}; expected /ip4/0.0.0.0/tcp/PORT")
    return maddr


def _dialable(bound: Multiaddr) -> list[str]:
    """`bound`, or for a wildcard the machine's addresses, loopback only when there is no other."""
    kind, port = bound.protocols()[0].name, bound.value_for_protocol("tcp")
    host = ipaddress.ip_address(str(bound.value_for_protocol(kind)))
    if not host.is_unspecified:
        return [str(bound)]
    family = socket.AF_INET if kind == "ip4" else socket.AF_INET6
    hosts = []
    for _, entries in sorted(psutil.net_if_addrs().items()):
        for entry in entries:
            if entry.family == family and "%" not in entry.address:  # not link-local IPv6
                hosts.append(ipaddress.ip_address(entry.address))
    outside = [host for host in hosts if not host.is_loopback]
    return [f"/{kind}/{host}/tcp/{port}" for host in outside or hosts]


def _why(error: BaseException) -> str:
    """What went wrong, for people, out of py-libp2p's chain of exceptions."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    for link in chain:
        if isinstance(link, PeerIDMismatchesPubkey):
            return (
                "another peer answered there than the address names; "
                "ask for the current address (it ends in the peer's id)"
            )
        if isinstance(link, trio.TooSlowError):
            return f"no answer in {CONNECT_SECONDS_MAX:.0f} s; is it running and reachable?"
    for link in reversed(chain):
        if isinstance(link, OSError) and link.strerror:
            return f"{link.strerror}; is it running, and do address and port fit?"
    return str(error) or type(error).__name__


def _peer_id_of(peer: ID) -> PeerId:
    return PeerId(peer.to_base58())


def _libp2p_id(peer_id: PeerId) -> ID:
    with suppress(ValueError):
        return ID.from_base58(peer_id)
    raise ConnectError(f"{peer_id!r} is not a peer id")
