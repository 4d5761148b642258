"""Votes by which the members of an invite-only run put out a branch, and their messages.

A vote says that its voter wants a member, or all that came in by an invitation, out. It names a
*head*, the committed round at whose end standing is counted (`protocol.policy.members.expulsions`).
Votes that hold put the target out as a revocation by its sponsor does.

``/gossamer/expulsions/1``, between members, is the exchange of `piece_messages`. Its pieces are the
votes and the targets that are out (`expulsion_digest`). Its page is an `ExpulsionPage`: the votes
that are wanted, and for each target those that put it out.

Every public key is the 32 raw bytes of an Ed25519 key.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.ids import DIGEST_BYTES, PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Digest, digest_of

EXPULSION_PROTOCOL = "/gossamer/expulsions/1"

VOTE_PERIOD = 16
"""A vote names the head of a round that is a multiple of this. So votes of a few minutes name the
same head, and a node counts the standing at few heads, whatever the votes name."""

VOTES_MAX = 16
"""Targets of one voter's votes, as of its revocations; those with the newest heads stay."""

EXPELLED_MAX = 64
"""Targets that votes have put out. Each needs two thirds of the standing, and one target may be the
sponsor of many."""

VOTE_BYTES_MAX = 224
"""Of an encoded vote: three keys or digests, a signature and a round."""

EXPULSION_PIECES_MAX = VOTES_MAX * limits.MEMBERS_MAX + EXPELLED_MAX
"""Digests that one exchange names."""

EXPULSION_PAGE_BYTES_MAX = 256 * limits.KIB
"""Of the votes in one page: more than one target has voters. The next exchange brings the rest."""

EXPULSIONS_BYTES_MAX = (VOTES_MAX + 2 * EXPELLED_MAX) * limits.MEMBERS_MAX * VOTE_BYTES_MAX
"""Of all that a node holds, in a file."""


class ExpulsionVote(ArrayStruct, frozen=True):
    """One member wants another one, or all that came in by an invitation, out for good."""

    voter: bytes
    target: bytes
    """Public key of a member, or of a certificate's one-time secret."""
    round: int
    """Of the head, a multiple of `VOTE_PERIOD`."""
    head: bytes
    signature: bytes

    def signing_bytes(self, run_id: Digest) -> bytes:
        """Returns the bytes that the voter signs."""
        fields = (self.voter, self.target, self.round, self.head)
        return b"gossamer expulsion vote 1:" + run_id + to_msgpack(fields)

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))


class ExpulsionPage(ArrayStruct, frozen=True):
    """Votes of one or more members, in any order."""

    votes: tuple[ExpulsionVote, ...]


class SavedExpulsions(ArrayStruct, frozen=True):
    """The votes that a node holds, for its own disk."""

    votes: tuple[ExpulsionVote, ...]
    expelled: tuple[tuple[ExpulsionVote, ...], ...]
    """For each target that is out, the first votes that put it out, and the newest ones that do."""


_page_decoder = msgspec.msgpack.Decoder(ExpulsionPage)
_saved_decoder = msgspec.msgpack.Decoder(SavedExpulsions)


def expulsion_digest(run_id: Digest, target: bytes) -> Digest:
    """Returns what names a target that is out. Members may know it by different votes."""
    return digest_of(b"gossamer expelled 1:" + run_id + target)


def decode_expulsion_page(data: bytes | bytearray) -> ExpulsionPage:
    """A page whose values are in range; no signature is checked. Raises MalformedError or
    OversizedError for anything else."""
    if len(data) > limits.FRAME_MESSAGE_BYTES_MAX:
        raise OversizedError(f"a page of votes of {len(data)} bytes")
    page = decoded(_page_decoder, data, "a page of votes")
    if to_msgpack(page) != data:
        raise MalformedError("a page of votes that is not in canonical form")
    for vote in page.votes:
        check_vote(vote)
    return page


def decode_saved(data: bytes) -> SavedExpulsions:
    """A file whose values are in range; no signature is checked. Raises MalformedError or
    OversizedError for anything else."""
    if len(data) > EXPULSIONS_BYTES_MAX:
        raise OversizedError(f"votes of {len(data)} bytes")
    saved = decoded(_saved_decoder, data, "a file of votes")
    if len(saved.expelled) > 2 * EXPELLED_MAX or not all(saved.expelled):
        raise MalformedError("a file of votes with too many targets, or one without votes")
    for votes in (saved.votes, *saved.expelled):
        for vote in votes:
            check_vote(vote)
    for votes in saved.expelled:
        if any(vote.target != votes[0].target for vote in votes):
            raise MalformedError("a file of votes that mixes the votes on two targets")
    return saved


def check_vote(vote: ExpulsionVote) -> None:
    """Raises MalformedError for a value that no vote has."""
    for what, value, num_bytes in (
        ("voter", vote.voter, PUBLIC_KEY_BYTES),
        ("target", vote.target, PUBLIC_KEY_BYTES),
        ("head", vote.head, DIGEST_BYTES),
        ("signature", vote.signature, SIGNATURE_BYTES),
    ):
        if len(value) != num_bytes:
            raise MalformedError(f"a vote whose {what} has {len(value)} bytes, not {num_bytes}")
    if not VOTE_PERIOD <= vote.round <= limits.ROUNDS_MAX or vote.round % VOTE_PERIOD:
        raise MalformedError(f"a vote that names round {vote.round}")
