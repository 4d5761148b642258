"""The addresses of this node: those of its interfaces, and those that others see (libp2p identify,
version 1.0.0)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

import trio
from google.protobuf.message import DecodeError
from libp2p.host.basic_host import BasicHost
from libp2p.identity.identify.identify import ID as IDENTIFY_PROTOCOL
from libp2p.identity.identify.pb.identify_pb2 import Identify
from multiaddr import Multiaddr

from gossamer.node.network.dial_rules import IPNetwork, address_of, is_loopback, is_private
from gossamer.node.network.over_libp2p.addresses import (
    dialable,
    endpoint_of,
    host_of,
    interface_networks,
    peer_id_of,
    port_of,
)
from gossamer.node.network.over_libp2p.delimited import read_delimited
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.reachability import Endpoint, Neighbourhood, Reachability
from gossamer.node.network.transport import ORDINARY_ENDS, Stream
from gossamer.protocol.errors import MalformedError

logger = logging.getLogger(__name__)

IDENTIFY = str(IDENTIFY_PROTOCOL)

ANSWER_SECONDS_MAX = 10.0
"""Two round trips, at a peer that may be busy."""

ANSWER_BYTES_MAX = 16 * 1024
"""An answer has a key, some addresses and protocol names: about 1 KiB."""


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
        router, global, seen by others, and those of this network.

        Loopback is among them only where there is nothing else. With one version of IP alone most
        machines have loopback of the other one, and its address leads everybody to themselves.
        """
        bound = [a for each in self._host.get_transport_addrs() for a in dialable(each)]
        bound = [a for a in bound if not is_loopback(host_of(Multiaddr(a)))] or bound
        if bound != self._bound:
            if self._bound:
                self.reachability.moved()
            self._bound = bound
        seen = [each.address for each in self.reachability.addresses()]
        private = [address for address in bound if is_private(host_of(Multiaddr(address)))]
        public = [address for address in bound if address not in private]
        return list(dict.fromkeys((*self._announced, *self.mapped, *public, *seen, *private)))

    def note_mapping(self, mapping: Endpoint | None) -> None:
        """A router forwards a port to this node, or does not any more."""
        self.mapped = () if mapping is None else (mapping.address,)

    def interfaces(self) -> list[Endpoint]:
        """The addresses of this machine's interfaces on which the node listens, without loopback
        and bridges of containers."""
        found = []
        for bound in self._host.get_transport_addrs():
            hosts = (host_of(Multiaddr(address)) for address in dialable(bound))
            found += [Endpoint(host, port_of(bound)) for host in hosts if not is_loopback(host)]
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

    async def learn(
        self, connection: YamuxConnection, open_stream: Callable[[str], Awaitable[Stream]]
    ) -> None:
        """Learns from a new connection whether this node can be dialled, and where others see it.

        A connection that this node dialled from another port than its listeners' shows nothing.

        Args:
            open_stream: opens a stream of a protocol on that connection.
        """
        peer, remote = peer_id_of(connection.peer_id), connection.get_remote_address()
        if remote is None:
            return
        try:
            local_port = connection.secured_conn.socket.getsockname()[1]
        except OSError:
            return  # the connection has ended
        if local_port not in self._listening_ports():
            return
        if not connection.was_dialled:
            if connection.path.kind == "direct":
                self.reachability.dialled_in(peer, remote[0])
            return
        try:
            stream = await open_stream(IDENTIFY)
            try:
                seen = await ask_observed(stream)
            finally:
                await stream.reset()
        except ORDINARY_ENDS as error:
            logger.debug("peer %s does not say where it sees this node: %s", peer, error)
            return
        if seen is not None:
            self.reachability.saw(peer, remote[0], seen)

    def _listening_ports(self) -> Collection[int]:
        return {port_of(bound) for bound in self._host.get_transport_addrs()}


async def ask_observed(stream: Stream) -> Endpoint | None:
    """The address that the other end sees; None if it does not say one.

    Raises:
        RemoteProtocolError: the answer is not one.
        StreamClosed: the stream ended before.
        trio.TooSlowError: no answer in `ANSWER_SECONDS_MAX`.
    """
    with trio.fail_after(ANSWER_SECONDS_MAX):
        data = await read_delimited(stream.receive_exactly, ANSWER_BYTES_MAX, "an identify answer")
    answer = Identify()
    try:
        answer.ParseFromString(data)
    except DecodeError as error:
        raise MalformedError(f"not an identify answer: {error}") from None
    return endpoint_of(answer.observed_addr)
