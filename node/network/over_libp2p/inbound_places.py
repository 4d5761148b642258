"""The places of connections that others open. `node/network/places.py` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from libp2p.abc import INetConn
from libp2p.peer.id import ID

from gossamer.node.network.over_libp2p.carriers import host_behind
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.places import Place, Rank, inbound_max, network_of, place_to_free


class InboundPlaces:
    """Says which connection ends for a newcomer.

    Symptom: 400 idle connections keep everybody else out, and this node from dialling.
    """

    def __init__(
        self,
        pairs: Callable[[], Sequence[tuple[INetConn, YamuxConnection]]],
        rank_of: Callable[[ID], Rank],
        connections_max: int,
    ) -> None:
        """
        Args:
            pairs: the connections in the books, those that this node opened among them.
            connections_max: to all peers together, both directions.
        """
        self._pairs = pairs
        self._rank_of = rank_of
        self._places_max = inbound_max(connections_max)
        self._num_arriving = 0

    @contextmanager
    def entering(self, connection: YamuxConnection) -> Iterator[None]:
        """A connection has a place, and is entered in the books during the block."""
        num_places = 0 if connection.was_dialled else 1
        self._num_arriving += num_places
        try:
            yield
        finally:
            self._num_arriving -= num_places

    def giving_way(self, newcomer: YamuxConnection) -> INetConn | None:
        """The connection that ends for a newcomer; None while a place is free. The newcomer has
        proven its key, so its standing is known.

        Raises:
            NoPlaceError: nobody gives way to it.
        """
        inbound = [pair for pair in self._pairs() if not pair[1].was_dialled]
        inbound.sort(key=lambda pair: pair[1].opened_seconds)
        taken = [self._place_of(muxed) for _, muxed in inbound]
        places_max = self._places_max - self._num_arriving
        freed = place_to_free(taken, self._place_of(newcomer), places_max)
        return None if freed is None else inbound[freed][0]

    def _place_of(self, connection: YamuxConnection) -> Place:
        peer = connection.peer_id
        return Place(peer.to_base58(), network_of(host_behind(connection)), self._rank_of(peer))
