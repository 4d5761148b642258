"""Asks the home's router by UPnP, through miniupnpc, in a process of its own: `python -m` this
module, `map` or `unmap`, and a port. The last line on stdout is the answer, as JSON.

Any machine of the network can answer in the router's place. The library takes whatever comes, for
as long as it comes, in a call that nothing can end: a description without an end made a daemon grow
by 120 MB a second. A process can be ended, and has a limit of memory.
"""

from __future__ import annotations

import ipaddress
import json
import resource
import sys
from typing import Any

from gossamer.node.network.dial_rules import is_private
from gossamer.protocol.limits import MIB

SEARCH_MILLISECONDS = 2000
"""Time in which routers answer the search: they do within a few hundred milliseconds, or never."""

PORTS_TRIED = 8
"""Outer ports that are asked for, from the inner one on: another node of the home may have it."""

LEASE_SECONDS = 3600

MEMORY_BYTES_MAX = 512 * MIB
"""Address space of the process, of which Python and its libraries take less than a half. What a
router says has some kilobytes."""

TEXT_CHARACTERS_MAX = 200
"""Of a reason that the library gives."""

_DESCRIPTION = "gossamer"


class RouterError(Exception):
    """The router does not do it; the text says why, for people."""


def map_port(port: int) -> tuple[str, int]:
    """Lets the router forward a port. Returns its outer address and port. Raises RouterError."""
    upnp = _found()
    try:
        outer = upnp.externalipaddress()
    except Exception as error:
        raise RouterError(f"the router's UPnP does not work: {error}") from None
    if not _is_address(outer):
        raise RouterError("the router has no outer address: is it connected?")
    if is_private(outer):
        raise RouterError(f"the router is behind another one (its address is {outer})")
    problem = ""
    for outer_port in range(port, min(port + PORTS_TRIED, 65_536)):
        try:
            upnp.addportmapping(
                outer_port, "TCP", upnp.lanaddr, port, _DESCRIPTION, "", LEASE_SECONDS
            )
        except Exception as error:
            problem = str(error)
            continue
        return outer, outer_port
    raise RouterError(f"the router forwards no port from {port} on: {problem}")


def unmap_port(port: int) -> None:
    """Ends a forwarding. Raises RouterError."""
    try:
        _found().deleteportmapping(port, "TCP", "")
    except Exception as error:
        raise RouterError(str(error)) from None


def _found() -> Any:
    import miniupnpc

    upnp = miniupnpc.UPnP()
    upnp.discoverdelay = SEARCH_MILLISECONDS
    try:
        upnp.discover()
        upnp.selectigd()
    except Exception:
        raise RouterError("no router answers UPnP: it has none, or it is switched off") from None
    return upnp


def _is_address(text: object) -> bool:
    try:
        ipaddress.ip_address(str(text))
    except ValueError:
        return False
    return True


def main() -> None:
    """The process."""
    what, port = sys.argv[1], int(sys.argv[2])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, hard))
    answer: list[object] = [None]
    try:
        if what == "map":
            answer = [*map_port(port)]
        else:
            unmap_port(port)
    except RouterError as error:
        answer = [str(error)[:TEXT_CHARACTERS_MAX]]
    print(f"\n{json.dumps(answer)}")


if __name__ == "__main__":
    main()
