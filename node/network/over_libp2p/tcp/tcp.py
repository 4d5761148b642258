"""TCP under py-libp2p: listeners, and dials that leave from the port of a listener.

A router shows a home's connections under one outer port for each inner port. So a node that dials
from its listening port learns, from what others see, an address under which others may reach it
(RFC 5128, section 3.4; libp2p calls this port reuse).
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections.abc import Awaitable, Callable

import trio
from libp2p.abc import IRawConnection
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from gossamer.node.network.dial_guard import Permit
from gossamer.node.network.dial_rules import address_of
from gossamer.node.network.over_libp2p.addresses import host_and_port
from gossamer.node.network.over_libp2p.tcp.carriers import remote_of, tuned
from gossamer.node.network.racing import RaceLost, race
from gossamer.node.network.reachability import Endpoint
from gossamer.node.network.transport import RACE_SECONDS

logger = logging.getLogger(__name__)

# The backlog of the kernel, for bursts of newcomers.
LISTEN_BACKLOG = 128

# After an accept for which this process or this machine has no socket left.
OUT_OF_SOCKETS_SECONDS = 0.1
_OUT_OF_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

# SO_LINGER: no state of a connection that was turned away stays in the kernel.
_END_WITH_RESET = struct.pack("ii", 1, 0)

# Ports that are tried for a listener without a port of its own: each was free a moment before.
FREE_PORT_ATTEMPTS = 8

# What the kernel says of a dial for which no packet has left this machine.
_NEVER_LEFT = (errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EINVAL)

# Addresses of one name that are tried; a name with more is no home's.
NAME_ADDRESSES_MAX = 8

_FAMILIES = {
    "ip4": socket.AF_INET,
    "ip6": socket.AF_INET6,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
    "dns": socket.AF_UNSPEC,
}

_LOOPBACK = ("127.0.0.1", "::1")

# Windows gives the word another meaning: two programs would get each other's connections.
CAN_SHARE_PORTS = hasattr(socket, "SO_REUSEPORT") and not hasattr(socket, "SO_EXCLUSIVEADDRUSE")


def _family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _fresh(host: str) -> socket.socket:
    """A TCP socket of the family of an IP address, bound to nothing."""
    fresh = socket.socket(_family_of(host), socket.SOCK_STREAM)
    fresh.setblocking(False)
    return fresh


def _bound(host: str, port: int, *, shares: bool) -> socket.socket:
    """A TCP socket bound to an address. With `shares` another socket of this user may be too."""
    bound = _fresh(host)
    try:
        if not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, and whose port this process may dial from.

    Symptom: py-libp2p listens with SO_REUSEPORT, so a second daemon on the same port starts
    without an error and the kernel deals newcomers out between the two at random. Here the port is
    bound once without that option first, which fails while another program listens on it.
    """
    for attempt in range(FREE_PORT_ATTEMPTS):
        exclusive = _bound(host, port, shares=False)
        if not CAN_SHARE_PORTS:
            exclusive.listen(LISTEN_BACKLOG)
            return exclusive
        chosen = exclusive.getsockname()[1]
        exclusive.close()
        try:
            shared = _bound(host, chosen, shares=True)
            shared.listen(LISTEN_BACKLOG)
        except OSError:
            if port or attempt == FREE_PORT_ATTEMPTS - 1:
                raise
        else:
            return shared
    raise AssertionError


class PortSharingListener:
    """A TCP listener that no other program can share, see `_listening`."""

    def __init__(
        self,
        maddr: Multiaddr,
        handler: Callable[[ReadWriteCloser], Awaitable[None]],
        may_come: Callable[[str], bool],
    ) -> None:
        """Binds an address.

        Args:
            handler: gets each connection, and returns when it has ended.
            may_come: whether a newcomer from an IP address may begin a handshake now.

        Raises:
            OSError: the address is taken or not ours.
        """
        listening = _listening(*host_and_port(maddr))
        self.host, self.port = listening.getsockname()[:2]
        """The port is the one that the kernel chose for port 0."""
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        self._handler = handler
        self._may_come = may_come
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()

    async def serve(self) -> None:
        """Accepts until `close`. A newcomer that is turned away costs no task and no answer."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    while True:
                        stream = await self._accepted()
                        if stream is not None:
                            nursery.start_soon(self._accept, stream)
        finally:
            self._stopped.set()
            self._listener.socket.close()

    async def _accepted(self) -> trio.SocketStream | None:
        """The next connection; None if it is gone, or is turned away."""
        try:
            stream = await self._listener.accept()
        except OSError as error:
            if error.errno not in _OUT_OF_SOCKETS:
                raise
            logger.warning("no connection can be accepted now: %s", error.strerror)
            await trio.sleep(OUT_OF_SOCKETS_SECONDS)
            return None
        try:
            if self._may_come(remote_of(stream)[0]):
                return stream
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _END_WITH_RESET)
        except OSError as error:  # it has gone already
            logger.debug("inbound connection failed: %r", error)
        stream.socket.close()
        return None

    async def _accept(self, stream: trio.SocketStream) -> None:
        try:
            await self._handler(tuned(stream))
        except Exception as error:  # whatever one newcomer does must not end the listener
            logger.debug("inbound connection failed: %r", error)

    def get_addrs(self) -> tuple[Multiaddr, ...]:
        """The bound address."""
        return (Multiaddr(Endpoint(self.host, self.port).address),)

    async def close(self) -> None:
        """Stop accepting; connections live on."""
        self._scope.cancel()
        await self._stopped.wait()


class PortReusingTcp(TCP):
    """TCP with dead-link detection from the first byte, both ways, and `PortSharingListener`."""

    def __init__(self) -> None:
        super().__init__()
        self._listeners: list[PortSharingListener] = []

    def ports(self) -> list[int]:
        """Ports of the listeners, the first listener's first."""
        return [listener.port for listener in self._listeners]

    async def dial(self, maddr: Multiaddr, permit: Permit | None = None) -> IRawConnection:
        """Connect from the port of a listener where that is possible.

        Args:
            permit: is asked for the name, if there is one, and for each IP address; None for an
                address that the owner of this machine gave.

        Raises:
            OSError: the kernel's or the resolver's reason, which py-libp2p hides.
            DialRefusedError: the permit does not cover it.
        """
        host, port = host_and_port(maddr)
        family = _FAMILIES[maddr.protocols()[0].name]
        if permit is not None and address_of(host) is None:
            permit.take(host)
        found = await trio.socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        ways = list(dict.fromkeys(each[4][0] for each in found))[:NAME_ADDRESSES_MAX]

        async def attempt(host: str) -> trio.SocketStream:
            if permit is None:
                return await self._connect(host, port)
            permit.take(host)
            try:
                return await self._connect(host, port)
            except OSError as error:
                if error.errno in _NEVER_LEFT:
                    permit.unused(host)
                raise

        try:
            _, stream = await race(
                attempt, ways, RACE_SECONDS, OSError, discard=lambda each: each.socket.close()
            )
        except RaceLost as lost:
            raise lost.failures[0] from None
        return _raw(stream)

    async def dial_from_listener(self, host: str, port: int) -> IRawConnection:
        """Connect to an IP address from the port of a listener, and from no other one.

        Raises:
            OSError: the kernel's reason, or that no listener's port can be used.
        """
        source = self._source(host, port)
        if source is None:
            raise OSError(errno.EADDRNOTAVAIL, "no listener's port to dial from")
        return _raw(await _connected(_bound(*source, shares=True), host, port))

    async def dial_afresh(self, host: str, port: int) -> IRawConnection:
        """Connect to an IP address from a port that the kernel chooses. Raises OSError."""
        return _raw(await _connected(_fresh(host), host, port))

    async def _connect(self, host: str, port: int) -> trio.SocketStream:
        source = self._source(host, port)
        if source is not None:
            try:
                return await _connected(_bound(*source, shares=True), host, port)
            except OSError as error:
                # The pair of addresses is in use, for example by a connection that ended a moment
                # ago: any other port does.
                if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                    raise
        return await _connected(_fresh(host), host, port)

    def _source(self, host: str, port: int) -> tuple[str, int] | None:
        """Host and port of a listener to dial from; None: any port does.

        A socket that connects to its own address would be connected to itself.
        """
        if not CAN_SHARE_PORTS or host in _LOOPBACK:
            return None
        for each in self._listeners:
            if _family_of(each.host) != _family_of(host) or each.host in _LOOPBACK:
                continue
            if each.port != port or not _is_mine(host):
                return each.host, each.port
        return None

    def listen(
        self,
        maddr: Multiaddr,
        handler: Callable[[ReadWriteCloser], Awaitable[None]],
        may_come: Callable[[str], bool],
    ) -> PortSharingListener:
        """Listens on one address, see `PortSharingListener`. Raises OSError."""
        listener = PortSharingListener(maddr, handler, may_come)
        self._listeners.append(listener)
        return listener


def _raw(stream: trio.SocketStream) -> RawConnection:
    return RawConnection(tuned(stream), True)


def _is_mine(host: str) -> bool:
    """Returns whether an address belongs to this machine."""
    try:
        _bound(host, 0, shares=False).close()
    except OSError:
        return False
    return True


async def _connected(unconnected: socket.socket, host: str, port: int) -> trio.SocketStream:
    connecting = trio.socket.from_stdlib_socket(unconnected)
    try:
        await connecting.connect((host, port))
    except BaseException:
        connecting.close()
        raise
    return trio.SocketStream(connecting)
