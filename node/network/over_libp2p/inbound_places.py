"""The places of connections that others open. `node/network/places.py` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from libp2p.abc import INetConn
from libp2p.peer.id import ID

from gossamer.node.network.over_libp2p.tcp.carriers import host_behind
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.places import Place, Rank, network_of, place_to_free


def giving_way(
    newcomer: YamuxConnection,
    pairs: Sequence[tuple[INetConn, YamuxConnection]],
    rank_of: Callable[[ID], Rank],
    places_max: int,
) -> INetConn | None:
    """The connection that ends for a newcomer; None while a place is free. The newcomer has proven
    its key, so its standing is known.

    Symptom: 400 idle connections keep everybody else out, and this node from dialling.

    Args:
        pairs: the connections in the books, those that this node opened among them.

    Raises:
        NoPlaceError: nobody gives way to it.
    """

    def place_of(connection: YamuxConnection) -> Place:
        peer = connection.peer_id
        return Place(peer.to_base58(), network_of(host_behind(connection)), rank_of(peer))

    inbound = [pair for pair in pairs if not pair[1].was_dialled]
    inbound.sort(key=lambda pair: pair[1].opened_seconds)
    freed = place_to_free([place_of(muxed) for _, muxed in inbound], place_of(newcomer), places_max)
    return None if freed is None else inbound[freed][0]
