"""The header that follows from a ring and its averages, and the agreement on it.

Every member computes the same header (`propose`), signs its digest, and counts votes.

Rules
-----
- A member votes for the header that it computed from its averages. It votes again with a higher
  sequence when better averages change the header, or when a member is removed from the ring.
- The newest vote of each member counts. A header is committed when its votes reach the quorum
  (`chain.quorum_reached`).
- A member counts as out here only if this peer holds it out as well, whatever a vote says. A vote
  may call members removed that are at work. With it this peer would commit on the word of one
  member, and its record would show that one's support and no more (`policy.heads.head_choice`). A
  member that is really out is so for this peer as well, a moment later (`ring.ring_members`).
- Averages walk on while members vote, so votes that differ usually become equal without help. The
  successor's vote may still differ `RECONCILE_SECONDS` after both have voted. Then it gets all
  averages of this peer once more, and takes and passes on the better ones.
- A living member is removed from the ring if it has not voted `VOTE_SECONDS` after this peer did,
  or if it has voted for other headers for `DISAGREE_SECONDS` although it was sent the averages. So
  a silent peer, or one with wrong arithmetic, does not delay the round. In a ring that worked for
  longer, the first of these times is longer as well (`ring.patience`).
- If this peer's successor is among these, it is removed alone, and the others have as much time
  again: the averages that they lack may be with the successor.

The states are those of `states.COMMIT`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger, apply_spans, newly_consumed
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.conduct.ring_conduct import NO_VOTES, VotesSeen
from gossamer.protocol.rounds.inventory import Average
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.states import COMMIT, CommitState
from gossamer.protocol.state.chain import (
    ChunkAverage,
    Commit,
    Header,
    Member,
    UpdateIndex,
    accusers_needed,
    mask_bytes,
    quorum_reached,
    spans_taken,
    tokens_taken,
)
from gossamer.protocol.wire.envelopes import decode_statement
from gossamer.protocol.wire.statements import Signed, Span, Vote

VOTE_SECONDS = 30.0
"""Time for a member to vote after this peer did: the outer step of a 1 B model on a slow CPU."""

RECONCILE_SECONDS = 10.0
"""Time for which two votes may differ before the successor is sent all averages once more. At first
the better averages are still on their way, and sending all again costs a model's bytes."""

DISAGREE_SECONDS = 60.0
"""Patience with a member that stands by another header: `RECONCILE_SECONDS`, one walk of the
averages round the ring, and `VOTE_SECONDS` for a new vote."""

SPREAD_SECONDS = 10.0
"""Time by which the patience of two honest members may end apart: machines take the outer step at
different speeds, and gossip may be lost and come later. It is a third of `VOTE_SECONDS`: no member
is late here because of it unless it leaves a vote out for 20 s."""


@dataclass(frozen=True)
class Parent:
    """The committed state that a round starts from."""

    head: Digest
    round: int
    tokens_total: int
    ledger: Ledger


@dataclass(frozen=True)
class Proposal:
    """A header, with the objects behind its digests."""

    header: Header
    update: UpdateIndex
    ledger: Ledger


def members_of(ring: Ring, contributors: Sequence[int]) -> tuple[Member, ...]:
    """The entries of the members in the round's header, by ring position.

    Args:
        contributors: of each chunk the mask of the members that have a part in it.
    """
    counts = _counts(ring, contributors)
    return tuple(
        Member(peer, tokens_taken(ready.tokens, count, len(contributors)), ready.norm)
        for peer, ready, count in zip(ring.members, ring.ready, counts, strict=True)
    )


def _counts(ring: Ring, contributors: Sequence[int]) -> list[int]:
    """Chunks that each member has a part in, by ring position."""
    return [sum(mask >> i & 1 for mask in contributors) for i in range(len(ring.members))]


def propose(
    run_id: Digest,
    parent: Parent,
    ring: Ring,
    averages: Sequence[Average],
    contributors: Sequence[int],
    state_digest: Digest,
) -> Proposal:
    """The header of the round that took these averages and reached this state.

    Args:
        contributors: of each average the mask of the members that have a part in it.
    """
    num_members, num_chunks = len(ring.members), len(averages)
    members = members_of(ring, contributors)
    spans: set[Span] = set()
    for ready, count in zip(ring.ready, _counts(ring, contributors), strict=True):
        if spans_taken(count, num_chunks):
            spans.update(ready.spans)
    consumed = newly_consumed(parent.ledger, spans)
    ledger = apply_spans(parent.ledger, consumed)
    update = UpdateIndex(
        ring.roster.codec,
        tuple(
            ChunkAverage(average.digest, mask_bytes(mask, num_members))
            for average, mask in zip(averages, contributors, strict=True)
        ),
    )
    header = Header(
        limits.PROTOCOL_VERSION,
        run_id,
        parent.round + 1,
        parent.head,
        ring.ring_id,
        members,
        parent.tokens_total + sum(member.tokens for member in members),
        update.digest,
        state_digest,
        ledger.digest,
        consumed,
    )
    return Proposal(header, update, ledger)


@dataclass(frozen=True)
class _Heard:
    vote: Vote
    signed: Signed
    seconds: float
    """Local time of the member's first vote for this header."""


class Commitment:
    """One member's view of the votes of one ring. Events carry the local clock in seconds.

    It has more than 12 attributes, because votes, averages and members that are out may change it.
    """

    def __init__(self, ring: Ring, me: PeerId, accusers: int = 1) -> None:
        """
        Args:
            accusers: see `quorum_reached`.
        """
        self._ring_id = ring.ring_id
        self._accusers = accusers
        self._roster = ring.envelope
        self.state: CommitState = COMMIT.initial
        self._members = ring.members
        self._me = me
        self._votes: dict[PeerId, _Heard] = {}
        self._sequence = 0
        self._header: bytes | None = None
        self._digest: Digest | None = None
        self._voted_seconds: float | None = None
        """Local time from which members that have not voted are waited for."""
        self._vote_seconds = VOTE_SECONDS
        """Time for which they are."""
        self._differs_since: dict[PeerId, float] = {}
        """Local time since which a member has had no vote for this peer's present header, from its
        first vote for another one on. A member that changes its vote again gains no time."""
        self._reconciled: set[tuple[PeerId, bytes, bytes]] = set()

    @property
    def header(self) -> bytes | None:
        """The header that this peer computed last; None before its first vote."""
        return self._header

    @property
    def head(self) -> Digest | None:
        """The head that this header would be; None before this peer's first vote."""
        return self._digest

    def propose(
        self,
        now: float,
        header: bytes,
        removed: frozenset[PeerId],
        vote_seconds: float = VOTE_SECONDS,
    ) -> Vote:
        """This peer's vote for a header, to be signed, published and given to `vote_received`.

        Args:
            vote_seconds: time for members to vote after this peer's first vote.
        """
        self.state = COMMIT.after(self.state, "vote")
        self._header = header
        self._digest = digest_of(header)
        if self._voted_seconds is None:
            self._voted_seconds, self._vote_seconds = now, vote_seconds
        self._sequence += 1
        return Vote(self._ring_id, self._sequence, self._digest, tuple(sorted(removed)))

    def vote_received(self, now: float, author: PeerId, vote: Vote, signed: Signed) -> bool:
        """Takes a checked vote. Returns whether it was new."""
        if author not in self._members or vote.ring_id != self._ring_id:
            return False
        known = self._votes.get(author)
        if known is not None and known.vote.sequence >= vote.sequence:
            return False
        seconds = now
        if known is not None and known.vote.header_digest == vote.header_digest:
            seconds = known.seconds
        elif author == self._me:
            self._differs_since.clear()
        self._votes[author] = _Heard(vote, signed, seconds)
        for peer in self._members:
            if self._differs(peer):
                self._differs_since.setdefault(peer, now)
            else:
                self._differs_since.pop(peer, None)
        return True

    def result(self) -> Commit | None:
        """The commit record of this peer's header; None: it has no quorum yet."""
        mine = {
            author: heard
            for author, heard in sorted(self._votes.items())
            if heard.vote.header_digest == self._digest
        }
        return self._record({author: (each.vote, each.signed) for author, each in mine.items()})

    def joined(self, commit: Commit) -> Commit | None:
        """The commit record of this peer's header, with the votes of another member's checked
        record beside those that are here; None: it is of another header, or too few votes."""
        if commit.header != self._header:
            return None
        votes: dict[PeerId, tuple[Vote, Signed]] = {}
        for signed in commit.votes:
            vote = decode_statement(signed.payload)
            assert isinstance(vote, Vote), "the record was checked"
            votes[PeerId(signed.author)] = vote, signed
        for author, heard in self._votes.items():
            if heard.vote.header_digest == self._digest:
                votes[author] = heard.vote, heard.signed
        return self._record(votes)

    def _record(self, votes: Mapping[PeerId, tuple[Vote, Signed]]) -> Commit | None:
        """The commit record with these votes for this peer's header, if they are enough."""
        if self._header is None or self._me not in votes:
            return None
        out = frozenset(votes[self._me][0].removed)
        seen: dict[str, Vote] = {
            author: replace(vote, removed=tuple(peer for peer in vote.removed if peer in out))
            for author, (vote, _) in votes.items()
        }
        if not quorum_reached(self._members, seen, self._accusers):
            return None
        if self.state != "decided":
            self.state = COMMIT.after(self.state, "quorum")
        return Commit(
            self._header, self._roster, tuple(votes[author][1] for author in sorted(votes))
        )

    def can_succeed(self, living: Sequence[PeerId]) -> bool:
        """Returns whether these members are enough to call all the others removed."""
        return len(living) >= accusers_needed(len(self._members), self._accusers)

    def has_voted(self, peer: PeerId) -> bool:
        """Returns whether a member has voted: then it has all averages, or says so."""
        return peer in self._votes

    def has_votes_beside(self, peer: PeerId) -> bool:
        """Returns whether a member other than this one has voted."""
        return not self._votes.keys() <= {peer}

    def seen(
        self,
        now: float,
        accuser: PeerId,
        accused: PeerId,
        living: Sequence[PeerId],
        *,
        has_averages: bool,
    ) -> VotesSeen:
        """What this peer sees of the votes when a member accuses another one.

        Args:
            living: members that were not out.
            has_averages: whether this peer has all averages.
        """
        # Others may have committed if more than half of the members have voted.
        if not has_averages and 2 * sum(peer in self._votes for peer in living) <= len(living):
            return NO_VOTES
        is_late = self.state != "decided" and self._is_late(now, accused)
        return VotesSeen(True, is_late, self._may_accuse(now, accuser))

    def has_my_header(self, peer: PeerId) -> bool:
        """Returns whether a member's newest vote is for this peer's header: then the member has all
        averages."""
        heard = self._votes.get(peer)
        return heard is not None and heard.vote.header_digest == self._digest

    def _is_late(self, now: float, peer: PeerId) -> bool:
        """Returns whether this peer itself is about to accuse a member for its vote. Others voted a
        little earlier, and may have come to do so."""
        deadline, _ = self._patience(peer)
        return deadline is not None and now >= deadline - SPREAD_SECONDS

    def _may_accuse(self, now: float, author: PeerId) -> bool:
        """Returns whether a member voted so long ago that it may accuse any other for its vote.
        Another member has to have voted for the same header: nobody else would know one at the
        beginning of a ring."""
        heard = self._votes.get(author)
        if heard is None or now < heard.seconds + VOTE_SECONDS - SPREAD_SECONDS:
            return False
        digest = heard.vote.header_digest
        return any(
            peer != author and each.vote.header_digest == digest
            for peer, each in self._votes.items()
        )

    def to_reconcile(self, now: float, successor: PeerId) -> bool:
        """Returns whether the successor should get all averages now; true once for each pair of
        votes."""
        if not self._differs(successor) or self._pair(successor) in self._reconciled:
            return False
        since = max(self._votes[self._me].seconds, self._votes[successor].seconds)
        if now < since + RECONCILE_SECONDS:
            return False
        self._reconciled.add(self._pair(successor))
        return True

    def to_accuse(
        self, now: float, living: Sequence[PeerId], successor: PeerId | None = None
    ) -> list[tuple[PeerId, str]]:
        """Living members that delay the round, each with the reason; the successor alone if it does
        so."""
        late = [
            (peer, reason)
            for peer in living
            for deadline, reason in [self._patience(peer)]
            if deadline is not None and now >= deadline
        ]
        return [each for each in late if each[0] == successor] or late

    def wait_anew(self, now: float) -> None:
        """Members that have not voted get as much time again."""
        self._voted_seconds = now

    def _pair(self, peer: PeerId) -> tuple[PeerId, bytes, bytes]:
        assert self._digest is not None
        return (peer, self._votes[peer].vote.header_digest, self._digest)

    def _differs(self, peer: PeerId) -> bool:
        """Returns whether a member's vote and this peer's are for different headers."""
        mine, theirs = self._votes.get(self._me), self._votes.get(peer)
        if mine is None or theirs is None:
            return False
        return theirs.vote.header_digest != mine.vote.header_digest

    def _patience(self, peer: PeerId) -> tuple[float | None, str]:
        """Local time at which a living member is accused (None: never), and the reason."""
        if self._voted_seconds is None or peer == self._me:
            return None, ""
        if peer not in self._votes:
            return self._voted_seconds + self._vote_seconds, "silent"
        since = self._differs_since.get(peer)
        return (None if since is None else since + DISAGREE_SECONDS), "disagrees"
