"""Yamux connections beside a node: their peers are not asked for signs of life."""

from __future__ import annotations

import errno
from typing import Any

import trio
from libp2p.peer.id import ID

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.over_libp2p.tcp.congestion import LineRate
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection


class NoSocket:
    """The socket of a channel without a network."""

    def getsockopt(self, *_option: int) -> bytes:
        raise OSError(errno.EBADF, "there is no socket")


def quiet_connection(session: Any, peer: ID | None = None) -> YamuxConnection:
    """A connection over a session, or over what stands for one, to the peer at its other end."""
    peer = session.get_remote_peer() if peer is None else peer
    return YamuxConnection(session, peer, Liveness(AwakeClock()), LineRate())


def socket_under(connection: Any) -> Any:
    """The socket under a connection of this project, or of py-libp2p."""
    layer = connection
    while not isinstance(layer, trio.SocketStream):
        names = ("secured_conn", "conn", "read_writer", "raw_conn", "read_write_closer", "stream")
        layer = next(getattr(layer, name) for name in names if hasattr(layer, name))
    return layer.socket
