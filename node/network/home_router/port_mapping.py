"""Asks the home's router to forward a port to this node (UPnP Internet Gateway Device).

The lease is an hour and is renewed at half of it, so a node that is killed leaves nothing behind
for long. An orderly end removes the mapping.
"""

from __future__ import annotations

import ipaddress
import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import cast

import structlog
import trio

from gossamer.node.base.awake_clock import suspended_seconds
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.threads import run_abandonable
from gossamer.node.network.dial_rules import is_private
from gossamer.node.network.home_router import upnp
from gossamer.node.network.reachability import Endpoint

TALK_SECONDS_MAX = 15.0
"""Longest wait for the few requests to a router that was found; a thread that waits longer is left
alone."""

PROCESS_SECONDS_MAX = TALK_SECONDS_MAX - 1.0
"""Longest life of the process that asks the router. A machine that answers can keep it waiting."""

RENEW_SECONDS = upnp.LEASE_SECONDS / 2

RETRY_SECONDS = 600.0
"""Pause between two searches where no router forwards a port: its owner may switch UPnP on."""

LOOK_SECONDS = 10.0
"""Interval of the looks at the machine's addresses and at its sleep. Addresses that change are of
another network, which has another router or none."""

ASLEEP_SECONDS_MIN = 1.0
"""Sleep of the machine after which the router is asked again. The two clocks of the system that say
how long it slept are read one after the other."""

_NO_ANSWER = "what the router answers makes no sense"

log = structlog.get_logger("network")


class MappingError(Exception):
    """There is no mapping; the text says why, for people."""


class UpnpGateway:
    """A router that speaks UPnP. A process asks it: see `upnp`. Both calls block, for seconds at
    most."""

    def map(self, port: int) -> Endpoint:
        """Forwards a port for `upnp.LEASE_SECONDS`. Returns where others dial. MappingError."""
        match _asked("map", port):
            case [str(host), int(outer_port)]:
                return Endpoint(host, outer_port)
        raise MappingError(_NO_ANSWER)

    def unmap(self, port: int) -> None:
        """Ends a forwarding. Raises MappingError."""
        if _asked("unmap", port) != [None]:
            raise MappingError(_NO_ANSWER)


def _asked(what: str, port: int) -> object:
    """The answer of a process that asks the router. MappingError: none, or the router's no."""
    command = [sys.executable, "-m", upnp.__name__, what, str(port)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROCESS_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise MappingError("the router does not answer in time") from None
    except OSError as error:
        raise MappingError(f"no process can be started to ask the router: {error}") from error
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise MappingError(_NO_ANSWER) from None
    match answer:
        case [str(problem)]:
            raise MappingError(printable(problem))
    return cast(object, answer)


class PortMapper:
    """Keeps a port mapped as long as the node runs."""

    def __init__(
        self,
        port: int,
        gateway: UpnpGateway,
        interfaces: Callable[[], list[Endpoint]],
        on_change: Callable[[Endpoint | None], None],
        *,
        suspended: Callable[[], float] = suspended_seconds,
    ) -> None:
        """
        Args:
            port: that this node listens on.
            interfaces: addresses of this machine's interfaces on which the node listens now.
            on_change: gets the router's address and port, or None when there is none any more.
            suspended: how long this machine has slept since it started.
        """
        self._port = port
        self._gateway = gateway
        self._interfaces = interfaces
        self._on_change = on_change
        self._suspended = suspended
        self._mapping: Endpoint | None = None
        self._problem: str | None = None

    async def run(self) -> None:
        """Maps and renews until cancelled; then removes the mapping."""
        try:
            while True:
                interfaces, suspended = self._interfaces(), self._suspended()
                if needs_mapping([each.host for each in interfaces]):
                    await self._map()
                    pause = RENEW_SECONDS if self._mapping else RETRY_SECONDS
                else:
                    self._note(None)
                    pause = math.inf
                await self._sleep(pause, interfaces, suspended)
        finally:
            if self._mapping is not None:
                with trio.move_on_after(TALK_SECONDS_MAX) as scope:
                    scope.shield = True
                    await self._unmap(self._mapping.port)

    async def _sleep(self, seconds: float, interfaces: list[Endpoint], suspended: float) -> None:
        """Returns after this time, or when the machine has other addresses, or has slept.

        The local clock stands still while the machine sleeps, and the lease does not.
        """
        with trio.move_on_after(seconds):
            while self._interfaces() == interfaces:
                if self._suspended() - suspended >= ASLEEP_SECONDS_MIN:
                    return
                await trio.sleep(LOOK_SECONDS)
            self._problem = None  # that of the other network

    async def _map(self) -> None:
        try:
            with trio.fail_after(TALK_SECONDS_MAX):
                mapping = await run_abandonable(partial(self._gateway.map, self._port))
        except MappingError as error:
            self._note(None)
            self._tell_problem(str(error))
        except trio.TooSlowError:
            self._note(None)
            self._tell_problem("the router does not answer in time")
        else:
            self._note(mapping)
            self._problem = None

    def _note(self, mapping: Endpoint | None) -> None:
        if mapping != self._mapping:
            self._mapping = mapping
            if mapping is not None:
                log.info("the router forwards a port", address=mapping.address)
            self._on_change(mapping)

    def _tell_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.info("no port is forwarded by UPnP", reason=problem)

    async def _unmap(self, port: int) -> None:
        try:
            await run_abandonable(partial(self._gateway.unmap, port))
        except MappingError as error:
            log.debug("the mapping is left to its lease", error=str(error))


def needs_mapping(addresses: list[str]) -> bool:
    """Returns whether a node with these listening hosts is behind a router, as far as it can see.

    Args:
        addresses: of this machine's interfaces that the node listens on, IP addresses.
    """
    ipv4 = [ipaddress.ip_address(each) for each in addresses if ":" not in each]
    outside = [each for each in ipv4 if not each.is_loopback]
    return bool(outside) and all(is_private(str(each)) for each in outside)
