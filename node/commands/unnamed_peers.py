"""Addresses without a peer id: the person confirms which peer answers there."""

from __future__ import annotations

import sys

from gossamer.node.base.address_text import is_without_peer
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.terminal import ask


def confirm_on_terminal(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the addresses, each with a peer id.

    Raises:
        ConfigError: no person is there to confirm the peer, or the person does not.
        TransportError: no peer answers there.
    """
    named: list[str] = []
    for address in addresses:
        if not is_without_peer(address):
            named.append(address)
            continue
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ConfigError(
                [f"{address} names no peer, and no terminal is here to confirm which one answers; "
                 "give the whole link that `gossamer start` printed"]
            )  # fmt: skip
        peer = answering_peer(address.strip())
        answer = ask(f"{address} answers as peer {peer}. Is that the one? [y/N] ")
        if answer.lower() not in ("y", "yes"):
            raise ConfigError([f"{address}: the peer there was not confirmed"])
        named.append(f"{address.strip()}/p2p/{peer}")
    return tuple(named)


def answering_peer(address: str) -> str:
    """Dials an address under an identity of the moment; returns the peer id that answers.

    Raises:
        TransportError: no peer answers there.
    """
    # here: trio and libp2p take seconds to import, and most addresses name their peer
    from gossamer.node.base.terminal.interrupting import run_interruptibly
    from gossamer.node.network.identity import Identity
    from gossamer.node.network.over_libp2p.host import open_libp2p_transport

    async def dial() -> str:
        async with open_libp2p_transport(Identity.generate(), ()) as transport:
            return await transport.connect(address)

    return run_interruptibly(dial)
