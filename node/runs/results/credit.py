"""The credit of each member: the tokens that committed rounds took of it, from the signed headers.

The newest headers lie on the disk of every node of the run, and with them a summary of what the
older ones took (`protocol.policy.heads.chain_checkpoint`). So the totals hold over restarts, and
are the same on every node that stands at the same head. A summary names 4,096 members: in a larger
run, those that gave least before may be missing or begin anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gossamer.node.network.identity import Identity, IdentityError
from gossamer.node.runs.manifest_here import chain_here, manifest_here
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.owner_files import MemberName
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.heads.chain_summary import (
    NO_SUMMARY,
    ChainSummary,
    extended,
    over_gap,
)
from gossamer.protocol.state.chain import Header

Order = Literal["tokens", "rounds", "last", "peer"]


@dataclass(frozen=True)
class Credit:
    """The credit of one member. It has a rank by its tokens; equal tokens have equal ranks."""

    rank: int
    peer_id: PeerId
    tokens: int
    share: float
    """Part of the tokens of the whole run, 0 to 1."""
    rounds: int
    """Number of rounds that took tokens of it."""
    first_round: int
    last_round: int
    is_you: bool
    """Whether it is the node of this state directory."""


@dataclass(frozen=True)
class Credits:
    """The credit of all members of a run at one head."""

    manifest: Manifest
    round: int
    head: Digest
    tokens_total: int
    """Tokens of the whole run, those of rounds that are missing here included."""
    missing_rounds: int
    """Rounds whose records this disk lacks; 0 unless it is damaged."""
    rows: tuple[Credit, ...]
    """By rank; equal ranks by peer id."""

    @property
    def you(self) -> Credit | None:
        """The credit of this node; None while no round took tokens of it."""
        return next((row for row in self.rows if row.is_you), None)

    def by(self, order: Order) -> list[Credit]:
        """Returns the rows in an order: the most, the newest, or the first letter first."""
        keys = {
            "tokens": lambda row: row.rank,
            "rounds": lambda row: -row.rounds,
            "last": lambda row: -row.last_round,
            "peer": lambda row: row.peer_id,
        }
        return sorted(self.rows, key=keys[order])


@dataclass(frozen=True)
class TeamCredit:
    """The credit of a team, as its members name it now or named it last."""

    rank: int
    team: str
    """Empty for the members that name none."""
    tokens: int
    share: float
    """Part of the tokens of the whole run, 0 to 1."""
    members: int
    has_you: bool


def by_team(credits: Credits, names: Mapping[str, MemberName]) -> list[TeamCredit]:
    """Returns the credit of each team, most tokens first; the members without one come last."""
    teams: dict[str, list[Credit]] = {}
    for row in credits.rows:
        teams.setdefault(names.get(row.peer_id, MemberName()).team, []).append(row)
    sums = {team: sum(row.tokens for row in rows) for team, rows in teams.items()}
    ordered = sorted(teams, key=lambda team: (not team, -sums[team], team))
    return [
        TeamCredit(
            rank=1 + sum(1 for other in ordered if other and sums[other] > sums[team]),
            team=team,
            tokens=sums[team],
            share=sum(row.share for row in teams[team]),
            members=len(teams[team]),
            has_you=any(row.is_you for row in teams[team]),
        )
        for team in ordered
    ]


def read_credits(state_dir: StateDir, at: Digest | None = None) -> Credits:
    """Reads the credit of all members. A daemon may run on the directory meanwhile.

    Args:
        at: the head up to which rounds count, which is on the disk; None: the newest.

    Raises:
        StateDirError: there is no run, or its files are damaged.
    """
    manifest = manifest_here(state_dir)
    chain, head = chain_here(state_dir, manifest, at)
    entry = chain.entry(head)
    table, missing = _table(chain, head)
    return Credits(
        manifest=manifest,
        round=entry.round,
        head=head,
        tokens_total=entry.tokens_total,
        missing_rounds=missing,
        rows=_rows(table, entry.tokens_total, _own_id(state_dir)),
    )


def _own_id(state_dir: StateDir) -> PeerId | None:
    try:
        return Identity.load(state_dir.identity_path).peer_id
    except (FileNotFoundError, IdentityError):
        return None


def _table(chain: ChainStore, head: Digest) -> tuple[ChainSummary, int]:
    """Returns the credit up to a head, and the number of the rounds whose records are missing."""
    start, summary, newest, num_missing = chain.start, NO_SUMMARY, chain.genesis, 0
    heads = [each for piece in chain.pieces_to(head) for each in piece]
    if start is not None and chain.entry(head).round < start.round:
        heads = chain.ancestors(head, len(chain))[::-1]  # those that say who has stake at the start
    elif start is not None:
        summary, newest = start.decoded_summary(), Digest(start.head)
    for headers in _runs(chain, heads):
        first = headers[0]
        if first.parent != newest:
            try:
                num_missing += first.round - 1 - summary.round
                summary = over_gap(summary, first)
            except MalformedError:  # what is known before it is of another branch
                num_missing = first.round - 1
                summary = ChainSummary(num_missing, (), 0, b"")
        summary, newest = extended(summary, headers), headers[-1].digest
    return summary, num_missing


def _runs(chain: ChainStore, heads: Iterable[Digest]) -> Iterator[list[Header]]:
    """Yields the headers of these rounds that can be read, oldest first, in lists without a gap."""
    run: list[Header] = []
    for head in heads:
        try:
            header = chain.header(head)
        except (KeyError, OSError, RemoteProtocolError):
            continue  # damaged since the chain was opened
        if run and header.parent != run[-1].digest:
            yield run
            run = []
        run.append(header)
    if run:
        yield run


def _rows(table: ChainSummary, tokens_total: int, own_id: PeerId | None) -> tuple[Credit, ...]:
    ranked = sorted(table.rows, key=lambda row: (-row.tokens, row.peer_id))
    rows: list[Credit] = []
    for place, row in enumerate(ranked, start=1):
        is_equal = rows and rows[-1].tokens == row.tokens
        rows.append(
            Credit(
                rank=rows[-1].rank if is_equal else place,
                peer_id=PeerId(row.peer_id),
                tokens=row.tokens,
                share=row.tokens / tokens_total,
                rounds=row.rounds,
                first_round=row.first_round,
                last_round=row.last_round,
                is_you=row.peer_id == own_id,
            )
        )
    return tuple(rows)
