"""`gossamer peers`."""

from __future__ import annotations

import csv as csv_text
import json as json_text
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TextIO

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gossamer.node.app.http.client import ClientError, fetch_status
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.terminal import open_console, plain_table
from gossamer.node.base.terminal.units import format_count
from gossamer.node.commands.options import NO_OPTIONS, State, reading_settings_of
from gossamer.node.runs.results.credit import Credit, Credits, TeamCredit, by_team, read_credits
from gossamer.node.storage.owner_files import MemberName, NamesFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import PeerStatus, Status

Cell = str | int | float | bool

COLUMNS = ("rank", "peer_id", "tokens", "share", "rounds", "first_round", "last_round", "you")


TEAM_COLUMNS = ("rank", "team", "tokens", "share", "members", "you")


def peers(
    *,
    by: Literal["tokens", "rounds", "last", "peer", "team"] = "tokens",
    csv: bool = False,
    json: bool = False,
    options: State = NO_OPTIONS,
) -> int:
    """Show what each member has given: tokens, rank, share of the run.

    The numbers are those of the signed headers of all rounds. They are the same on every node, and
    a restart changes nothing. The node need not run. Names and teams are the newest that this node
    has heard; anybody may take any name, and name any team.

    Parameters
    ----------
    by
        Order: most tokens, most rounds, newest last round, or peer id. team adds up the members of
        each team.
    csv
        Print CSV with a line of column names. It has no names of members: a spreadsheet may take
        one for a formula.
    json
        Print JSON.
    """
    if csv and json:
        raise ConfigError(["--csv and --json exclude each other"])
    state_dir = StateDir(reading_settings_of(options).state_dir)
    credits = read_credits(state_dir)
    if csv and by != "team":
        write_csv(credits.by(by), sys.stdout)
        return 0
    status = status_here(state_dir)
    names = names_of(state_dir, credits.manifest.run_id, status)
    if by == "team":
        teams = by_team(credits, names)
        fields = list(map(_team_fields, teams))
    else:
        rows, audits = credits.by(by), _audits_of(status)
        fields = [
            {
                **_fields(row),
                **msgspec.structs.asdict(names.get(row.peer_id, MemberName())),
                "audits": audits.get(row.peer_id, ""),
            }
            for row in rows
        ]
    if csv:
        _write_rows(TEAM_COLUMNS, fields, sys.stdout)
        return 0
    if json:
        what = "teams" if by == "team" else "peers"
        print(json_text.dumps({**_run_of(credits), what: fields}, indent=2))
        return 0
    console = open_console(width=None if sys.stdout.isatty() else 200)
    if fields:
        console.print(_team_table(teams) if by == "team" else _peer_table(rows, names, audits))
    console.print(summary(credits), highlight=False, soft_wrap=True)
    if credits.missing_rounds:
        _tell_missing(credits.missing_rounds, console)
    return 0


def _tell_missing(num_rounds: int, console: Console) -> None:
    rounds = "1 round" if num_rounds == 1 else f"{num_rounds:,} rounds"
    console.print(
        f"The records of {rounds} are missing on this disk: their tokens count for nobody here.",
        highlight=False,
        soft_wrap=True,
    )


def _peer_table(
    rows: Sequence[Credit], names: Mapping[str, MemberName], audits: Mapping[str, str]
) -> Table:
    titles = ("rank", "peer", "tokens", "share", "rounds", "last round", "")
    table = plain_table((*titles, "audits") if audits else titles, ("peer", "", "audits"))
    for row in rows:
        table.add_row(
            *(str(row.rank), Text(_shown(row.peer_id, names)), f"{row.tokens:,}"),
            f"{row.share:.1%}",
            *(f"{row.rounds:,}", f"{row.last_round:,}", "you" if row.is_you else ""),
            *([audits.get(row.peer_id, "")] if audits else []),
        )
    return table


def _team_table(teams: Sequence[TeamCredit]) -> Table:
    table = plain_table(("rank", "team", "tokens", "share", "members", ""), ("team", ""))
    for row in teams:
        table.add_row(
            *(str(row.rank) if row.team else "", Text(printable(row.team) or "no team")),
            *(f"{row.tokens:,}", f"{row.share:.1%}", f"{row.members:,}"),
            "you" if row.has_you else "",
        )
    return table


def status_here(state_dir: StateDir) -> Status | None:
    """Returns what the node of a state directory says now; None where no node runs."""
    try:
        return fetch_status(state_dir)
    except ClientError:
        return None


def names_of(state_dir: StateDir, run_id: bytes, status: Status | None) -> dict[str, MemberName]:
    """Returns how members want to be shown, by peer id: the newest that the node has heard, also of
    those that are away."""
    names = NamesFile(state_dir.names_path, run_id).load()
    if status is None:
        return names
    names |= {peer.peer_id: MemberName(peer.name, peer.team) for peer in status.peers}
    names[status.peer_id] = MemberName(status.name, status.team)
    return {peer: shown for peer, shown in names.items() if shown != MemberName()}


def _audits_of(status: Status | None) -> dict[str, str]:
    """Returns the verdicts on the work of peers, by peer id; none where no node runs."""
    peers = () if status is None else status.peers
    return {peer.peer_id: text for peer in peers if (text := _audits_text(peer))}


def _audits_text(peer: PeerStatus) -> str:
    counts = (("good", peer.audits_good), ("poor", peer.audits_poor))
    return ", ".join(f"{count} {word}" for word, count in counts if count)


def _shown(peer_id: str, names: Mapping[str, MemberName]) -> str:
    shown = names.get(peer_id, MemberName())
    team = f"({printable(shown.team)})" if shown.team else ""
    return " ".join(filter(None, (peer_id, printable(shown.name), team)))


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
    """Writes rows with a line of names.

    Args:
        with_you: whether to say which row is this node's.
    """
    _write_rows(COLUMNS if with_you else COLUMNS[:-1], list(map(_fields, rows)), file)


def _write_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Cell]], file: TextIO) -> None:
    writer = csv_text.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _as_cell(value) for name, value in row.items()})


def _as_cell(value: Cell) -> Cell:
    """A spreadsheet takes a text that begins so for a formula; with a quote before it, it does
    not."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@"))
    return f"'{value}" if is_formula else value


def _team_fields(row: TeamCredit) -> dict[str, Cell]:
    return {
        "rank": row.rank,
        "team": row.team,
        "tokens": row.tokens,
        "share": round(row.share, 6),
        "members": row.members,
        "you": row.has_you,
    }


def _fields(row: Credit) -> dict[str, Cell]:
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
