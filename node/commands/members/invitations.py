"""`gossamer invite`, `members` and `revoke`: who comes in to an invite-only run."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter
from rich.table import Column, Table

from gossamer.node.app.http.client import fetch_status
from gossamer.node.base.address_text import Link
from gossamer.node.base.durations import parse_duration
from gossamer.node.base.settings.links import invitation_text
from gossamer.node.base.terminal.terminal import open_console
from gossamer.node.commands.options import NO_OPTIONS, State, state_dir_of, value_of
from gossamer.node.commands.questions import require_yes
from gossamer.node.runs.governance.inviting import (
    EXPIRES_SECONDS_MAX,
    InvitationError,
    InviteOnlyRun,
    NoAddressError,
)
from gossamer.node.runs.governance.voting import VotingDesk, in_words
from gossamer.node.telemetry.status import Status, farthest
from gossamer.protocol.ids import PeerId


def invite(
    *,
    slots: int = 1,
    expires: str = "7d",
    depth: Annotated[int | None, Parameter(show_default="as many as this node may give")] = None,
    options: State = NO_OPTIONS,
) -> int:
    """Print an invitation to this node's run, for gossamer join.

    Parameters
    ----------
    slots
        Number of nodes that it lets in, at most 64. Anybody who has the text can use it.
    expires
        Time until which it lets nodes in, such as 30m, 12h or 7d.
    depth
        Levels of nodes that the invited may let in below themselves; 0: they may invite nobody.
    """
    state_dir = state_dir_of(options)
    with value_of("--expires"):
        seconds = parse_duration(expires, 1, EXPIRES_SECONDS_MAX)
    run = InviteOnlyRun.here(state_dir)
    status = fetch_status(state_dir)
    if status.put_out is not None:
        raise InvitationError(f"an invitation of this node lets nobody in: {status.put_out}")
    address = farthest(status.addresses)
    if address is None:
        raise NoAddressError("this node has no address that others could dial: try again later")
    until = int(time.time()) + seconds
    invitation = run.invite(slots, until, depth, _addresses_of_others(status, address))
    run_id = run.manifest.run_id.hex()
    print(Link(address, run_id, status.settled_head, invitation_text(invitation)))
    print(
        f"Lets in {slots} {'node' if slots == 1 else 'nodes'} until {_when(until)}. Send it over a "
        "channel that you trust: anybody who has it can use it.",
        file=sys.stderr,
    )
    return 0


def members(*, options: State = NO_OPTIONS) -> int:
    """List the members of an invite-only run.

    Votes of members to put somebody out stand below the list.
    """
    state_dir = state_dir_of(options)
    run = InviteOnlyRun.here(state_dir)
    desk = VotingDesk(run, state_dir)
    whole = Column("member", overflow="fold")
    table = Table(whole, "let in by", "since", "may invite", "by invitation", "")
    for row in run.members():
        invited = f"{row.depth} deep" if row.depth else "nobody"
        table.add_row(
            row.peer_id,
            _short(row.sponsor) if row.sponsor else "root of the run",
            _when(row.unix_seconds) if row.sponsor else "",
            invited if row.is_in else "",
            _short(row.invitation) if row.invitation else "",
            "" if row.is_in else "out by vote" if desk.is_voted_out(row) else "out",
        )
    # A pipe gets whole ids; a terminal cuts what it has no room for.
    open_console(width=None if sys.stdout.isatty() else 200).print(table)
    for vote in desk.open_votes():
        voters = sorted(vote.tally.voters) if vote.tally is not None else ()
        by = f" Votes of {', '.join(map(_short, voters))}." if voters else ""
        own = " This node votes for it." if vote.is_wished else ""
        print(f"To put out {vote.target}: {in_words(vote)}.{by}{own}")
    return 0


def revoke(
    peer: str,
    *,
    withdraw: bool = False,
    yes: bool = False,
    options: State = NO_OPTIONS,
) -> int:
    """Put a member out of an invite-only run for good.

    All that came in through it go with it. A node that is no root and not above the member votes:
    the member goes when the votes have two thirds of the standing. A vote can be withdrawn, so the
    command does not ask.

    Parameters
    ----------
    peer
        Peer id, or id of an invitation, as `gossamer members` shows it; its last characters do.
    withdraw
        Take the vote of this node back. What the others have heard of it counts until it ends.
    yes
        Do not ask.
    """
    state_dir = state_dir_of(options)
    run = InviteOnlyRun.here(state_dir)
    target = run.named(peer)
    if withdraw or not run.may_revoke(target):
        return _vote(VotingDesk(run, state_dir), target, withdraw=withdraw)
    if not yes and not _is_confirmed(run, target):
        print("Nothing was changed.")
        return 1
    before = [f"Out already: {each}" for each in run.out_already(target)]
    lines = [f"Put out: {each}" for each in run.revoke(target)]
    print("\n".join([*lines, *before] or ["Nobody has come in by it yet."]))
    print("The node tells the others within a second, or when it starts.")
    return 0


def _is_confirmed(run: InviteOnlyRun, target: PeerId) -> bool:
    """Shows who goes, and asks. Raises ConfigError: nobody is at the terminal."""
    lines = [f"Goes for good: {each}" for each in run.members_with(target)]
    lines += [f"Out already: {each}" for each in run.out_already(target)]
    print("\n".join(lines or [f"Nobody has come in by {target} yet. Nobody will be able to."]))
    return require_yes("A node that was put out comes back only as a new one. Go on?", yes=False)


def _vote(desk: VotingDesk, target: PeerId, *, withdraw: bool) -> int:
    if withdraw:
        if not desk.withdraw(target):
            raise InvitationError(f"this node does not vote on {target}")
        print(f"This node votes on {target} no more. A vote that the others have ends by itself.")
        return 0
    vote = desk.vote(target)
    print(f"{target} did not come in through this node, which votes that it goes.")
    print(f"This vote counted: {in_words(vote)}.")
    print("The node signs it within a second, or when it runs and has standing, and renews it.")
    return 0


def _addresses_of_others(status: Status, own: str) -> list[str]:
    """Returns an address of each connected peer."""
    found = []
    for peer in status.peers:
        address = farthest(peer.addresses)
        if peer.connected and address is not None:
            whole = address if "/p2p/" in address else f"{address}/p2p/{peer.peer_id}"
            if whole != own:
                found.append(whole)
    return found


def _short(peer: PeerId) -> str:
    return f"...{peer[-12:]}"


def _when(unix_seconds: int) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
