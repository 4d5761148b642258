"""Votes: when a header is committed, and what happens to who holds it up."""

from __future__ import annotations

import pytest

from gossamer.protocol.errors import ForgedError, MalformedError, OversizedError
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.limits import GOSSIP_BYTES_MAX
from gossamer.protocol.rounds.commit import (
    DISAGREE_SECONDS,
    RECONCILE_SECONDS,
    VOTE_SECONDS,
    Commitment,
)
from gossamer.protocol.state.chain import (
    Commit,
    Member,
    decode_commit,
    encode_commit,
    encode_header,
    open_commit,
    quorum_reached,
)
from gossamer.protocol.wire.statements import Signed, Vote
from tests.support.builders import RING_ID, RUN_ID, header, peers, sealed, verify, vote

A, B, C, D = MEMBERS = peers(4)
HEADER = encode_header(header(MEMBERS))
OTHER_HEADER = encode_header(header(MEMBERS, state_digest=digest_of(b"other state")))


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


def test_members_are_not_removed_by_a_peer_that_is_no_member() -> None:
    stranger = peers(9)[8]
    assert not quorum_reached(MEMBERS, votes({stranger: [B, C, D], A: []}))


# Commit records


def record(*signers: PeerId, content: bytes = HEADER, removed: tuple[PeerId, ...] = ()) -> Commit:
    say = vote(digest_of(content), removed=removed)
    return Commit(content, tuple(sealed(signer, say) for signer in signers))


def test_a_commit_record_proves_its_header() -> None:
    commit = decode_commit(encode_commit(record(A, B, C)))
    assert open_commit(commit, RUN_ID, verify) == header(MEMBERS)


def test_a_commit_record_without_its_proof_is_refused() -> None:
    good = record(A, B, C)
    first, *rest = good.votes
    broken: list[tuple[Commit, type[Exception]]] = [
        (record(A, B), ForgedError),
        (record(A, A, A), ForgedError),
        (Commit(OTHER_HEADER, good.votes), ForgedError),
        (Commit(HEADER, (Signed(first.author, first.payload, bytes(64)), *rest)), ForgedError),
        (record(*peers(9)[4:8]), ForgedError),
        (record(A, B, C, D, peers(9)[8]), MalformedError),
        (Commit(HEADER + b"\0", good.votes), MalformedError),
    ]
    for commit, error in broken:
        with pytest.raises(error):
            open_commit(commit, RUN_ID, verify)
    with pytest.raises(MalformedError):
        open_commit(good, digest_of(b"another run"), verify)


def test_votes_of_another_ring_do_not_count() -> None:
    other = encode_header(header(MEMBERS, ring_id=digest_of(b"other ring")))
    with pytest.raises(ForgedError):
        open_commit(record(A, B, C, content=other), RUN_ID, verify)


def test_a_statement_that_is_no_vote_does_not_count() -> None:
    from tests.support.builders import ready

    commit = Commit(HEADER, tuple(sealed(member, ready()) for member in MEMBERS))
    with pytest.raises(ForgedError):
        open_commit(commit, RUN_ID, verify)


def test_an_oversized_record_is_not_decoded() -> None:
    with pytest.raises(OversizedError):
        decode_commit(bytes(GOSSIP_BYTES_MAX + 1))


# Counting


def commitment(me: PeerId = A) -> Commitment:
    return Commitment(RING_ID, MEMBERS, me)


def propose(state: Commitment, me: PeerId, content: bytes, now: float = 0.0) -> None:
    say = state.propose(now, content, frozenset())
    assert state.vote_received(now, me, say, sealed(me, say))


def hear(
    state: Commitment, author: PeerId, content: bytes, sequence: int = 1, now: float = 0.0
) -> bool:
    say = vote(digest_of(content), sequence)
    return state.vote_received(now, author, say, sealed(author, say))


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
    assert open_commit(commit, RUN_ID, verify).digest == digest_of(HEADER)


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


def test_a_successor_with_another_header_gets_my_averages_once() -> None:
    state = commitment()
    propose(state, A, HEADER, now=100.0)
    hear(state, B, OTHER_HEADER, now=105.0)
    due = 105.0 + RECONCILE_SECONDS
    assert not state.to_reconcile(due - 0.1, B)
    assert not state.to_reconcile(due, C)
    assert not state.to_reconcile(due, None)
    assert state.to_reconcile(due, B)
    assert not state.to_reconcile(due, B)
    hear(state, B, encode_header(header(MEMBERS[:3])), sequence=2, now=200.0)
    assert state.to_reconcile(200.0 + RECONCILE_SECONDS, B)


def test_a_member_that_stands_by_another_header_is_accused_in_the_end() -> None:
    state = commitment()
    propose(state, A, HEADER, now=100.0)
    hear(state, B, OTHER_HEADER, now=105.0)
    hear(state, B, OTHER_HEADER, sequence=2, now=150.0)  # the same again is no change of mind
    assert state.to_accuse(105.0 + DISAGREE_SECONDS - 0.1, [A, B]) == []
    assert state.to_accuse(105.0 + DISAGREE_SECONDS, [A, B]) == [(B, "disagrees")]
    hear(state, B, HEADER, sequence=3, now=170.0)
    assert state.to_accuse(1000.0, [A, B]) == []


def test_a_header_names_its_members_once() -> None:
    twice = encode_header(header(MEMBERS, members=(Member(A, 1, 1.0), Member(A, 1, 1.0))))
    with pytest.raises(MalformedError):
        open_commit(record(A, content=twice), RUN_ID, verify)
