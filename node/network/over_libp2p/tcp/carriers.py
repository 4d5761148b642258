"""The layer under a py-libp2p connection: TCP, or one end of a circuit in its place."""

from __future__ import annotations

import socket
from typing import Protocol

import trio
from libp2p.io.trio import TrioTCPStream

from gossamer.node.network.over_libp2p.tcp.congestion import tune
from gossamer.node.network.transport import Path

# Silently dead links fail readers and writers after this, as Linux counts it (RFC 5482).
DEAD_LINK_SECONDS = 9
KEEPALIVE_IDLE_SECONDS = 4
KEEPALIVE_INTERVAL_SECONDS = 2
KEEPALIVE_PROBES = 3


class HasRemote(Protocol):
    """A layer of a connection."""

    def get_remote_address(self) -> tuple[str, int] | None:
        """The other end's host and port; None for a circuit."""


def host_behind(layer: HasRemote) -> str:
    """Returns the IP address of the other end; empty for a circuit."""
    remote = layer.get_remote_address()
    return "" if remote is None else remote[0]


class TcpConnection(TrioTCPStream):
    """A TCP connection that knows where its other end is, also when the socket is gone.

    Symptom: py-libp2p says nothing of an end with an IPv6 address. So all peers there were of one
    network, the one of no address: they shared its places and its handshakes, no ban of a network
    held for them, and none of them told another one where it sees it.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._remote = remote_of(stream)

    def get_remote_address(self) -> tuple[str, int]:
        """The other end's host and port."""
        return self._remote


def remote_of(stream: trio.SocketStream) -> tuple[str, int]:
    """The IP address of the other end, without the name of an interface, and its port. OSError."""
    host, port = stream.socket.getpeername()[:2]
    return host.partition("%")[0], port


def tuned(stream: trio.SocketStream) -> TcpConnection:
    """A connection with the options that all connections have. OSError: it is gone, and closed."""
    try:
        connection = TcpConnection(stream)
        _detect_dead_links(stream)
        tune(stream)
    except OSError:
        stream.socket.close()
        raise
    return connection


def _detect_dead_links(stream: trio.SocketStream) -> None:
    """Let the kernel fail a connection whose other side has gone silent.

    Symptom: after a link went down neither reader nor writer noticed for more than 45 s;
    py-libp2p's health monitor hangs itself when a writer is blocked.
    """
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", DEAD_LINK_SECONDS * 1000),  # absent outside Linux
    ):
        if hasattr(socket, option):
            stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class CircuitEnd(TrioTCPStream):
    """This process's end of a circuit, in the place of a TCP connection."""

    def __init__(self, stream: trio.SocketStream, path: Path) -> None:
        """`path`: the relay's."""
        super().__init__(stream)
        self.path = path

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: the other end's address is not known."""
        return None
