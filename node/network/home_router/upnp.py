"""Asks the home's router by UPnP to forward a port, in a process of its own: `python -m` this
module, `map` or `unmap`, and a port. The last line on stdout is the answer, as JSON.

Any machine of the home can answer in the router's place. Requests go to the default gateway alone,
and what it says is bounded (`ssdp`, `igd`, `gateway_http`). The process has a limit of memory and
can be ended, which a thread cannot: what reads the words of others has a fence of its own.
"""

from __future__ import annotations

import ipaddress
import json
import resource
import sys
import time
from collections.abc import Iterable

from gossamer.node.network.dial_rules import is_private
from gossamer.node.network.home_router.default_gateway import NoGatewayError, default_gateway
from gossamer.node.network.home_router.igd import Connection, RefusedError, RouterError, connections
from gossamer.node.network.home_router.ssdp import SearchError
from gossamer.protocol.limits import MIB

ASK_SECONDS_MAX = 10.0
"""From the search to the last answer: both ends of a slow talk lie within the life that
`port_mapping` gives this process."""

PORTS_TRIED = 8
"""Outer ports that are asked for, from the inner one on: another node of the home may have it."""

LEASE_SECONDS = 3600

MEMORY_BYTES_MAX = 512 * MIB
"""Address space of the process, of which Python and its libraries take less than a half. What a
router says has some kilobytes."""

TEXT_CHARACTERS_MAX = 200
"""Of a reason that the router gives."""

PERMANENT_ONLY = 725
"""OnlyPermanentLeasesSupported (UPnP-gw-WANIPConnection-v1, section 2.4.16)."""

_DESCRIPTION = "gossamer"


def map_port(port: int, found: Iterable[Connection]) -> tuple[str, int]:
    """Lets the router forward a port. Returns its outer address and port. Raises RouterError.

    Args:
        found: the services of the router; the first one with a public address is taken.
    """
    service, outer_host = _outside(found)
    problem = ""
    for outer_port in range(port, min(port + PORTS_TRIED, 65_536)):
        try:
            _add(service, outer_port, port)
        except RouterError as error:
            problem = str(error)
            continue
        return outer_host, outer_port
    raise RouterError(f"the router forwards no port from {port} on: {problem}")


def unmap_port(port: int, found: Iterable[Connection]) -> None:
    """Ends a forwarding, at the first service that has it. Raises RouterError."""
    problem = RouterError("the router has no service for forwarded ports")
    for service in found:
        try:
            service.delete(port)
        except RouterError as error:
            problem = error
            continue
        return
    raise problem


def _outside(found: Iterable[Connection]) -> tuple[Connection, str]:
    """The service with a public address, and the address."""
    problem = RouterError("the router has no service for forwarded ports")
    for service in found:
        try:
            outer_host = service.outer_host()
        except RouterError as error:
            problem = RouterError(f"the router's UPnP does not work: {error}")
            continue
        if not _is_address(outer_host):
            problem = RouterError("the router has no outer address: is it connected?")
        elif is_private(outer_host):
            problem = RouterError(f"the router is behind another one (its address is {outer_host})")
        else:
            return service, outer_host
    raise problem


def _add(service: Connection, outer_port: int, port: int) -> None:
    """Some routers know mappings without an end alone. Such a one ends when the node leaves; that
    of a node that was killed is taken over by its next start."""
    try:
        service.add(outer_port, port, _DESCRIPTION, LEASE_SECONDS)
    except RefusedError as error:
        if error.code != PERMANENT_ONLY:
            raise
        service.add(outer_port, port, _DESCRIPTION, 0)


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.IPv4Address(text).is_unspecified
    except ValueError:
        return False


def main() -> None:
    """The process."""
    what, port = sys.argv[1], int(sys.argv[2])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, hard))
    answer: list[str | int | None] = [None]
    try:
        found = connections(default_gateway(), time.monotonic() + ASK_SECONDS_MAX)
        if what == "map":
            answer = [*map_port(port, found)]
        else:
            unmap_port(port, found)
    except (NoGatewayError, RouterError, SearchError) as error:
        answer = [str(error)[:TEXT_CHARACTERS_MAX]]
    print(f"\n{json.dumps(answer)}")


if __name__ == "__main__":
    main()
