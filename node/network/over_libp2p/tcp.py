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
from typing import Any

import trio
from libp2p.abc import IListener, IRawConnection
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from gossamer.node.network.dial_guard import Permit
from gossamer.node.network.dial_rules import address_of
from gossamer.node.network.over_libp2p.carriers import remote_of, tuned
from gossamer.node.network.racing import RaceLost, race
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

# Windows gives the word another meaning: two programs would get each other's connections.
CAN_SHARE_PORTS = hasattr(socket, "SO_REUSEPORT") and not hasattr(socket, "SO_EXCLUSIVEADDRUSE")


def host_and_port(maddr: Multiaddr) -> tuple[socket.AddressFamily, str, int]:
    """Family (``AF_UNSPEC`` for a name of either), host and TCP port of an address."""
    kind = maddr.protocols()[0]
    port = int(maddr.value_for_protocol("tcp") or 0)
    return (
        socket.AddressFamily(_FAMILIES[kind.name]),
        str(maddr.value_for_protocol(kind.code)),
        port,
    )


def _bound(family: socket.AddressFamily, host: str, port: int, *, shares: bool) -> socket.socket:
    """A TCP socket bound to an address. With `shares` another socket of this user may be too."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        if not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _listening(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """A socket that listens, and whose port this process may dial from.

    Symptom: py-libp2p listens with SO_REUSEPORT, so a second daemon on the same port starts
    without an error and the kernel deals newcomers out between the two at random. Here the port is
    bound once without that option first, which fails while another program listens on it.
    """
    for attempt in range(FREE_PORT_ATTEMPTS):
        exclusive = _bound(family, host, port, shares=False)
        if not CAN_SHARE_PORTS:
            exclusive.listen(LISTEN_BACKLOG)
            return exclusive
        chosen = exclusive.getsockname()[1]
        exclusive.close()
        try:
            shared = _bound(family, host, chosen, shares=True)
            shared.listen(LISTEN_BACKLOG)
        except OSError:
            if port or attempt == FREE_PORT_ATTEMPTS - 1:
                raise
        else:
            return shared
    raise AssertionError


class PortSharingListener(IListener):
    """A TCP listener that no other program can share, see `_listening`."""

    def __init__(self, handler: Callable[[ReadWriteCloser], Awaitable[None]]) -> None:
        self._handler = handler
        self._listener: trio.SocketListener | None = None
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        self.background_nursery: trio.Nursery | None = None  # set by the swarm
        self.may_come: Callable[[str], bool] = lambda _host: True  # likewise

    async def listen(self, maddr: Multiaddr) -> None:
        """Bind and begin to accept.

        Raises:
            OSError: the address is taken or not ours.
        """
        assert self.background_nursery is not None
        listening = _listening(*host_and_port(maddr))
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        self.background_nursery.start_soon(self._serve, self._listener)

    async def _serve(self, listener: trio.SocketListener) -> None:
        """Accepts for ever. A newcomer that is turned away costs no task and no answer."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    while True:
                        stream = await self._accepted(listener)
                        if stream is not None:
                            nursery.start_soon(self._accept, stream)
        finally:
            self._stopped.set()
            listener.socket.close()

    async def _accepted(self, listener: trio.SocketListener) -> trio.SocketStream | None:
        """The next connection; None if it is gone, or is turned away."""
        try:
            stream = await listener.accept()
        except OSError as error:
            if error.errno not in _OUT_OF_SOCKETS:
                raise
            logger.warning("no connection can be accepted now: %s", error.strerror)
            await trio.sleep(OUT_OF_SOCKETS_SECONDS)
            return None
        try:
            if self.may_come(remote_of(stream)[0]):
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

    @property
    def bound(self) -> tuple[socket.AddressFamily, str, int] | None:
        """Family, host and port, with the port that the kernel chose for port 0."""
        if self._listener is None:
            return None
        host, port = self._listener.socket.getsockname()[:2]
        return socket.AddressFamily(self._listener.socket.family), host, port

    def get_addrs(self) -> tuple[Multiaddr, ...]:
        """The bound address."""
        if self.bound is None:
            return ()
        family, host, port = self.bound
        kind = "ip6" if family == socket.AF_INET6 else "ip4"
        return (Multiaddr(f"/{kind}/{host}/tcp/{port}"),)

    async def close(self) -> None:
        """Stop accepting; connections live on."""
        self._scope.cancel()
        if self._listener is not None:
            await self._stopped.wait()


class PortReusingTcp(TCP):
    """TCP with dead-link detection from the first byte, both ways, and `PortSharingListener`."""

    def __init__(self) -> None:
        super().__init__()
        self._listeners: list[PortSharingListener] = []

    def ports(self) -> list[int]:
        """Ports of the listeners, the first listener's first."""
        return [bound[2] for listener in self._listeners if (bound := listener.bound) is not None]

    async def dial(self, maddr: Multiaddr, permit: Permit | None = None) -> IRawConnection:
        """Connect from the port of a listener where that is possible; see `detect_dead_links`.

        Args:
            permit: is asked for the name, if there is one, and for each IP address; None for an
                address that the owner of this machine gave.

        Raises:
            OSError: the kernel's or the resolver's reason, which py-libp2p hides.
            DialRefusedError: the permit does not cover it.
        """
        family, host, port = host_and_port(maddr)
        if permit is not None and address_of(host) is None:
            permit.take(host)
        found = await trio.socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        targets = list(dict.fromkeys((each[0], each[4][0], each[4][1]) for each in found))
        ways = targets[:NAME_ADDRESSES_MAX]

        async def attempt(target: tuple[socket.AddressFamily, str, int]) -> trio.SocketStream:
            if permit is None:
                return await self._connect(target)
            permit.take(target[1])
            try:
                return await self._connect(target)
            except OSError as error:
                if error.errno in _NEVER_LEFT:
                    permit.unused(target[1])
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
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        source = self._source(family, host, port)
        if source is None:
            raise OSError(errno.EADDRNOTAVAIL, "no listener's port to dial from")
        return _raw(await _connected(_bound(family, *source, shares=True), host, port))

    async def dial_afresh(self, host: str, port: int) -> IRawConnection:
        """Connect to an IP address from a port that the kernel chooses. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        unconnected = socket.socket(family, socket.SOCK_STREAM)
        unconnected.setblocking(False)
        return _raw(await _connected(unconnected, host, port))

    async def _connect(self, target: tuple[socket.AddressFamily, str, int]) -> trio.SocketStream:
        family, host, port = target
        source = self._source(family, host, port)
        if source is not None:
            try:
                return await _connected(_bound(family, *source, shares=True), host, port)
            except OSError as error:
                # The pair of addresses is in use, for example by a connection that ended a moment
                # ago: any other port does.
                if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                    raise
        plain = socket.socket(family, socket.SOCK_STREAM)
        plain.setblocking(False)
        return await _connected(plain, host, port)

    def _source(self, family: socket.AddressFamily, host: str, port: int) -> tuple[str, int] | None:
        """Host and port of a listener to dial from; None: any port does.

        A socket that connects to its own address would be connected to itself.
        """
        if not CAN_SHARE_PORTS or host in ("127.0.0.1", "::1"):
            return None
        for listener in self._listeners:
            bound = listener.bound
            if bound is None or bound[0] != family or bound[1] in ("127.0.0.1", "::1"):
                continue
            if bound[2] != port or not _is_mine(family, host):
                return bound[1], bound[2]
        return None

    def create_listener(
        self, handler_function: Callable[[ReadWriteCloser], Awaitable[None]]
    ) -> Any:
        """A listener for one address."""
        listener = PortSharingListener(handler_function)
        self._listeners.append(listener)
        return listener


def _raw(stream: trio.SocketStream) -> RawConnection:
    return RawConnection(tuned(stream), True)


def _is_mine(family: socket.AddressFamily, host: str) -> bool:
    """Returns whether an address belongs to this machine."""
    try:
        _bound(family, host, 0, shares=False).close()
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
