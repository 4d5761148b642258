"""`gossamer peers`."""

from __future__ import annotations

import csv as csv_text
import json as json_text
import sys
from collections.abc import Iterable, Mapping
from typing import Literal, TextIO

from rich.table import Table
from rich.text import Text

from gossamer.node.app.client import ClientError, fetch_status
from gossamer.node.base.settings import ConfigError
from gossamer.node.base.terminal import open_console
from gossamer.node.base.units import format_count
from gossamer.node.commands.options import State, reading_settings_of
from gossamer.node.runs.credit import Credit, Credits, read_credits
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.logs import printable

COLUMNS = ("rank", "peer_id", "tokens", "share", "rounds", "first_round", "last_round", "you")


def peers(
    *,
    by: Literal["tokens", "rounds", "last", "peer"] = "tokens",
    csv: bool = False,
    json: bool = False,
    options: State = None,
) -> int:
    """Show what each member has given: tokens, rank, share of the run.

    The numbers are those of the signed headers of all rounds. They are the same on every node, and
    a restart changes nothing. The node need not run.

    Parameters
    ----------
    by
        Order: most tokens, most rounds, newest last round, or peer id.
    csv
        Print CSV with a line of names.
    json
        Print JSON.
    """
    if csv and json:
        raise ConfigError(["--csv and --json exclude each other"])
    state_dir = StateDir(reading_settings_of(options).state_dir)
    credits = read_credits(state_dir)
    rows = credits.by(by)
    if csv:
        write_csv(rows, sys.stdout)
        return 0
    names = names_here(state_dir)
    if json:
        named = [{**_fields(row), "name": names.get(row.peer_id, "")} for row in rows]
        print(json_text.dumps({**_run_of(credits), "peers": named}, indent=2))
        return 0
    table = Table.grid(padding=(0, 2))
    for title in ("rank", "peer", "tokens", "share", "rounds", "last round", ""):
        is_text = title in ("peer", "")
        table.add_column(justify="left" if is_text else "right", overflow="fold")
    table.add_row("rank", "peer", "tokens", "share", "rounds", "last round", "", style="dim")
    for row in rows:
        table.add_row(
            *(str(row.rank), Text(_shown(row.peer_id, names)), f"{row.tokens:,}"),
            f"{row.share:.1%}",
            *(f"{row.rounds:,}", f"{row.last_round:,}", "you" if row.is_you else ""),
        )
    console = open_console(width=None if sys.stdout.isatty() else 200)
    if rows:
        console.print(table)
    console.print(summary(credits), highlight=False, soft_wrap=True)
    if credits.missing_rounds:
        console.print(
            f"The records of {credits.missing_rounds:,} rounds are missing on this disk: their "
            "tokens count for nobody here.",
            highlight=False,
            soft_wrap=True,
        )
    return 0


def names_here(state_dir: StateDir) -> dict[str, str]:
    """Returns the display names that the peers have now, as the running node hears them, and its
    own; empty where no node runs. A peer that is gone has none."""
    try:
        status = fetch_status(state_dir)
    except ClientError:
        return {}
    names = {peer.peer_id: peer.name for peer in status.peers}
    names[status.peer_id] = status.name
    return {peer: name for peer, name in names.items() if name}


def _shown(peer_id: str, names: Mapping[str, str]) -> str:
    return f"{peer_id} {printable(names[peer_id])}" if peer_id in names else peer_id


def summary(credits: Credits) -> str:
    """Returns a line such as `you: 2.8 M tokens, 31 % of the run (rank 2 of 5, round 120)`."""
    you = credits.you
    if you is None:
        mine = "you: no tokens in this run yet"
    else:
        mine = f"you: {format_count(you.tokens)} tokens, {you.share * 100:.0f} % of the run"
    rank = f"rank {you.rank} of {len(credits.rows)}, " if you is not None else ""
    return f"{mine} ({rank}round {credits.round:,})"


def write_csv(rows: Iterable[Credit], file: TextIO, *, with_you: bool = True) -> None:
    """Writes rows with a line of names. No value needs care in a spreadsheet: ids are base58.

    Args:
        with_you: whether to say which row is this node's.
    """
    columns = COLUMNS if with_you else COLUMNS[:-1]
    writer = csv_text.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(map(_fields, rows))


def _fields(row: Credit) -> dict[str, str | int | float | bool]:
    return {
        "rank": row.rank,
        "peer_id": row.peer_id,
        "tokens": row.tokens,
        "share": round(row.share, 6),
        "rounds": row.rounds,
        "first_round": row.first_round,
        "last_round": row.last_round,
        "you": row.is_you,
    }


def _run_of(credits: Credits) -> dict[str, str | int]:
    return {
        "run_id": credits.manifest.run_id.hex(),
        "round": credits.round,
        "head": credits.head.hex(),
        "tokens_total": credits.tokens_total,
        "missing_rounds": credits.missing_rounds,
    }
