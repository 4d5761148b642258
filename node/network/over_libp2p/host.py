"""Opens the real network: py-libp2p's host with this project's guards, and its listeners."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.tools.anyio_service.context import background_trio_service
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.rate_limit import NO_LIMITS, Limits
from gossamer.node.network.dial_guard import DialGuard
from gossamer.node.network.dial_rules import IPNetwork
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.addresses import (
    host_and_port,
    host_of,
    parse_address,
    parse_listen_address,
    port_of,
    with_port,
)
from gossamer.node.network.over_libp2p.gossip.pubsub import new_gossip
from gossamer.node.network.over_libp2p.guards import GuardedSwarm
from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.over_libp2p.nat_traversal.own_addresses import OwnAddresses
from gossamer.node.network.over_libp2p.negotiation import GuardedHost, GuardedMuxer, guard_selector
from gossamer.node.network.over_libp2p.noise.noise import FastNoiseTransport
from gossamer.node.network.over_libp2p.tcp.tcp import PortReusingTcp
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.transport import ListenError

# A ring has at most 256 members; the rest is for newcomers and observers.
CONNECTIONS_MAX = 400
# Both sides may dial at once; more than two of one peer are leftovers.
CONNECTIONS_PER_PEER_MAX = 3

# A machine without IPv6, or with it switched off, says one of these to a wildcard address.
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


@asynccontextmanager
async def open_libp2p_transport(
    identity: Identity,
    listen: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",),
    *,
    announced: Sequence[str] = (),
    typed: Sequence[str] = (),
    networks: Sequence[IPNetwork] = (),
    port: int = 0,
    limits: Limits = NO_LIMITS,
    awake: AwakeClock | None = None,
    connections_max: int = CONNECTIONS_MAX,
) -> AsyncIterator[Libp2pTransport]:
    """Run a node's network until the block ends.

    Args:
        identity: our key.
        listen: multiaddrs; port 0 lets the kernel choose. A family that this machine does not have
            is left out if there is another address.
        port: is tried first in the place of port 0.
        announced: addresses, without a peer id, that others are told first.
        typed: addresses of peers that the owner of this machine gave, now or in an earlier life.
            They are dialled whatever they are, those of `Transport.connect` too.
        networks: private ones, besides the interfaces' own, whose addresses peers may announce.
        limits: of all connections together.
        awake: a clock that runs. Without it a stop of this process counts as the peers' silence.
        connections_max: to all peers together, both directions.

    Raises:
        ListenError: an address is malformed, not ours or in use; nothing is left open then.
    """
    listen_addresses = [parse_listen_address(address) for address in listen]
    liveness = Liveness(awake or AwakeClock())
    host, swarm = _new_host(identity, liveness, connections_max, limits)
    pubsub, router = new_gossip(host)
    failure: Exception | None = None  # ours or the caller's, raised outside all nurseries
    async with host.run([]):
        try:
            await _listen(swarm, listen_addresses, port)
            async with (
                background_trio_service(pubsub),
                background_trio_service(router),
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(liveness.run)
                await pubsub.wait_until_ready()
                own = OwnAddresses(host, announced, networks)
                guard = _guard_for(typed)
                try:
                    yield Libp2pTransport(host, swarm, pubsub, nursery, own, guard, liveness)
                except Exception as error:
                    failure = error
                nursery.cancel_scope.cancel()
        except ListenError as error:
            failure = error
        finally:
            with trio.CancelScope(shield=True):
                await host.close()  # leaving run() alone leaves sockets open
    if failure is not None:
        raise failure


def _guard_for(typed: Sequence[str]) -> DialGuard:
    """Returns a guard that lets the addresses pass which the owner of this machine gave."""
    guard = DialGuard(trio.current_time)
    for each in typed:
        guard.note_typed(*host_and_port(parse_address(each)[0]))
    return guard


async def _listen(swarm: GuardedSwarm, addresses: Sequence[Multiaddr], port: int) -> None:
    """Listens on all addresses. Those that leave the port open get the same one.

    Raises:
        ListenError: an address cannot be used.
    """
    missing: list[ListenError] = []
    for address in addresses:
        bound = with_port(address, port) if port and port_of(address) == 0 else address
        try:
            await swarm.listen_or_raise(bound)
        except ListenError as error:
            cause = error.__cause__
            is_wildcard = host_of(address) in ("0.0.0.0", "::")
            if is_wildcard and isinstance(cause, OSError) and cause.errno in _NO_SUCH_FAMILY:
                missing.append(error)
                continue
            if bound == address:
                raise
            await swarm.listen_or_raise(address)  # another program has the port by now
        port = port or swarm.tcp.ports()[0]
    if missing and len(missing) == len(addresses):
        raise missing[0]


def _new_host(
    identity: Identity, liveness: Liveness, connections_max: int, limits: Limits
) -> tuple[GuardedHost, GuardedSwarm]:
    """py-libp2p's host with this project's guards."""
    key_pair = create_new_key_pair(identity.private_bytes())
    noise_key = create_new_x25519_key_pair().private_key
    peer = ID.from_pubkey(key_pair.public_key)
    peerstore = PeerStore()
    peerstore.add_key_pair(peer, key_pair)
    # Noise only: py-libp2p's default also accepts plaintext, where anybody can claim any peer id.
    noise = FastNoiseTransport(key_pair, noise_privkey=noise_key)
    noise.limits = limits
    upgrader = TransportUpgrader({NOISE_PROTOCOL: noise}, {})
    upgrader.muxer_multistream = GuardedMuxer(liveness)
    guard_selector(upgrader.security_multistream._selector)
    swarm = GuardedSwarm(
        PortReusingTcp(),
        peer,
        peerstore,
        upgrader,
        retry_config=RetryConfig(max_retries=0),
        connection_config=ConnectionConfig(
            max_connections=connections_max,
            max_connections_per_peer=CONNECTIONS_PER_PEER_MAX,
            # The node decides to which peers it connects: no dialling and no pruning by libp2p.
            min_connections=0,
            low_watermark=0,
            high_watermark=connections_max,
        ),
    )
    return GuardedHost(swarm), swarm
