"""`gossamer watch`."""

from __future__ import annotations

import json as json_text
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gossamer.node.base.durations import parse_duration
from gossamer.node.base.settings.links import Links, parse_links
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.terminal import open_console, plain_table
from gossamer.node.base.terminal.units import format_count
from gossamer.node.commands.options import value_of
from gossamer.node.commands.unnamed_peers import confirm_on_terminal
from gossamer.node.commands.views.status_view import DASH, loss_text, shown_peer

if TYPE_CHECKING:
    from gossamer.node.peers.watching import Show, Tell, View
    from gossamer.protocol.manifest import Manifest

EVERY_SECONDS = (2, 3600)
"""Least and most time between two looks: each is some hundred KiB that a peer gives away."""

ROUNDS_SHOWN = 10


def watch(
    *links: str,
    every: Annotated[str, Parameter(show_default=True)] = "10s",
    json: bool = False,
) -> int:
    """Look at a run from outside, without joining it.

    It shows rounds, members and losses as one of the run's peers tells them, and checks the
    signatures. No model and no corpus is fetched, nothing is written to the disk, and no node has
    to run here. A run that is not open shows nothing to others than its members.

    Parameters
    ----------
    links
        Links that `gossamer start` and `gossamer status` show: /ip4/../tcp/../p2p/12D3..#RUN_ID
    every
        Time between two looks on a terminal, 2s to 1h. Elsewhere it looks once.
    json
        Look once, and print JSON.
    """
    if not links:
        raise ConfigError(["gossamer watch needs the link that `gossamer start` printed"])
    with value_of("--every"):
        seconds = parse_duration(every, *EVERY_SECONDS)
    parsed = parse_links(confirm_on_terminal(links))
    console = open_console()
    if json or not sys.stdout.isatty():
        _watch(parsed, _show_json if json else _show_text(console), None, _tell_on_stderr)
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(manifest: Manifest, view: View | None, problem: str) -> None:
            live.update(_screen(manifest, view, problem), refresh=True)

        def tell(does: str) -> None:
            live.update(Text(does), refresh=True)

        with suppress(KeyboardInterrupt):
            _watch(parsed, show, seconds, tell)
    return 0


def _watch(links: Links, show: Show, every_seconds: float | None, tell: Tell) -> None:
    """See `watch_run`. A first word is told before anything that takes time.

    Raises:
        KeyboardInterrupt: the person has had enough.
    """
    first, *others = (printable(address.partition("/p2p/")[0]) for address in links.addresses)
    more = f" and {len(others)} more" if others else ""
    tell(f"looking from outside at the run of the peer at {first}{more} ...")
    # here: trio and libp2p take seconds to import
    from gossamer.node.app.outside import watch_run
    from gossamer.node.base.terminal.interrupting import run_interruptibly
    from gossamer.node.telemetry.logs import configure_logs

    configure_logs("text", "error")
    run_interruptibly(partial(watch_run, links, show, every_seconds, tell))


def _tell_on_stderr(does: str) -> None:
    print(does, file=sys.stderr, flush=True)


def _show_text(console: Console) -> Show:
    def show(manifest: Manifest, view: View | None, problem: str) -> None:
        console.print(_screen(manifest, view, problem))

    return show


def _show_json(manifest: Manifest, view: View | None, _problem: str) -> None:
    print(json_text.dumps(_fields(manifest, view), indent=2))


def _fields(manifest: Manifest, view: View | None) -> dict[str, Any]:
    rounds = view.rounds if view is not None else ()
    newest = rounds[-1] if rounds else None
    return {
        "run_id": manifest.run_id.hex(),
        "run_name": manifest.name,
        "num_parameters": manifest.model.num_parameters,
        "round": newest.number if newest else 0,
        "final_round": manifest.last_round,
        "tokens_total": newest.tokens_total if newest else 0,
        "loss": newest.loss if newest else None,
        "peers": [
            {
                "peer_id": peer,
                "name": announce.name,
                "phase": announce.phase,
                "round": announce.round,
                "tokens_per_second": announce.capacity.tokens_per_second or None,
                "device": announce.capacity.device,
            }
            for peer, announce in (view.peers.items() if view is not None else ())
        ],
        "rounds": [
            {
                "round": each.number,
                "members": list(each.members),
                "tokens": each.tokens,
                "loss": each.loss,
            }
            for each in rounds
        ],
    }


def _screen(manifest: Manifest, view: View | None, problem: str) -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("run", Text(printable(f"{manifest.name} ({manifest.run_id.hex()[:16]})")))
    facts.add_row("model", f"{manifest.model.num_parameters:,} parameters")
    if problem:
        facts.add_row("problem", Text(printable(problem), style="red"))
    if view is None or not view.rounds:
        facts.add_row("round", "0: no round is committed yet" if view is not None else DASH)
        return Group(facts)
    newest = view.rounds[-1]
    final = f" of {manifest.last_round:,}" if manifest.last_round else ""
    num_members = len(newest.members)
    members = "1 member" if num_members == 1 else f"{num_members:,} members"
    facts.add_row("round", f"{newest.number:,}{final}, with {members}")
    facts.add_row("tokens", f"{format_count(newest.tokens_total)} by the run so far")
    facts.add_row("loss", f"{loss_text(newest.loss)} nats per token, as its members say")
    return Group(facts, Text(), _rounds(view), Text(), _peers(view))


def _rounds(view: View) -> Table:
    table = plain_table(("round", "members", "tokens", "loss"), ())
    for each in reversed(view.rounds[-ROUNDS_SHOWN:]):
        table.add_row(
            f"{each.number:,}", str(len(each.members)), f"{each.tokens:,}", loss_text(each.loss)
        )
    return table


def _peers(view: View) -> Table:
    texts = ("peer", "phase", "device")
    table = plain_table(("round", "tokens/s", *texts), texts)
    for peer, announce in view.peers.items():
        speed = announce.capacity.tokens_per_second
        table.add_row(
            f"{announce.round:,}",
            f"{speed:,.0f}" if speed else DASH,
            Text(shown_peer(peer, announce.name)),
            announce.phase,
            Text(printable(announce.capacity.device)),
        )
    return table
