"""Bounds what all peers together make this node hold of bytes that nobody has read yet.

The windows of one connection come to some 60 MiB, which a ring on a long fast line needs. An
identity costs nothing, so many connections that each stay within their windows fill any memory:
with 48 of them a daemon of 160 MB grew to 1.1 GB in eight seconds.

Honest peers have little here that is unread. They ask for what they get, and read it at once. So
the connection that has the most ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from libp2p.abc import INetConn
from libp2p.peer.id import ID

from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.protocol.limits import MIB

logger = logging.getLogger(__name__)

STRANGERS_BYTES_MAX = 64 * MIB
"""Of all peers outside the newest rounds. A newcomer that fetches a state on 16 streams has as many
chunks of 4 MiB here, if its disk has taken none of them yet."""

BYTES_MAX = 256 * MIB
"""Of all peers. A member of a ring has two streams with a window of 8 MiB each, and what it fetches
besides."""

LOOK_BYTES = 4 * MIB
"""Bytes that come between two looks, by which the sums may be exceeded. A look at 400 connections
takes less than a millisecond."""


class UnreadBytes:
    """The bytes that wait on all connections of a node."""

    def __init__(
        self,
        connections: Callable[[], Iterable[INetConn]],
        is_stranger: Callable[[ID], bool],
    ) -> None:
        """
        Args:
            connections: those that are in the books.
            is_stranger: whether a peer is in no ring with this node and in none of the newest
                rounds.
        """
        self._connections = connections
        self._is_stranger = is_stranger
        self._came_bytes = 0

    def came(self, num_bytes: int) -> None:
        """So many bytes have come on a connection. It may end another one, or that one."""
        self._came_bytes += num_bytes
        if self._came_bytes >= LOOK_BYTES:
            self._came_bytes = 0
            self._look()

    def _look(self) -> None:
        muxed = [each.muxed_conn for each in self._connections()]
        held = {each: each.unread_bytes() for each in muxed if isinstance(each, YamuxConnection)}
        if sum(held.values()) <= STRANGERS_BYTES_MAX:
            return
        strangers = {each: held[each] for each in held if self._is_stranger(each.peer_id)}
        while sum(strangers.values()) > STRANGERS_BYTES_MAX:
            largest = max(strangers, key=strangers.__getitem__)
            _end(largest, strangers.pop(largest))
            del held[largest]
        while sum(held.values()) > BYTES_MAX:
            largest = max(held, key=held.__getitem__)
            _end(largest, held.pop(largest))


def _end(connection: YamuxConnection, num_bytes: int) -> None:
    logger.warning(
        "the connection to %s ends: %.1f MiB from there wait unread, and all peers together have "
        "too much waiting",
        connection.peer_id,
        num_bytes / MIB,
    )
    connection.drop("too many bytes that nobody reads")
