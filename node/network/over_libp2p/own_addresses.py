"""The addresses of this node: those of its interfaces, and those that others see."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from libp2p.host.basic_host import BasicHost
from multiaddr import Multiaddr

from gossamer.node.network.dial_rules import (
    IPNetwork,
    address_of,
    is_loopback,
    is_private,
)
from gossamer.node.network.over_libp2p.addresses import (
    dialable,
    host_of,
    interface_networks,
    peer_id_of,
)
from gossamer.node.network.over_libp2p.identify import PROTOCOL, ask_observed
from gossamer.node.network.over_libp2p.noise import socket_of
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.port_mapping import Mapping
from gossamer.node.network.reachability import Endpoint, Neighbourhood, Reachability
from gossamer.node.network.transport import ORDINARY_ENDS, Stream

logger = logging.getLogger(__name__)

OpenStream = Callable[[str], Awaitable[Stream]]
"""Opens a stream of a protocol on one connection."""


class OwnAddresses:
    """The addresses of this node that it can tell others."""

    def __init__(
        self, host: BasicHost, announced: Sequence[str], networks: Sequence[IPNetwork] = ()
    ) -> None:
        """
        Args:
            announced: addresses that the operator names, without a peer id. They come first.
            networks: private networks that the operator names besides those of the interfaces.
        """
        self._host = host
        self._networks = tuple(networks)
        self._announced = tuple(announced)
        self._bound: list[str] = []
        """Addresses of the interfaces, when they were last looked at."""
        self.mapped: tuple[str, ...] = ()
        """Addresses at which a router forwards a port to this node."""
        self.reachability = Reachability()

    def all(self) -> list[str]:
        """Addresses to be dialled, the most promising first: named by the operator, mapped at the
        router, global, seen by others, and those of this network."""
        bound = [a for each in self._host.get_transport_addrs() for a in dialable(each)]
        if bound != self._bound:
            if self._bound:
                self.reachability.moved()
            self._bound = bound
        seen = [each.address for each in self.reachability.addresses()]
        private = [address for address in bound if is_private(host_of(Multiaddr(address)))]
        public = [address for address in bound if address not in private]
        return list(dict.fromkeys((*self._announced, *self.mapped, *public, *seen, *private)))

    def note_mapping(self, mapping: Mapping | None) -> None:
        """A router forwards a port to this node, or does not any more."""
        self.mapped = () if mapping is None else (mapping.address,)

    def interfaces(self) -> list[Endpoint]:
        """The addresses of this machine's interfaces on which the node listens, without loopback
        and bridges of containers."""
        found = []
        for bound in self._host.get_transport_addrs():
            port = int(bound.value_for_protocol("tcp") or 0)
            hosts = (host_of(Multiaddr(address)) for address in dialable(bound))
            found += [Endpoint(host, port) for host in hosts if not is_loopback(host)]
        return found

    def outer(self) -> list[Endpoint]:
        """Addresses for a crossing: what any observer sees, and what is global by itself."""
        seen = self.reachability.candidates()
        seen += [each for each in self.interfaces() if not is_private(each.host)]
        return list(dict.fromkeys(seen))

    def neighbourhood(self) -> Neighbourhood:
        """The networks that this machine is in."""
        hosts = [host_of(Multiaddr(address)) for address in self.all()]
        outer = {host for host in hosts if address_of(host) and not is_private(host)}
        return Neighbourhood(
            frozenset(outer | self.reachability.hosts),
            (*interface_networks(), *self._networks),
            is_on_loopback=bool(hosts) and all(map(is_loopback, hosts)),
        )

    async def learn(self, connection: YamuxConnection, open_stream: OpenStream) -> None:
        """Learns from a new connection whether this node can be dialled, and where others see it.

        A connection that this node dialled from another port than its listeners' shows nothing.
        """
        peer, remote = peer_id_of(connection.peer_id), connection.get_remote_address()
        raw_socket = socket_of(connection)
        if remote is None or raw_socket is None:
            return
        try:
            local_port = raw_socket.getsockname()[1]
        except OSError:
            return  # the connection has ended
        if local_port not in self._listening_ports():
            return
        if not connection.was_dialled:
            if connection.path.kind == "direct":
                self.reachability.dialled_in(peer, remote[0])
            return
        try:
            stream = await open_stream(PROTOCOL)
            try:
                seen = await ask_observed(stream)
            finally:
                await stream.reset()
        except ORDINARY_ENDS as error:
            logger.debug("peer %s does not say where it sees this node: %s", peer, error)
            return
        if seen is not None:
            self.reachability.saw(peer, remote[0], seen)

    def _listening_ports(self) -> set[int]:
        bound = self._host.get_transport_addrs()
        return {int(address.value_for_protocol("tcp") or 0) for address in bound}
