"""The default gateway of this machine over IPv4: the router that its traffic leaves the home by.

Linux tells the routes in /proc/net/route, other systems by `route -n get default`. A gateway of
another kind is none here: one that is not private belongs to no home, and one that does not lead
outside has a tunnel in front of it, which no port of that router leads to.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gossamer.node.network.dial_rules import is_private, why_not_dialled

ROUTES = Path("/proc/net/route")
"""The routes of this process's network (proc_net(5)): a line each, numbers in hexadecimal."""

ROUTE_COMMAND = ("/sbin/route", "-n", "get", "default")

ROUTE_SECONDS_MAX = 2.0
"""Of that command, which asks its own system alone."""

_OUTSIDE = "198.41.0.4"
"""A root server of the DNS: an address outside every home. Nothing is sent to it."""

_ANY_PORT = 9

_UP, _GATEWAY, _REJECT = 0x1, 0x2, 0x200
"""Flags of a route (<linux/route.h>, <linux/ipv6_route.h>)."""

_COLUMNS = 8
"""Those that are read: interface, destination, gateway, flags, two unused ones, metric, mask."""


class NoGatewayError(Exception):
    """This machine has no such router; the text says why, for people."""


@dataclass(frozen=True)
class Gateway:
    """IPv4 addresses as texts."""

    host: str
    """The router's address in the home."""
    own_host: str
    """This machine's address for traffic to the router."""


class _Route(NamedTuple):
    metric: int
    host: str
    """Empty: the route leads into an interface that has no router."""


def default_gateway() -> Gateway:
    """Returns the router. It asks this system alone and sends nothing. Raises NoGatewayError."""
    host = _told_host()
    own_host = own_host_for(host)
    if why_not := why_no_router(host, own_host):
        raise NoGatewayError(why_not)
    if own_host_for(_OUTSIDE) != own_host:
        raise NoGatewayError(f"this machine's way out is not its router at {host}: is it a VPN?")
    return Gateway(host, own_host)


def why_no_router(host: str, own_host: str) -> str:
    """The reason why a default gateway is no home's router; empty if it may be one."""
    reason = why_not_dialled(host, [ipaddress.ip_network(host)], is_on_loopback=False)
    if not reason and not is_private(host):
        reason = f"{host} is no address of a home"
    if not reason and host == own_host:
        reason = f"{host} is this machine itself"
    return f"the default gateway is no router of a home: {reason}" if reason else ""


def gateway_of_table(text: str) -> str:
    """Returns the gateway of the default route that Linux uses, which is the one of the lowest
    metric; empty if there is none.

    Args:
        text: of /proc/net/route.
    """
    routes = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < _COLUMNS:
            continue
        destination, gateway, flags, mask = (int(words[each], 16) for each in (1, 2, 3, 7))
        if destination == mask == 0 and flags & _UP and not flags & _REJECT:
            address = socket.inet_ntoa(gateway.to_bytes(4, sys.byteorder))
            routes.append(_Route(int(words[6]), address if flags & _GATEWAY else ""))
    return min(routes, key=lambda route: route.metric).host if routes else ""


def gateway_of_answer(text: str) -> str:
    """Returns the gateway in the answer of `route -n get default`; empty if there is none."""
    found = re.search(r"^\s*gateway: (\d+\.\d+\.\d+\.\d+)\s*$", text, re.MULTILINE)
    return found[1] if found else ""


def own_host_for(host: str) -> str:
    """This machine's address for traffic to another one. NoGatewayError: no route leads there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, _ANY_PORT))  # of UDP: the system looks up the route, no more
        except OSError as error:
            raise NoGatewayError(f"no route leads to {host}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def _told_host() -> str:
    try:
        if ROUTES.exists():
            host = gateway_of_table(ROUTES.read_text(encoding="ascii"))
        else:
            done = subprocess.run(
                ROUTE_COMMAND,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                timeout=ROUTE_SECONDS_MAX,
            )
            host = gateway_of_answer(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoGatewayError(f"this system does not tell its default gateway: {error}") from error
    if not host:
        raise NoGatewayError("this machine has no default gateway, so no router")
    return host
