"""Votes of members to put somebody out, from what lies in a state directory.

The order is a file that the node takes when it runs: the node signs the vote, at its own head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gossamer.node.peers.members.settled_stakes import SettledStakes
from gossamer.node.runs.governance.inviting import (
    InvitationError,
    InviteOnlyRun,
    MemberRow,
    expulsions_of,
)
from gossamer.node.runs.manifest_here import chain_here
from gossamer.node.storage.admission_files import ExpulsionFile, TooManyWishesError
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId, public_key_of
from gossamer.protocol.policy.heads.head_choice import UNDO_ROUNDS_MAX, HeadChoice
from gossamer.protocol.policy.members.expulsion_count import Tally
from gossamer.protocol.policy.members.expulsions import Expulsions
from gossamer.protocol.policy.members.roll_order import peer_of
from gossamer.protocol.wire.expulsion_messages import VOTE_PERIOD, VOTES_MAX

FIRST_ROUND = VOTE_PERIOD + UNDO_ROUNDS_MAX
"""Round of a run from which on there is a settled head that votes may name."""


@dataclass(frozen=True)
class OpenVote:
    """The votes on one target, for people."""

    target: PeerId
    tally: Tally | None
    """None while the run has no head at which votes count."""
    is_wished: bool
    """Whether the operator of this node wants it out."""


class VotingDesk:
    """The votes in one state directory, and those of its operator."""

    def __init__(self, run: InviteOnlyRun, state_dir: StateDir) -> None:
        """Raises InvitationError: the file of the votes is damaged."""
        self._run = run
        self._state_dir = state_dir
        self._file = ExpulsionFile(state_dir.root)
        try:
            self._expulsions: Expulsions = expulsions_of(run.roll, state_dir)
        except RemoteProtocolError as error:
            raise InvitationError(
                f"the votes of the run are damaged ({error}): start the node, which gets them from "
                "the other members, and try again"
            ) from error

    @cached_property
    def _standings(self) -> SettledStakes:
        manifest = self._run.manifest
        chain, head = chain_here(self._state_dir, manifest)
        choice = HeadChoice(KnownRounds(chain), PeerId(manifest.founder), self._run.roll.branch_of)
        return SettledStakes(chain, choice, lambda: head)

    def vote(self, target: PeerId) -> OpenVote:
        """Leaves the wish that a member, or all of an invitation, go.

        Raises:
            InvitationError: this node may not vote, or not on this target.
            DiskError, OSError: the state directory does not take it.
        """
        me, roll = self._run.identity.peer_id, self._run.roll
        key = public_key_of(target)
        if target == me:
            raise InvitationError("that is this node itself: `gossamer leave` ends its work")
        if not roll.is_member(me):
            raise InvitationError(f"this node ({me}) is no member of the run: it has no vote")
        if not any(map(roll.is_member, roll.put_out_with(key))):
            raise InvitationError(f"nobody is in that {target} would put out")
        try:
            self._file.wish(key)
        except TooManyWishesError:
            raise InvitationError(
                f"this node has {VOTES_MAX} votes already, as many as the others keep: take one "
                "back with `gossamer revoke PEER --withdraw`"
            ) from None
        return self.open_vote(key)

    def withdraw(self, target: PeerId) -> bool:
        """Takes a wish back. Returns whether there was one. Raises DiskError."""
        return self._file.withdraw(public_key_of(target))

    def open_vote(self, key: bytes) -> OpenVote:
        """Returns the votes on a target at this node's newest settled head."""
        is_wished = key in self._file.wishes()
        also = [self._run.identity.peer_id] if is_wished else []
        tally = self._expulsions.tally(key, self._standings, also)
        return OpenVote(peer_of(key), tally, is_wished)

    def open_votes(self) -> list[OpenVote]:
        """Returns the targets that are not out, and that somebody, or this operator, votes on."""
        keys = {*self._expulsions.targets(), *self._file.wishes()} - self._expulsions.expelled
        return [self.open_vote(key) for key in sorted(keys)]

    def is_voted_out(self, row: MemberRow) -> bool:
        """Returns whether a vote has put out a member, its invitation, or somebody above it."""
        peers = [row.peer_id, *self._run.roll.sponsors(row.peer_id)]
        invitations = [entry.certificate.key for entry in self._run.roll.chain_of(row.peer_id)]
        return bool(self._expulsions.expelled & {*map(public_key_of, peers), *invitations})


def in_words(vote: OpenVote) -> str:
    """Returns how far a vote is, such as `2 of 3 members needed`."""
    tally = vote.tally
    if tally is None:
        return f"votes count from round {FIRST_ROUND} on"
    if not tally.total:
        return (
            "nobody can be voted out while fewer than three branches have standing: a branch is a "
            "member that a root let in, with all below it"
        )
    share = f"{100 * tally.support / tally.total:.0f} % of the standing"
    if tally.needed is None:
        return (
            f"{len(tally.voters)} have voted, with {share}; all others together have less than two "
            "thirds, so only a root or a sponsor can put it out"
        )
    return f"{len(tally.voters)} of {tally.needed} needed; they have {share}, and two thirds decide"
