"""Votes: when a header is committed, and what happens to who holds it up."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, MalformedError, OversizedError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.limits import GOSSIP_BYTES_MAX
from gossamer.protocol.rounds.commit import (
    DISAGREE_SECONDS,
    RECONCILE_SECONDS,
    VOTE_SECONDS,
    Commitment,
    Parent,
)
from gossamer.protocol.rounds.commit import propose as propose_header
from gossamer.protocol.rounds.commit_proof import check_contributors, open_commit
from gossamer.protocol.rounds.inventory import Average
from gossamer.protocol.state.chain import Commit, Header, Member, quorum_reached, signers_of
from gossamer.protocol.state.commit_records import decode_commit, encode_commit, with_votes_of
from gossamer.protocol.wire.statements import Signed, Span, Vote
from tests.support.builders import (
    RING_RULES,
    RUN_ID,
    commit_of,
    header_of,
    peers,
    ring_of,
    sealed,
    verify,
)
from tests.support.builders import vote as vote_in

RING = ring_of(peers(4))
A, B, C, D = MEMBERS = RING.members
HEADER = to_msgpack(header_of(RING))
OTHER_HEADER = to_msgpack(header_of(RING, state_digest=digest_of(b"other state")))


def vote(header_digest: bytes, sequence: int = 1, removed: Iterable[str] = ()) -> Vote:
    return vote_in(header_digest, sequence, removed, RING.ring_id)


def votes(signers: dict[PeerId, list[PeerId]]) -> dict[str, Vote]:
    return {signer: vote(digest_of(HEADER), removed=out) for signer, out in signers.items()}


@pytest.mark.parametrize(
    ("signers", "reached"),
    [
        ({}, False),
        ({A: []}, False),
        ({A: [], B: []}, False),  # half is not more than half
        ({A: [], B: [], C: []}, True),
        ({A: [D], B: []}, True),  # one of them knows that D is out
        ({A: [B, C, D]}, True),  # the last survivor
        ({A: [C, D]}, False),  # B lives and has not signed
        ({A: [D], D: []}, False),  # who signs is not out
        ({A: [D], D: [], B: []}, True),
        ({peers(9)[8]: [A, B, C, D]}, False),  # a stranger
    ],
)
def test_quorum(signers: dict[PeerId, list[PeerId]], reached: bool) -> None:
    assert quorum_reached(MEMBERS, votes(signers)) == reached


@pytest.mark.parametrize(
    ("members", "signers", "reached"),
    [
        ([A, B, C, D], {A: [B, C, D]}, False),  # one alone proves nothing
        ([A, B, C, D], {A: [C, D], B: [C, D]}, True),  # the half that is left
        ([A, B, C, D], {A: [C, D], B: []}, False),  # C and D are out for one of them only
        ([A, B, C, D], {A: [D], B: [], C: []}, True),
        ([A, B, C], {A: [B, C]}, False),
        ([A, B, C], {A: [C], B: [C]}, True),
        ([A, B, C], {A: [C, C], B: []}, True),
        ([A, B], {A: [B]}, True),  # a ring of two has no second accuser
        ([A], {A: []}, True),
    ],
)
def test_quorum_with_two_accusers(
    members: list[PeerId], signers: dict[PeerId, list[PeerId]], *, reached: bool
) -> None:
    assert quorum_reached(members, votes(signers), accusers=2) == reached


def test_a_commit_record_of_one_that_calls_the_others_removed_needs_a_second_accuser() -> None:
    alone = commit_of(RING, [A], removed=[B, C, D])
    assert open_commit(alone, RUN_ID, verify, RING_RULES) == header_of(RING)
    with pytest.raises(ForgedError):
        open_commit(alone, RUN_ID, verify, RING_RULES._replace(accusers=2))
    half = commit_of(RING, [A, B], removed=[C, D])
    assert open_commit(half, RUN_ID, verify, RING_RULES._replace(accusers=2)) == header_of(RING)


def test_members_are_not_removed_by_a_peer_that_is_no_member() -> None:
    stranger = peers(9)[8]
    assert not quorum_reached(MEMBERS, votes({stranger: [B, C, D], A: []}))


# Commit records


def open_record(commit: Commit, run_id: Digest = RUN_ID) -> Header:
    return open_commit(commit, run_id, verify, RING_RULES)


def test_a_commit_record_proves_its_header() -> None:
    commit = decode_commit(encode_commit(commit_of(RING, [A, B, C])))
    assert open_record(commit) == header_of(RING)


def test_a_commit_record_without_its_votes_is_refused() -> None:
    good = commit_of(RING, [A, B, C])
    first, *rest = good.votes
    forged = (Signed(first.author, first.payload, bytes(64)), *rest)
    change = msgspec.structs.replace
    broken: list[tuple[Commit, type[Exception]]] = [
        (commit_of(RING, [A, B]), ForgedError),
        (commit_of(RING, [A, A, A]), ForgedError),
        (change(good, header=OTHER_HEADER), ForgedError),
        (change(good, votes=forged), ForgedError),
        (commit_of(RING, peers(9)[4:8]), ForgedError),
        (commit_of(RING, [*MEMBERS, peers(9)[8]]), MalformedError),
        (change(good, header=HEADER + b"\0"), MalformedError),
    ]
    for commit, error in broken:
        with pytest.raises(error):
            open_record(commit)
    with pytest.raises(MalformedError):
        open_record(good, digest_of(b"another run"))


def test_votes_of_another_ring_do_not_count() -> None:
    other = ring_of(peers(4), attempt=1)
    good, theirs = commit_of(RING, MEMBERS), commit_of(other, MEMBERS, header_of(RING))
    assert theirs.header == good.header
    with pytest.raises(ForgedError):
        open_record(msgspec.structs.replace(good, votes=theirs.votes))


def test_a_statement_that_is_no_vote_does_not_count() -> None:
    from tests.support.builders import ready

    votes = tuple(sealed(member, ready()) for member in MEMBERS)
    with pytest.raises(ForgedError):
        open_record(Commit(HEADER, RING.envelope, votes))


def test_the_roster_belongs_to_the_ring_of_the_header() -> None:
    good = commit_of(RING, MEMBERS)
    change = msgspec.structs.replace
    broken: list[tuple[Commit, type[Exception]]] = [
        (change(good, roster=ring_of(peers(4), attempt=1).envelope), ForgedError),
        (change(good, roster=ring_of(peers(4), tokens=200).envelope), ForgedError),
        (change(good, roster=good.votes[0]), MalformedError),
        (change(good, roster=change(good.roster, signature=bytes(64))), ForgedError),
    ]
    for commit, error in broken:
        with pytest.raises(error):
            open_record(commit)


def test_a_member_is_in_a_header_with_what_it_offered() -> None:
    """One signer cannot bring in members, nor take more of a member than its `Ready` offers."""
    offered = header_of(RING)
    first, *rest = offered.members
    stranger = Member(peers(9)[8], 100, 1.5)
    for changes in (
        {"members": (*offered.members, stranger)},
        {"members": tuple(rest)},
        {"members": (*rest, first)},
        {"members": (Member(first.peer_id, first.tokens + 1, first.norm), *rest)},
        {"members": (Member(first.peer_id, first.tokens, first.norm / 2), *rest)},
        {"round": offered.round + 1},
        {"parent": digest_of(b"another head")},
        {"spans": (Span(1, 0, 8193),)},
        {"spans": (Span(2, 0, 10),)},
    ):
        forged = header_of(RING, **changes)
        with pytest.raises(ForgedError):
            open_record(commit_of(RING, MEMBERS[1:], forged))
    less = header_of(
        RING, members=(Member(first.peer_id, 1, first.norm), *rest), spans=(Span(1, 5, 8192),)
    )
    assert open_record(commit_of(RING, MEMBERS, less)) == less


def test_the_tokens_of_a_header_are_those_that_its_averages_hold() -> None:
    whole = 0b1111
    check_contributors(header_of(RING), RING, [whole, whole])
    with pytest.raises(ForgedError):
        check_contributors(header_of(RING), RING, [whole, 0b0111])
    first, *rest = header_of(RING).members
    half = Member(first.peer_id, first.tokens // 2, first.norm)
    check_contributors(header_of(RING, members=(half, *rest)), RING, [whole, 0b1110])


def test_one_signer_alone_commits_only_if_it_is_a_member_that_calls_the_others_removed() -> None:
    with pytest.raises(ForgedError):
        open_record(commit_of(RING, [A]))
    with pytest.raises(ForgedError):
        open_record(commit_of(RING, [peers(9)[8]], removed=MEMBERS))
    open_record(commit_of(RING, [A], removed=[B, C, D]))


def test_an_oversized_record_is_not_decoded() -> None:
    with pytest.raises(OversizedError):
        decode_commit(bytes(GOSSIP_BYTES_MAX + 1))


# Counting


def commitment(me: PeerId = A) -> Commitment:
    return Commitment(RING, me)


def propose(state: Commitment, me: PeerId, content: bytes, now: float = 0.0) -> None:
    say = state.propose(now, content, frozenset())
    assert state.vote_received(now, me, say, sealed(me, say))


def hear(
    state: Commitment, author: PeerId, content: bytes, sequence: int = 1, now: float = 0.0
) -> bool:
    say = vote(digest_of(content), sequence)
    return state.vote_received(now, author, say, sealed(author, say))


def test_a_vote_that_calls_living_members_removed_lowers_no_quorum() -> None:
    """With it a member would commit on the word of one that may go on elsewhere, and its record
    would have two signers."""
    state = commitment()
    propose(state, A, HEADER)
    lie = vote(digest_of(HEADER), removed=[C, D])
    assert state.vote_received(0.0, B, lie, sealed(B, lie))
    assert state.result() is None
    again = state.propose(1.0, HEADER, frozenset({C, D}))  # they are out for this peer as well
    assert state.vote_received(1.0, A, again, sealed(A, again))
    commit = state.result()
    assert commit is not None
    assert open_record(commit).digest == digest_of(HEADER)


def test_the_record_of_another_member_counts_with_the_votes_that_are_here() -> None:
    state = commitment()
    alone = commit_of(RING, [B], removed=[A, C, D])
    assert open_record(alone).digest == digest_of(HEADER)
    assert state.joined(alone) is None, "this peer has computed nothing yet"
    propose(state, A, HEADER)
    assert state.joined(alone) is None, "two of four members that live"
    hear(state, C, HEADER)
    commit = state.joined(alone)
    assert commit is not None
    assert open_record(commit).digest == digest_of(HEADER)
    assert signers_of(commit) == {A, B, C}


def test_a_joined_record_has_no_votes_for_other_headers_and_is_sorted() -> None:
    """A member that has voted anew since then stands in the record with its older vote."""
    state = commitment()
    propose(state, A, HEADER)
    hear(state, B, OTHER_HEADER, sequence=2)
    last, first = sorted([C, D], reverse=True)
    hear(state, first, HEADER)
    alone = commit_of(RING, [B, last], removed=[A, first])
    commit = state.joined(alone)
    assert commit is not None
    assert open_record(commit).digest == digest_of(HEADER)
    assert [signed.author for signed in commit.votes] == sorted(MEMBERS)


def test_a_record_takes_the_votes_of_another_one_as_long_as_it_has_room() -> None:
    alone, more = commit_of(RING, [A], removed=[B, C, D]), commit_of(RING, [A, B, D])
    joined = with_votes_of(alone, more)
    assert joined is not None
    assert open_record(joined) == header_of(RING)
    assert signers_of(joined) == {A, B, D}
    assert with_votes_of(joined, alone) is None
    large = ring_of(peers(100))
    one, other = large.members[:60], large.members[60:]
    halves = [
        commit_of(large, signers, removed=sorted({*large.members} - {*signers}) + [*signers][1:])
        for signers in (one, other)
    ]
    assert all(decode_commit(encode_commit(each)) == each for each in halves)
    assert with_votes_of(*halves) is None


def test_the_data_of_a_member_whose_work_is_in_few_chunks_are_not_consumed() -> None:
    parts = {peer: (Span(number, 0, 100),) for number, peer in enumerate(MEMBERS)}
    ring = ring_of(peers(4), spans=parts)
    averages = [Average(0b1111, digest_of(b"average"), 0, b"average")] * 4
    masks = [0b1111, 0b0111, 0b0011, 0b0111]  # of D's work one chunk of four, of C's three
    parent = Parent(digest_of(b"a head"), 4, 1000, Ledger())
    header = propose_header(RUN_ID, parent, ring, averages, masks, digest_of(b"state")).header
    assert {span.partition for span in header.spans} == {0, 1, 2}


def test_the_record_of_another_header_is_not_joined() -> None:
    state = commitment()
    propose(state, A, HEADER)
    other = commit_of(RING, [B, C, D], header_of(RING, state_digest=digest_of(b"other state")))
    assert state.joined(other) is None


def test_the_votes_for_my_header_commit_it() -> None:
    state = commitment()
    assert state.result() is None
    hear(state, B, HEADER)
    hear(state, C, HEADER)
    hear(state, D, HEADER)
    assert state.result() is None  # three votes, and I have computed nothing yet
    propose(state, A, HEADER)
    commit = state.result()
    assert commit is not None
    assert open_record(commit).digest == digest_of(HEADER)


def test_only_the_newest_vote_of_a_member_counts() -> None:
    state = commitment()
    propose(state, A, HEADER)
    hear(state, B, HEADER, sequence=1)
    hear(state, B, OTHER_HEADER, sequence=2)
    assert not hear(state, B, HEADER, sequence=1)
    hear(state, C, HEADER)
    assert state.result() is None
    hear(state, B, HEADER, sequence=3)
    assert state.result() is not None


def test_votes_of_strangers_and_of_other_rings_are_no_news() -> None:
    state = commitment()
    assert not hear(state, peers(9)[8], HEADER)
    say = Vote(digest_of(b"other"), 1, digest_of(HEADER), ())
    assert not state.vote_received(0.0, B, say, sealed(B, say))


def test_the_silent_are_accused_after_a_while() -> None:
    state = commitment()
    assert state.to_accuse(1e9, MEMBERS) == []
    propose(state, A, HEADER, now=100.0)
    hear(state, B, HEADER)
    assert state.to_accuse(100.0 + VOTE_SECONDS - 0.1, MEMBERS) == []
    assert state.to_accuse(100.0 + VOTE_SECONDS, [A, B, D]) == [(D, "silent")]


def test_a_member_that_votes_again_waits_no_longer_for_the_silent() -> None:
    state = commitment()
    say = state.propose(100.0, HEADER, frozenset(), VOTE_SECONDS + 5.0)
    assert state.vote_received(100.0, A, say, sealed(A, say))
    propose(state, A, OTHER_HEADER, now=120.0)
    end = 105.0 + VOTE_SECONDS
    assert state.to_accuse(end - 0.1, [A, D]) == []
    assert state.to_accuse(end, [A, D]) == [(D, "silent")]
    state.wait_anew(end)
    assert state.to_accuse(end + VOTE_SECONDS + 4.9, [A, D]) == []


def test_a_successor_with_another_header_gets_my_averages_once() -> None:
    state = commitment()
    propose(state, A, HEADER, now=100.0)
    hear(state, B, OTHER_HEADER, now=105.0)
    due = 105.0 + RECONCILE_SECONDS
    assert not state.to_reconcile(due - 0.1, B)
    assert not state.to_reconcile(due, C)
    assert state.to_reconcile(due, B)
    assert not state.to_reconcile(due, B)
    hear(state, B, to_msgpack(header_of(RING, spans=())), sequence=2, now=200.0)
    assert state.to_reconcile(200.0 + RECONCILE_SECONDS, B)


def test_averages_are_sent_again_a_while_after_the_newer_of_both_votes() -> None:
    state = commitment()
    hear(state, B, OTHER_HEADER, now=100.0)
    propose(state, A, HEADER, now=105.0)
    assert not state.to_reconcile(105.0 + RECONCILE_SECONDS - 0.1, B)
    assert state.to_reconcile(105.0 + RECONCILE_SECONDS, B)


def test_a_member_that_stands_by_another_header_is_accused_in_the_end() -> None:
    state = commitment()
    propose(state, A, HEADER, now=100.0)
    hear(state, B, OTHER_HEADER, now=105.0)
    hear(state, B, OTHER_HEADER, sequence=2, now=150.0)  # the same again is no change of mind
    assert state.to_accuse(105.0 + DISAGREE_SECONDS - 0.1, [A, B]) == []
    assert state.to_accuse(105.0 + DISAGREE_SECONDS, [A, B]) == [(B, "disagrees")]
    hear(state, B, HEADER, sequence=3, now=170.0)
    assert state.to_accuse(1000.0, [A, B]) == []


def test_a_member_that_keeps_changing_its_vote_gains_no_time() -> None:
    state = commitment()
    propose(state, A, HEADER, now=100.0)
    end = 109.0 + DISAGREE_SECONDS
    for number in range(1, 8):
        hear(state, B, f"header {number}".encode(), sequence=number, now=100.0 + 9 * number)
        assert state.to_accuse(end - 0.1, [A, B]) == []
    assert state.to_accuse(end, [A, B]) == [(B, "disagrees")]


def test_a_member_has_as_long_again_when_this_peers_own_header_changes() -> None:
    state = commitment()
    propose(state, A, HEADER, now=100.0)
    hear(state, B, b"theirs", now=105.0)
    propose(state, A, OTHER_HEADER, now=150.0)
    assert state.to_accuse(150.0 + DISAGREE_SECONDS - 0.1, [A, B]) == []
    assert state.to_accuse(150.0 + DISAGREE_SECONDS, [A, B]) == [(B, "disagrees")]


def test_a_header_names_its_members_once() -> None:
    twice = header_of(RING, members=(Member(A, 1, 1.5), Member(A, 1, 1.5)))
    with pytest.raises(MalformedError):
        open_record(commit_of(RING, [A], twice))
