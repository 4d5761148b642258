"""How peers of other networks reach this machine, asked of them while no node runs here."""

from __future__ import annotations

from functools import partial

import trio

from gossamer.node.app.listening import listen_addresses
from gossamer.node.base.address_text import parse_link
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.interrupting import run_interruptibly
from gossamer.node.commands.machine.state_checks import Check
from gossamer.node.network.home_router.port_mapping import PortMapper, UpnpGateway
from gossamer.node.network.identity import Identity, IdentityError
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.transport import TransportError
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.reach_text import port_of_text, reach_text

PEERS_ASKED_MAX = 8
"""Peers that are connected to: two observers of other networks tell the class of a router."""

CONNECT_SECONDS_MAX = 12.0
"""Longest wait for all connections: one dial gives up after 10 s."""

ANSWER_SECONDS_MAX = 20.0
"""Longest wait for a peer that dials this machine: the first one is asked after 5 s, and it waits
4 s for each port."""

LOOK_SECONDS = 0.2


def check_reach_of_idle(settings: Settings, address: str | None) -> Check | None:
    """Listens as a node would, and has peers dial this machine. None if no peer is known.

    Args:
        address: a peer that the caller names, besides those that the node has known before.
    """
    state_dir = StateDir(settings.state_dir)
    ways = _ways(state_dir, address)
    if not ways:
        return None
    try:
        identity = Identity.load(state_dir.identity_path)  # a closed run answers its members only
    except FileNotFoundError:
        identity = Identity.generate()
    except IdentityError:
        return None  # the check of the state directory says what is wrong with it
    try:
        port = state_dir.addresses.read_port()
        return run_interruptibly(partial(_ask, settings, port, identity, ways))
    except TransportError as error:
        return Check("reach", "warn", str(error), "Then ask again, to know who can reach this node")


def _ways(state_dir: StateDir, address: str | None) -> list[tuple[str, ...]]:
    """The addresses of each peer that may be asked, at most `PEERS_ASKED_MAX` peers."""
    given = [address] if address is not None and _is_link(address) else []
    seeds = [*given, *state_dir.addresses.read_seeds()]
    known = [addresses for _, addresses in state_dir.known_peers().newest_first()]
    ways = [*((each.partition("#")[0],) for each in seeds), *known]
    return list(dict.fromkeys(each for each in ways if each))[:PEERS_ASKED_MAX]


def _is_link(text: str) -> bool:
    try:
        parse_link(text)
    except ValueError:
        return False
    return True


async def _ask(
    settings: Settings, port: int, identity: Identity, ways: list[tuple[str, ...]]
) -> Check:
    async with (
        open_libp2p_transport(
            identity,
            await listen_addresses(settings, port),
            announced=settings.announce,
            port=port,
        ) as transport,
        trio.open_nursery() as nursery,
    ):
        if settings.port_mapping == "on":
            own = transport.own
            mapper = PortMapper(transport.port, UpnpGateway(), own.interfaces, own.note_mapping)
            nursery.start_soon(mapper.run)
        await _connect(transport, ways)
        num_peers = len(transport.peers())
        if num_peers:
            with trio.move_on_after(ANSWER_SECONDS_MAX):
                while transport.reach().reach != "open":  # noqa: ASYNC110 - sets no event
                    await trio.sleep(LOOK_SECONDS)
        check = _check(transport, settings, num_peers, len(ways))
        nursery.cancel_scope.cancel()
    return check


async def _connect(transport: Libp2pTransport, ways: list[tuple[str, ...]]) -> None:
    async def connect(addresses: tuple[str, ...]) -> None:
        for address in addresses:
            try:
                await transport.connect(address)
                return
            except TransportError:
                continue

    with trio.move_on_after(CONNECT_SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            for addresses in ways:
                nursery.start_soon(connect, addresses)


def _check(transport: Libp2pTransport, settings: Settings, num_peers: int, num_known: int) -> Check:
    known = transport.reach()
    outer = [endpoint.address for endpoint in transport.own.outer()]
    first = next(iter([*settings.announce, *outer, *transport.addresses()]), "")
    if not num_peers:
        silent = (
            "the only known peer does not answer"
            if num_known == 1
            else f"none of {num_known} known peers answers"
        )
        text = f"{silent}, so nobody can say how it reaches this node"
        advice = "Check the network, or ask for the address of a peer that runs"
        return Check("reach", "warn", text, advice)
    text = reach_text(known.reach, known.num_confirmed, first, ())
    if known.reach == "open":
        return Check("reach", "ok", text)
    port = port_of_text(first)
    advice = f"To be reached by all members turn on UPnP, or open TCP port {port} on the router"
    return Check("reach", "ok" if known.reach == "crossable" else "warn", text, advice)
