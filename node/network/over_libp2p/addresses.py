"""Multiaddrs, peer ids and py-libp2p's errors, as people see them."""

from __future__ import annotations

import functools
import ipaddress
import socket
from contextlib import suppress
from typing import Any

import psutil
import trio
from libp2p.peer.id import ID
from libp2p.protocol_muxer.exceptions import MultiselectError
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr

from gossamer.node.network.dial_rules import IPNetwork, is_private
from gossamer.node.network.reachability import Endpoint
from gossamer.node.network.transport import ConnectError, ListenError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import ADDRESS_CHARACTERS_MAX

_HOST_PROTOCOLS = ("ip4", "ip6", "dns", "dns4", "dns6")


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


def parse_listen_address(address: str) -> Multiaddr:
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


_BRIDGES = ("docker", "br-", "veth", "virbr", "cni", "flannel", "podman", "lxc", "lxd", "vmnet")
"""Names of interfaces that lead to this machine's own containers, where no other peer is."""


def dialable(bound: Multiaddr) -> list[str]:
    """`bound`, or for a wildcard the machine's addresses, global ones first.

    Bridges of containers are left out. Loopback stands only where there is no other address.
    """
    kind = bound.protocols()[0].name
    if not ipaddress.ip_address(host_of(bound)).is_unspecified:
        return [str(bound)]
    hosts = interface_hosts(socket.AF_INET if kind == "ip4" else socket.AF_INET6)
    return [f"/{kind}/{host}/tcp/{port_of(bound)}" for host in hosts]


_LAST: dict[str, list[Any]] = {}
"""What the system said last of its interfaces."""


def _interfaces() -> dict[str, list[Any]]:
    """The addresses of each interface, without those to this machine's own containers.

    A process without a free file cannot ask for them. It has its addresses all the same.
    """
    with suppress(OSError):
        found = psutil.net_if_addrs()
        _LAST.clear()
        _LAST.update(sorted(found.items()))
    return {name: entries for name, entries in _LAST.items() if not name.startswith(_BRIDGES)}


def interface_hosts(family: socket.AddressFamily) -> list[str]:
    """This machine's own addresses of a family, see `dialable`."""
    hosts: list[str] = []
    for entries in _interfaces().values():
        # Without a link-local IPv6 address: it means nothing without the name of an interface.
        hosts += [e.address for e in entries if e.family == family and "%" not in e.address]
    outside = [host for host in hosts if not ipaddress.ip_address(host).is_loopback]
    return sorted(outside or hosts, key=is_private)


NETWORK_BITS_MIN = {4: 8, 6: 32}
"""Bits of the widest network that counts as an interface's own, by IP version: 10.0.0.0/8 is the
largest private one. A tunnel to everywhere has no neighbours."""


def interface_networks() -> tuple[IPNetwork, ...]:
    """The networks of this machine's interfaces, without its own containers'."""
    networks: list[IPNetwork] = []
    for entries in _interfaces().values():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6) and entry.netmask:
                host, mask = entry.address.partition("%")[0], entry.netmask
                if entry.family == socket.AF_INET6:
                    mask = str(int(ipaddress.IPv6Address(mask)).bit_count())
                network = ipaddress.ip_network(f"{host}/{mask}", strict=False)
                if network.prefixlen >= NETWORK_BITS_MIN[network.version]:
                    networks.append(network)
    return tuple(networks)


def host_of(maddr: Multiaddr) -> str:
    """The IP address or the name that a TCP address begins with."""
    return str(maddr.value_for_protocol(maddr.protocols()[0].code))


def port_of(maddr: Multiaddr) -> int:
    """The TCP port of an address."""
    return int(maddr.value_for_protocol("tcp") or 0)


def host_and_port(maddr: Multiaddr) -> tuple[str, int]:
    """The IP address or name, and the TCP port of an address."""
    return host_of(maddr), port_of(maddr)


def endpoint_of(data: bytes) -> Endpoint | None:
    """The TCP endpoint of a multiaddr's bytes; None if it is none."""
    try:
        maddr = Multiaddr(data)
        kinds = [protocol.name for protocol in maddr.protocols()]
        if len(kinds) < 2 or kinds[0] not in ("ip4", "ip6") or kinds[1] != "tcp":
            return None
        host = ipaddress.ip_address(str(maddr.value_for_protocol(kinds[0])))
        port = int(maddr.value_for_protocol("tcp") or 0)
    except Exception:
        return None
    return Endpoint(str(host), port) if port else None


def with_port(maddr: Multiaddr, port: int) -> Multiaddr:
    """An address with another TCP port."""
    return Multiaddr(f"/{maddr.protocols()[0].name}/{host_of(maddr)}/tcp/{port}")


def why(error: BaseException) -> str:
    """Returns the reason of a failure for people, out of py-libp2p's chain of exceptions."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.exceptions[0] if isinstance(cause, ExceptionGroup) else cause.__cause__
    for link in chain:
        if isinstance(link, PeerIDMismatchesPubkey):
            return (
                "another peer answered there than the address names; "
                "ask for the current address (it ends in the peer's id)"
            )
        # Streams of a connection fail with this class too; then the peer is a node.
        if isinstance(link, MultiselectError) and "security protocol" in str(link):
            return (
                "what answers there does not speak as a node does; is the port right (4611 is that "
                "of the page)? A node with too many callers hangs up, too: try again in a while"
            )
        if isinstance(link, trio.TooSlowError):
            return "no answer in time; is it running, and does a firewall let it through?"
    for link in reversed(chain):
        if isinstance(link, OSError) and link.strerror:
            return f"{link.strerror}; is it running, and do address and port fit?"
    return str(error) or type(error).__name__


IDS_KEPT = 1024
"""Decoded peer ids that are kept: as many as a node remembers peers. To decode one takes 20 us, and
several questions a second name each connected peer."""


def peer_id_of(peer: ID) -> PeerId:
    return PeerId(peer.to_base58())


@functools.lru_cache(maxsize=IDS_KEPT)
def libp2p_id(peer_id: PeerId) -> ID:
    """Returns py-libp2p's form of a peer id. Raises ConnectError: it is none."""
    try:
        return ID.from_base58(peer_id)
    except ValueError:
        raise ConnectError(f"{peer_id!r} is not a peer id") from None
