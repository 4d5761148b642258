"""Nodes of one network find each other without an address: multicast DNS (RFC 6762, RFC 6763).

A node tells its own network that it is there, in which run, and where it listens. What others tell
is no more than a hint where to dial: the handshake shows which peer answers, and every machine of
the network may tell anything.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
import trio
from zeroconf import Error as ZeroconfError
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from gossamer.node.base.threads import run_abandonable
from gossamer.node.network.dial_rules import why_not_dialled
from gossamer.node.network.reachability import Endpoint
from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId, public_key_of

SERVICE = "_gossamer._tcp.local."

FOUND_MAX = 64
"""Nodes of the network that are remembered. The first that are found lead to the others."""

ANSWER_MILLISECONDS = 2000
"""Time in which a node that was heard of tells where it listens."""

LOOK_SECONDS = 30.0
"""Interval of the looks whether this machine has moved to another network."""

HEARD_MAX = 4096
"""Services that come, change or go before the exchange with the network begins anew. The library
keeps some 300 bytes for each name that it has ever heard, for as long as the name's sender says. A
home of a few nodes has as many in years."""

REST_SECONDS = 600.0
"""Pause before the exchange begins anew: some machine of this network tells whatever it wants."""

TALK_SECONDS_MAX = 10.0
"""Longest start or end of the exchange with the network. A thread that waits longer is left alone.
"""

_RUN_ID_CHARACTERS = 64

_ANYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
"""Any private network may be a neighbour's; multicast and the services of a cloud are none."""

log = structlog.get_logger("network")


@dataclass(frozen=True)
class Neighbour:
    """A node of this network, as it tells."""

    peer: PeerId
    run_id: str
    """Hexadecimal."""
    addresses: tuple[str, ...]
    """Multiaddrs with the peer id."""

    @property
    def link(self) -> str:
        """The link that `gossamer join` takes."""
        return f"{self.addresses[0]}#{self.run_id}"


def neighbour_of(info: ServiceInfo) -> Neighbour | None:
    """Returns what a service's record says; None if it is not one of a node."""
    try:
        told = {key: value.decode() for key, value in info.properties.items() if value is not None}
        peer, run_id = PeerId(told[b"id"]), told[b"run"]
        public_key_of(peer)
        if len(run_id) != _RUN_ID_CHARACTERS:
            return None
        bytes.fromhex(run_id)
        hosts = info.parsed_addresses()
    except (KeyError, ValueError, MalformedError):
        return None
    hosts = [host for host in hosts if not why_not_dialled(host, _ANYWHERE, is_on_loopback=True)]
    if not hosts or not info.port:
        return None
    endpoints = [Endpoint(host, info.port) for host in hosts if "%" not in host]
    addresses = tuple(f"{each.address}/p2p/{peer}" for each in endpoints)
    return Neighbour(peer, run_id, addresses[: limits.ADDRESSES_MAX]) if addresses else None


def info_of(peer: PeerId, run_id: str, endpoints: Sequence[Endpoint]) -> ServiceInfo:
    """Returns the record by which others find a node."""
    name = f"{peer[-12:]}.{SERVICE}"
    return ServiceInfo(
        SERVICE,
        name,
        addresses=[ipaddress.ip_address(each.host).packed for each in endpoints],
        port=endpoints[0].port,
        properties={"id": peer, "run": run_id},
        server=f"gossamer-{peer[-12:].lower()}.local.",
    )


class _Browser:
    """Hears of services in a thread of the library, and asks what they are in one of its own.

    Symptom: what the library hears waits for its one thread, without a bound. Machines that tell of
    services and say no more hold that thread for `ANSWER_MILLISECONDS` each, and 2,000 names a
    second made a daemon grow by 0.8 MB in each.
    """

    def __init__(
        self,
        zeroconf: Zeroconf,
        on_found: Callable[[Neighbour], None],
        on_heard: Callable[[], None] = lambda: None,
    ) -> None:
        """Both are called in threads.

        Args:
            on_heard: is told of each service that comes, changes or goes.
        """
        self._on_found = on_found
        self._on_heard = on_heard
        self._lock = threading.Lock()
        self._names: set[str] = set()
        """Services that are nodes, as far as is known. There are at most `FOUND_MAX`."""
        self._unasked: dict[str, None] = {}
        """Those of them that are to be asked."""
        self._is_asking = False
        """Whether a thread asks."""
        self._browser = ServiceBrowser(zeroconf, SERVICE, handlers=[self._changed])

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        self._on_heard()
        with self._lock:
            if state_change is ServiceStateChange.Removed:
                self._names.discard(name)
                self._unasked.pop(name, None)
                return
            if name not in self._names and len(self._names) >= FOUND_MAX:
                return
            self._names.add(name)
            self._unasked[name] = None
            if self._is_asking:
                return
            self._is_asking = True
        threading.Thread(target=self._ask_all, args=(zeroconf, service_type), daemon=True).start()

    def _ask_all(self, zeroconf: Zeroconf, service_type: str) -> None:
        """Asks one after the other. A thread does this and ends."""
        while True:
            with self._lock:
                name = next(iter(self._unasked), None)
                if name is None:
                    self._is_asking = False
                    return
                del self._unasked[name]
            self._ask(zeroconf, service_type, name)

    def _ask(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        """Asks what a service is. One that is no node gives its place to another."""
        neighbour: Neighbour | None = None
        try:
            info = zeroconf.get_service_info(service_type, name, ANSWER_MILLISECONDS)
            neighbour = None if info is None else neighbour_of(info)
        except Exception as error:  # any machine may tell any name; an error would end the thread
            log.debug("a service in this network is left out", name=name, error=str(error))
        if neighbour is None:
            with self._lock:
                self._names.discard(name)
        else:
            self._on_found(neighbour)


def _begin(
    hosts: list[str] | None,
    on_found: Callable[[Neighbour], None],
    on_heard: Callable[[], None] = lambda: None,
    told: ServiceInfo | None = None,
) -> Zeroconf:
    """Hears of others on the interfaces of these hosts, None for all, and tells of this node."""
    zeroconf = _zeroconf(hosts)
    try:
        if told is not None:
            zeroconf.register_service(told)
        _Browser(zeroconf, on_found, on_heard)
    except BaseException:
        zeroconf.close()
        raise
    return zeroconf


class LanNeighbours:
    """Tells the network of this node, and this node of the network's others in its run."""

    def __init__(
        self,
        peer: PeerId,
        run_id: str,
        interfaces: Callable[[], list[Endpoint]],
        on_found: Callable[[PeerId, tuple[str, ...]], None],
    ) -> None:
        """
        Args:
            run_id: hexadecimal.
            interfaces: addresses of this machine's interfaces on which the node listens, without
                loopback and bridges of containers.
            on_found: gets another node of the run and its addresses, on the event loop.
        """
        self._peer = peer
        self._run_id = run_id
        self._interfaces = interfaces
        self._on_found = on_found
        self._problem = ""
        self._num_heard = 0
        """Services that have come, changed or gone since this exchange began."""

    async def run(self) -> None:
        """Tells and hears until cancelled. A network that does not take part ends nothing."""
        while True:
            endpoints = self._interfaces()
            zeroconf: Zeroconf | None = None
            try:
                if endpoints:
                    zeroconf = await self._open(endpoints)
                while self._interfaces() == endpoints and not self._is_flooded:  # noqa: ASYNC110
                    await trio.sleep(LOOK_SECONDS)
            finally:
                if zeroconf is not None:
                    await _close(zeroconf)
            if self._is_flooded:
                log.info(
                    "this network tells of too many services: this node looks again later",
                    services=self._num_heard,
                    seconds=REST_SECONDS,
                )
                self._num_heard = 0
                await trio.sleep(REST_SECONDS)

    @property
    def _is_flooded(self) -> bool:
        return self._num_heard >= HEARD_MAX

    def _heard(self) -> None:
        self._num_heard += 1

    async def _open(self, endpoints: list[Endpoint]) -> Zeroconf | None:
        token = trio.lowlevel.current_trio_token()
        is_awaited = True

        def found(neighbour: Neighbour) -> None:
            if neighbour.run_id == self._run_id and neighbour.peer != self._peer:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._on_found, neighbour.peer, neighbour.addresses)

        def begin() -> Zeroconf:
            told = info_of(self._peer, self._run_id, endpoints)
            zeroconf = _begin([each.host for each in endpoints], found, self._heard, told)
            if not is_awaited:  # nobody would close it
                zeroconf.close()
            return zeroconf

        try:
            with trio.fail_after(TALK_SECONDS_MAX):
                zeroconf = await run_abandonable(begin)
        except (OSError, ZeroconfError, trio.TooSlowError) as error:
            problem = str(error) or type(error).__name__
            if problem != self._problem:
                self._problem = problem
                log.info("this network has no multicast DNS for this node", reason=problem)
            return None
        finally:
            is_awaited = False
        log.debug("told in this network", addresses=[each.address for each in endpoints])
        return zeroconf


async def look_around(seconds: float) -> list[Neighbour]:
    """Returns the nodes that this machine's networks tell of within some seconds, by peer id.

    Raises:
        OSError: this machine has no network for it.
    """
    found: dict[PeerId, Neighbour] = {}

    def note(neighbour: Neighbour) -> None:
        found[neighbour.peer] = neighbour

    zeroconf = await trio.to_thread.run_sync(_begin, None, note)
    try:
        await trio.sleep(seconds)
    finally:
        await _close(zeroconf)
    return [found[peer] for peer in sorted(found)]


async def _close(zeroconf: Zeroconf) -> None:
    with trio.move_on_after(TALK_SECONDS_MAX) as scope:
        scope.shield = True
        await run_abandonable(zeroconf.close)


def _zeroconf(hosts: list[str] | None) -> Zeroconf:
    """Opens the exchange on the interfaces of these hosts; None for all."""
    if hosts is None:
        return Zeroconf(ip_version=IPVersion.All if socket.has_ipv6 else IPVersion.V4Only)
    versions = {ipaddress.ip_address(host).version for host in hosts}
    kinds = {frozenset({4}): IPVersion.V4Only, frozenset({6}): IPVersion.V6Only}
    return Zeroconf(interfaces=hosts, ip_version=kinds.get(frozenset(versions), IPVersion.All))
