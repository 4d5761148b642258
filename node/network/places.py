"""The places for connections that others open: few for one network, and none for good.

Identities cost nothing, and an idle connection costs its owner next to nothing. Addresses of many
networks are dear. So a newcomer that finds no place takes the one of a stranger, from the network
whose strangers have the most places. Members keep theirs.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

NETWORK_BITS = {4: 24, 6: 64}
"""Bits of an address that its owner usually cannot choose, by IP version: a household or a small
data centre has one IPv4 network of this size, and one IPv6 network."""

CONNECTIONS_PER_NETWORK_MAX = 128
"""Connections from one network: a machine full of daemons, or a laboratory."""

OUTBOUND_SHARE = 6
"""One in so many places is kept for connections that this node opens."""


def network_of(host: str) -> str:
    """The network that an IP address belongs to; another text stands for itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    address = address if mapped is None else mapped
    return str(ipaddress.ip_network((address, NETWORK_BITS[address.version]), strict=False))


def inbound_max(connections_max: int) -> int:
    """Places for connections that others open."""
    return max(1, connections_max - connections_max // OUTBOUND_SHARE)


@dataclass(frozen=True)
class Place:
    """One connection that another peer has opened."""

    network: str
    is_member: bool


class NoPlaceError(Exception):
    """A newcomer's connection is refused; the text says why."""


def place_to_free(taken: Sequence[Place], network: str, places_max: int) -> int | None:
    """The place that a newcomer takes, as an index; None if there is a free one.

    Args:
        taken: the places, the oldest connection first.
        network: the newcomer's.

    Raises:
        NoPlaceError: members have all places that the newcomer could take.
    """
    in_network = sum(place.network == network for place in taken)
    if in_network >= CONNECTIONS_PER_NETWORK_MAX:
        networks = {network}
        problem = f"there are {in_network} connections from {network} already"
    elif len(taken) >= places_max:
        strangers = Counter(place.network for place in taken if not place.is_member)
        networks = {name for name, _ in strangers.most_common(1)}
        problem = f"members have all {places_max} places"
    else:
        return None
    for index, place in enumerate(taken):
        if place.network in networks and not place.is_member:
            return index
    raise NoPlaceError(problem)
