"""The runs that nodes of this machine's networks take part in, for a `join` without an address."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from gossamer.node.base.settings import ConfigError, Settings
from gossamer.node.network.lan import Neighbour, look_around
from gossamer.node.peers.run_exchange import JoinError

SEARCH_SECONDS = 4.0
"""Nodes answer within some tenths of a second; the question is repeated after one and two."""

_NEEDED = "gossamer join needs the address of a peer: the link that `gossamer start` printed"


def links_nearby(settings: Settings) -> tuple[str, ...]:
    """Returns links to the nodes of the only run in this machine's networks.

    Raises:
        ConfigError: nodes of several runs are found, or none may be looked for.
        JoinError: no node is found.
    """
    if settings.lan != "on":
        raise ConfigError([_NEEDED])
    print("looking for nodes in this network ...", flush=True)
    try:
        found = trio.run(partial(look_around, SEARCH_SECONDS))
    except OSError as error:
        raise JoinError(f"{_NEEDED} (this network was not searched: {error})") from None
    return only_run(found)


def only_run(found: Sequence[Neighbour]) -> tuple[str, ...]:
    """Returns the links of the nodes that were found.

    Raises:
        ConfigError: they are in different runs.
        JoinError: there are none.
    """
    runs = {neighbour.run_id: neighbour for neighbour in found}
    if not runs:
        raise JoinError(f"{_NEEDED}; no node was found in this network")
    if len(runs) > 1:
        choices = [f"  gossamer join {neighbour.link}" for _, neighbour in sorted(runs.items())]
        raise ConfigError(
            ["nodes of several runs are in this network; join one of them:", *choices]
        )
    return tuple(
        f"{address}#{neighbour.run_id}" for neighbour in found for address in neighbour.addresses
    )
