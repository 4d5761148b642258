"""The port that a node listens on, where nobody has chosen one.

Two nodes behind one router need different ports: the router has one of each number. So a node's
first start looks which ports the other nodes of its network have, and later starts keep the port.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from gossamer.node.base.settings.settings import DEFAULT_LISTEN, Settings
from gossamer.node.network.lan import Neighbour, look_around

DEFAULT_PORT = int(DEFAULT_LISTEN[0].rpartition("/")[2])

PORTS = range(DEFAULT_PORT, DEFAULT_PORT + 32, 2)
"""The ports that a node chooses from. The one after each is left free, for the node's page."""

LOOK_SECONDS = 1.5
"""Nodes answer within some tenths of a second, and the question is repeated after one."""

log = structlog.get_logger("node")


async def listen_addresses(settings: Settings, remembered: int) -> tuple[str, ...]:
    """Returns the addresses to listen on.

    Args:
        remembered: the port of the last life, which may have been chosen by hand; 0 at the first
            start.
    """
    if settings.listen != DEFAULT_LISTEN:
        return settings.listen
    if remembered in PORTS:
        return with_port(remembered)
    port = DEFAULT_PORT
    if not remembered and settings.lan == "on":
        try:
            port = unused_port(await look_around(LOOK_SECONDS))
        except OSError as error:
            log.debug("this network was not searched for other nodes", error=str(error))
    return with_port(port)


def unused_port(neighbours: Iterable[Neighbour]) -> int:
    """Returns the first port that no node of this network has; the default one if all are taken."""
    taken = {
        int(address.partition("/tcp/")[2].partition("/")[0])
        for neighbour in neighbours
        for address in neighbour.addresses
    }
    port = next((port for port in PORTS if port not in taken), DEFAULT_PORT)
    if port != DEFAULT_PORT:
        log.info("another node of this network has the usual port", port=port)
    return port


def with_port(port: int) -> tuple[str, ...]:
    """Returns the default addresses with another port."""
    return tuple(f"{address.rpartition('/')[0]}/{port}" for address in DEFAULT_LISTEN)
