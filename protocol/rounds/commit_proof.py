"""The proof of a commit record: what its members signed, checked against what its header says.

A header costs its author nothing, and neither do keys. So a record is taken only if everything in
its header follows from statements that the peers it names have signed.

Rules
-----
- The record carries the roster of its ring, and the roster carries the signed `Ready` of every
  member. The header's ring is that ring, and its parent and round are those of the roster.
- The header names the members of the roster, in the same order and with the norms of their
  `Ready`. No member has more tokens in it than its `Ready` offers. So no header can take work from
  a peer that offered none on this parent.
- The data that the header consumes lies within the spans of the members' `Ready`.
- Votes are counted against the roster (`chain.quorum_reached`).

Which members have a part in which chunk is in the update index, and a peer that replays the round
checks that as well, and the signed records in the averages (`check_averages`). How much a proven
record weighs in the choice of a head is another question: `policy.heads.head_choice`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.codecs.contributions import MembersSigned
from gossamer.protocol.codecs.payloads import AveragedPayloads
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.errors import ForgedError, MalformedError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.rounds.commit import members_of
from gossamer.protocol.rounds.roster import Ring, RingRules, open_roster
from gossamer.protocol.state.chain import Commit, Header, decode_header, quorum_reached
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.envelopes import Verify, open_signed
from gossamer.protocol.wire.statements import Roster, Span, Vote


def open_commit(commit: Commit, run_id: Digest, verify: Verify, rules: RingRules) -> Header:
    """The header of a commit record, with its values, its roster, its votes and the quorum checked.

    Raises:
        MalformedError: not a header of this run, or not the one that follows from its roster.
        ForgedError: a roster or votes that are forged, for something else, or too few.
    """
    header = decode_header(commit.header)
    if header.run_id != run_id:
        raise MalformedError("header of another run")
    if len(commit.votes) > len(header.members):
        raise MalformedError("commit record with more votes than members")
    check_roster(header, open_ring(commit, run_id, verify, rules))
    votes = _open_votes(commit, header, run_id, verify)
    members = [member.peer_id for member in header.members]
    if not quorum_reached(members, votes, rules.accusers):
        raise ForgedError(f"header of round {header.round} without the votes of its members")
    return header


def open_ring(commit: Commit, run_id: Digest, verify: Verify, rules: RingRules) -> Ring:
    """The ring of a commit record, from its roster.

    Raises:
        MalformedError: not a roster of this run.
        ForgedError: a signature that its author did not make.
    """
    roster = open_signed(commit.roster, run_id, verify)
    if not isinstance(roster, Roster):
        raise MalformedError("commit record without a roster")
    return open_roster(commit.roster, roster, run_id, verify, rules)


def check_roster(header: Header, ring: Ring) -> None:
    """Checks that a header says of its members only what they said themselves.

    Raises:
        ForgedError: it names another ring, other members, or more work than they offered.
    """
    if (header.ring_id, header.parent, header.round) != (
        ring.ring_id,
        ring.roster.head,
        ring.roster.round,
    ):
        raise ForgedError("header of another ring than its roster's")
    if [member.peer_id for member in header.members] != list(ring.members):
        raise ForgedError("header with other members than its roster")
    for member, ready in zip(header.members, ring.ready, strict=True):
        if member.tokens > ready.tokens or member.norm != ready.norm:
            raise ForgedError("header with work that its members did not offer")
    offered = _Offered(span for ready in ring.ready for span in ready.spans)
    if not all(map(offered.has, header.spans)):
        raise ForgedError("header that consumes data which no member trained on")


class _Offered:
    """The spans that members offer. A question takes a time that hardly grows with their number:
    a stranger may send a record with 60,000 spans, each of which is asked for."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: dict[int, list[int]] = {}
        """Of each partition the starts of its spans, ascending."""
        self._stops: dict[int, list[int]] = {}
        """The furthest stop of the spans up to that one."""
        for span in sorted(spans, key=lambda span: (span.partition, span.start)):
            starts = self._starts.setdefault(span.partition, [])
            stops = self._stops.setdefault(span.partition, [])
            starts.append(span.start)
            stops.append(max(span.stop, stops[-1] if stops else 0))

    def has(self, span: Span) -> bool:
        """Returns whether one of the spans has all of this one."""
        place = bisect_right(self._starts.get(span.partition, ()), span.start)
        return place > 0 and span.stop <= self._stops[span.partition][place - 1]


def check_contributors(header: Header, ring: Ring, contributors: Sequence[int]) -> None:
    """Checks the tokens of a header against the masks of its averages.

    Args:
        contributors: of each chunk the mask of the members that have a part in it.

    Raises:
        ForgedError: a member has other tokens than its `Ready` and the masks give it.
    """
    if members_of(ring, contributors) != header.members:
        raise ForgedError("header with other tokens than its averages hold")


def check_averages(
    header: Header,
    ring: Ring,
    payloads: AveragedPayloads | SignPayloads,
    plan: ChunkPlan,
    averages: Sequence[Buffer],
    masks: Sequence[int],
    signed: MembersSigned,
) -> None:
    """Checks a round's averages against what its members signed, before the round is replayed.

    Args:
        plan: of the round's chunks.
        averages: of all chunks, encoded.
        masks: of each chunk the members in its average; of a shared step those with a part.
        signed: what the ring's members have signed.

    Raises:
        RemoteProtocolError: the header has other tokens than the averages, or an average holds a
            record that its member did not sign. Only signed payloads can be checked for that.
    """
    check_contributors(header, ring, masks)
    if payloads.are_signed:
        for chunk, (average, mask) in enumerate(zip(averages, masks, strict=True)):
            if isinstance(payloads, SignPayloads):
                payloads.check_committed(average, mask, chunk, signed)
                continue
            payloads.check(average, plan.elements_of(chunk), mask, chunk, signed)


def _open_votes(commit: Commit, header: Header, run_id: Digest, verify: Verify) -> dict[str, Vote]:
    head = digest_of(commit.header)
    votes: dict[str, Vote] = {}
    for signed in commit.votes:
        vote = open_signed(signed, run_id, verify)
        if (
            not isinstance(vote, Vote)
            or vote.header_digest != head
            or vote.ring_id != header.ring_id
        ):
            raise ForgedError("commit record with a vote for something else")
        votes[signed.author] = vote
    return votes
