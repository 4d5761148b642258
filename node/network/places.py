"""The places for connections that others open: few for one network, and for good only by work.

Identities and announcements cost nothing, and an idle connection costs its owner next to nothing.
Addresses of many networks are dear, and so is work that a round of the chain has taken. So places
without standing are shared out among networks, and a peer with standing keeps its place.

Rules
-----
- While a place is free, and the newcomer's network has fewer than `CONNECTIONS_PER_NETWORK_MAX`
  connections, no connection ends. Where its network has as many, the newcomer can take only a place
  of that network.
- A network *holds* the places of its peers without standing. It is *crowded*, for a newcomer
  without standing, where it holds more places than the newcomer's network would hold with it. For a
  newcomer with standing it is crowded where it holds two or more.
- Places are given up in this order: by strangers of crowded networks; by announced peers of
  crowded networks; by strangers of networks that hold more than the newcomer's, and by those of
  its own. A newcomer with standing comes before all other announced peers as well, and
  in the end before members of the ring that this node is in.
- A newcomer that finds no such place takes an older one of its own: its line broke, and this node
  has not noticed.
- A peer with standing gives way to nobody.
- Of those that could go, the network that holds the most places gives one up, and of these the
  oldest connection. The oldest and not the idlest: a byte now and then makes an attacker's
  connection look busy, while an honest newcomer that waits for its turn looks idle. Nobody can make
  a connection younger without giving its place up.

A stranger alone in its network stays while others crowd, although it is a stranger: a newcomer
fetches frozen weights and data before its first announcement, and crowds may be announced. Members
of the ring stay although newcomers of other networks come, because nobody has standing in the first
rounds of a run. They are 256 at most, which leaves places to share out.
"""

from __future__ import annotations

import enum
import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Held = TypeVar("_Held")

NETWORK_BITS = {4: 24, 6: 64}
"""Bits of an address that its owner usually cannot choose, by IP version: a household or a small
data centre has one IPv4 network of this size, and one IPv6 network."""

CONNECTIONS_PER_NETWORK_MAX = 128
"""Connections from one network: a machine full of daemons, or a laboratory."""

OUTBOUND_SHARE = 6
"""One in so many places is kept for connections that this node opens."""

CROWDED_BY = 2
"""Places by which a network has more than the newcomer's. With a difference of one the two would
change places for ever."""


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


class Rank(enum.IntEnum):
    """The merit of a peer here, in the order in which peers give way."""

    STRANGER = 0
    """It has not announced itself, or the run does not admit it."""
    ANNOUNCED = 1
    IN_RING = 2
    """It is in a ring with this node now."""
    STANDING = 3
    """A round of the chain has taken its work lately, or the founder has listed it."""


@dataclass(frozen=True)
class Place:
    """One connection that another peer has opened."""

    peer: str
    network: str
    rank: Rank


class NoPlaceError(Exception):
    """A newcomer's connection is refused; the text says why."""


def place_to_free(taken: Sequence[Place], newcomer: Place, places_max: int) -> int | None:
    """The place that a newcomer takes, as an index; None if there is a free one.

    Args:
        taken: the places, the oldest connection first.

    Raises:
        NoPlaceError: nobody gives way to this newcomer.
    """
    in_network = sum(place.network == newcomer.network for place in taken)
    is_network_full = in_network >= CONNECTIONS_PER_NETWORK_MAX
    if not is_network_full and len(taken) < places_max:
        return None
    held = Counter(place.network for place in taken if place.rank < Rank.STANDING)
    giving: list[tuple[int, int, int]] = []
    for index, place in enumerate(taken):
        if is_network_full and place.network != newcomer.network:
            continue
        turn = _turn(place, newcomer, held)
        if turn is not None:
            giving.append((turn, -held[place.network], index))
    if giving:
        return min(giving)[-1]
    if is_network_full:
        raise NoPlaceError(f"there are {in_network} connections from {newcomer.network} already")
    raise NoPlaceError(
        f"peers with standing, or of networks with no more connections than {newcomer.network}, "
        f"have all {places_max} places"
    )


def _turn(place: Place, newcomer: Place, held: Counter[str]) -> int | None:
    """Returns the turn in which a place is given up for a newcomer, the lowest first; None if it is
    not."""
    has_standing = newcomer.rank == Rank.STANDING
    own = 0 if has_standing else held[newcomer.network]
    num_held = held[place.network]
    is_crowded = num_held >= own + CROWDED_BY
    is_neighbour = place.network == newcomer.network
    if place.rank == Rank.STRANGER and is_crowded:
        turn = 0
    elif place.rank == Rank.ANNOUNCED and is_crowded:
        turn = 1
    elif place.rank == Rank.STRANGER and (num_held > own or is_neighbour):
        turn = 2
    elif has_standing and place.rank == Rank.ANNOUNCED:
        turn = 3
    elif has_standing and place.rank == Rank.IN_RING:
        turn = 4
    elif place.peer == newcomer.peer:
        turn = 5
    else:
        return None
    return turn


def oldest_of_most(
    taken: Collection[_Held], newcomer: _Held | None, owner: Callable[[_Held], Hashable]
) -> _Held | None:
    """The oldest of the owner that has the most; None where the newcomer's has hardly fewer.

    Args:
        taken: circuits, streams or the like, the oldest first.
        newcomer: None: it is no matter how many its owner has.
    """
    held = Counter(map(owner, taken))
    most = max(held.values(), default=0)
    if newcomer is not None and most < held[owner(newcomer)] + CROWDED_BY:
        return None
    return next((each for each in taken if held[owner(each)] == most), None)
