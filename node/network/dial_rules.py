"""The addresses that a peer may make this node dial.

A peer tells where it and others can be dialled, and may tell anything. Without rules it could make
this node knock at a database on loopback, at a machine of the owner's other networks, or at the
address from which a cloud machine gets its keys. The rules are for addresses that come from peers.
An address that the owner of this machine typed is dialled whatever it is.

- Addresses that name no machine, or none without the name of an interface, are never dialled:
  unspecified, multicast, reserved and IPv6 link-local ones. Neither are metadata services.
- Loopback is dialled only by a node that is on loopback itself, as in a demo or a test.
- Private addresses are dialled only in the networks of this machine's interfaces, and in those that
  the owner names in addition.
- An IPv6 address that holds an IPv4 address is judged by that one too, because the packets go there
  (mapped, compatible, 6to4, NAT64, Teredo, ISATAP).
- A name is judged by what it resolves to, at every dial anew.

This module does no I/O.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(*texts: str) -> tuple[IPNetwork, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


_LOOPBACK = _networks("127.0.0.0/8", "::1/128")

_PRIVATE = _networks(
    "10.0.0.0/8",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "64:ff9b:1::/48",
    "fc00::/7",
    "fec0::/10",
)
"""Networks whose addresses mean something in one home or data centre only (RFC 1918, 3879, 3927,
4193, 6598, 6890, 8215)."""

_NO_MACHINE = _networks(
    "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "::/128", "fe80::/10", "ff00::/8"
)
"""Unspecified, multicast and reserved addresses, broadcast, and link-local ones of IPv6."""

_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # Amazon, Google, Microsoft, Oracle, OpenStack and many others
        "169.254.169.253",  # Amazon's resolver
        "169.254.169.123",  # Amazon's clock
        "169.254.170.2",  # credentials of Amazon's containers
        "169.254.170.23",  # credentials of Amazon's pods
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Microsoft, a global address that each machine sees as its host
        "192.0.0.192",  # Oracle's first cloud
        "fd00:ec2::254",  # Amazon
        "fd00:ec2::253",
        "fd00:ec2::123",
        "fd00:ec2::23",
        "fd20:ce::254",  # Google
        "fd00:c1::a9fe:a9fe",  # Oracle
        "fd00:42::42",  # Scaleway
    )
)
"""Services that give a cloud machine its keys, as their owners document them."""

_COMPATIBLE = ipaddress.IPv6Network("::/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = 0x0000_5EFE
_ISATAP_MASK = 0xFDFF_FFFF  # without the bit that says whether the IPv4 address is unique
_IPV4_BITS = 32
_IPV4_MASK = 2**_IPV4_BITS - 1


def address_of(host: str) -> IPAddress | None:
    """The IP address that a host is written as, without a zone; None for a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def destinations(address: IPAddress) -> tuple[IPAddress, ...]:
    """The address itself, and the IPv4 addresses in it to which its packets may go, the last one
    being the machine's (RFC 4291, 3056, 6052, 4380, 5214)."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address, address.ipv4_mapped)
    if address.sixtofour is not None:
        return (address, address.sixtofour)
    if address.teredo is not None:
        return (address, *address.teredo)
    low = ipaddress.IPv4Address(int(address) & _IPV4_MASK)
    if address in _NAT64 or (address in _COMPATIBLE and int(low) > 1):
        return (address, low)
    if int(address) >> _IPV4_BITS & _ISATAP_MASK == _ISATAP:
        return (address, low)
    return (address,)


def _is_in(address: IPAddress, networks: Iterable[IPNetwork]) -> bool:
    return any(network.version == address.version and address in network for network in networks)


def is_loopback(host: str) -> bool:
    """Returns whether a host is an IP address of the machine itself."""
    address = address_of(host)
    return address is not None and any(_is_in(each, _LOOPBACK) for each in destinations(address))


def is_private(host: str) -> bool:
    """Returns whether an IP address has a meaning in its own network only.

    Raises:
        ValueError: the host is a name.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    return any(
        _is_in(each, (*_LOOPBACK, *_PRIVATE, *_NO_MACHINE)) or each in _METADATA
        for each in destinations(address)
    )


def is_near(host: str, networks: Iterable[IPNetwork]) -> bool:
    """Returns whether a host is an IP address in one of these networks, or of loopback."""
    address = address_of(host)
    return address is not None and _is_in(destinations(address)[-1], (*_LOOPBACK, *networks))


def why_not_dialled(host: str, networks: Iterable[IPNetwork], *, is_on_loopback: bool) -> str:
    """The reason why a peer may not make this node dial a host; empty if it may.

    Args:
        host: an IP address, or a name, which is judged when it is resolved.
        networks: of this machine's interfaces, and those that its owner names.
        is_on_loopback: whether this node has no other addresses than loopback ones.
    """
    address = address_of(host)
    if address is None:
        return ""
    own = tuple(networks)
    for each in destinations(address):
        reason = _why_not(each, own, is_on_loopback)
        if reason:
            return reason
    return ""


def _why_not(address: IPAddress, own: tuple[IPNetwork, ...], is_on_loopback: bool) -> str:
    if address in _METADATA:
        return f"{address} is the metadata service of a cloud"
    if _is_in(address, _NO_MACHINE):
        return f"{address} is no address of a single machine"
    if _is_in(address, _LOOPBACK):
        return "" if is_on_loopback else f"{address} is this machine itself"
    if _is_in(address, _PRIVATE) and not _is_in(address, own):
        return f"{address} is private, and in no network of this machine"
    return ""
