"""`gossamer join`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gossamer.node.base.address_text import is_without_peer
from gossamer.node.base.roles import Join, Resume, Role
from gossamer.node.base.settings.links import Links, parse_links
from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.base.terminal.early_stop import stopped_in_order
from gossamer.node.commands.daemon.running import LOADS, held, run_held
from gossamer.node.commands.node_options import NO_NODE_OPTIONS, Node
from gossamer.node.commands.options import settings_of
from gossamer.node.commands.texts import texts_of
from gossamer.node.commands.unnamed_peers import confirm_on_terminal
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir

if TYPE_CHECKING:
    from gossamer.node.network.lan import Neighbour


def join(
    *addresses: str,
    yes: bool = False,
    corpus: Annotated[
        tuple[str, ...] | None,
        Parameter(consume_multiple=True, show_default="none: the run has its own"),
    ] = None,
    text_field: str = "text",
    skip_bad: bool = False,
    options: Node = NO_NODE_OPTIONS,
) -> int:
    """Join the run of a peer, or go on with it.

    Without an address it joins the run whose nodes it finds in this network.

    Parameters
    ----------
    addresses
        Links that `gossamer start` and `gossamer status` show: /ip4/../tcp/../p2p/12D3..#RUN_ID
        The text that `gossamer invite` shows is such a link, too.
        An address without a peer id is dialled first, and the answering peer has to be confirmed.
    yes
        Join without a question. On a terminal `join` shows what the run will use and asks.
    corpus
        Folders, files and patterns of text of your own, which stays on this machine. A run in which
        every peer trains on its own text needs it once; other runs have no use for it.
    text_field
        Field of a .jsonl line, or column of a .parquet or .arrow file, that holds the corpus.
    skip_bad
        Leave out files and lines of the corpus that cannot be used, instead of stopping at them.
    """
    texts = texts_of(corpus)
    settings = settings_of(options)
    # What is mistyped is said before anything is touched.
    parse_links(tuple(each for each in addresses if not is_without_peer(each)))
    require_way(addresses, settings)
    with held(settings, "it looks for peers") as state_dir:
        with stopped_in_order():
            links = _links_to_try(addresses, settings, state_dir)
        role: Role
        if state_dir.has_run():
            role = Resume(
                addresses=links.addresses, corpus=texts, text_field=text_field, skip_bad=skip_bad
            )
        else:
            role = Join(
                **links._asdict(),
                asks_owner=not yes and sys.stdin.isatty() and sys.stdout.isatty(),
                corpus=texts,
                text_field=text_field,
                skip_bad=skip_bad,
            )
        DaemonFiles(state_dir).write_starting(LOADS)
        return run_held(settings, role, state_dir)


SEARCH_SECONDS = 4.0
"""Nodes answer within some tenths of a second; the question is repeated after one and two."""

_NEEDED = "gossamer join needs the address of a peer: the link that `gossamer start` printed"


def require_way(addresses: Sequence[str], settings: Settings) -> None:
    """Raises ConfigError where nothing says which run to join, and no node may be looked for."""
    is_told = addresses or settings.bootstrap or StateDir(settings.state_dir).has_run()
    if not is_told and settings.lan != "on":
        raise ConfigError([_NEEDED])


def _links_to_try(addresses: tuple[str, ...], settings: Settings, state_dir: StateDir) -> Links:
    """Returns the links of the command line, of the settings, or of nodes in this network. A node
    that has a run already may have none.

    Raises:
        ConfigError, JoinError, StateDirError: they are not usable, or there are none.
    """
    links = parse_links(confirm_on_terminal(addresses))
    if state_dir.has_run():
        if links.run_id is not None:
            state_dir.require_run(bytes.fromhex(links.run_id))
        return links
    if not links.addresses and settings.bootstrap:
        links = Links(settings.bootstrap)
    return links if links.addresses else parse_links(links_nearby())


def links_nearby() -> tuple[str, ...]:
    """Returns links to the nodes of the only run in this machine's networks.

    Raises:
        ConfigError: nodes of several runs are found.
        JoinError: no node is found.
    """
    # here: the state directory is held before trio and the network are loaded
    from gossamer.node.base.terminal.interrupting import run_interruptibly
    from gossamer.node.network.lan import look_around
    from gossamer.node.peers.members.run_exchange import JoinError

    print("looking for nodes in this network ...", flush=True)
    try:
        found = run_interruptibly(partial(look_around, SEARCH_SECONDS))
    except OSError as error:
        raise JoinError(f"{_NEEDED} (this network was not searched: {error})") from None
    return only_run(found)


def only_run(found: Sequence[Neighbour]) -> tuple[str, ...]:
    """Returns the links of the nodes that were found.

    Raises:
        ConfigError: they are in different runs.
        JoinError: there are none.
    """
    from gossamer.node.peers.members.run_exchange import JoinError  # here: see `links_nearby`

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
