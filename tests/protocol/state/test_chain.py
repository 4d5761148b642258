"""Headers, update indexes, and what a round takes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.state.chain import (
    ChunkAverage,
    Member,
    UpdateIndex,
    check_follows,
    decode_header,
    decode_update_index,
    lost_members,
    mask_bytes,
    removed_in,
    spans_taken,
    tokens_taken,
)
from gossamer.protocol.wire.statements import Span
from tests.support.builders import HEAD, commit_of, header, peers, ring_of

MEMBERS = peers(3)


def test_a_header_comes_back_from_its_bytes() -> None:
    assert decode_header(to_msgpack(header(MEMBERS))) == header(MEMBERS)
    assert header(MEMBERS).tokens == 300


@pytest.mark.parametrize(
    "change",
    [
        {"version": limits.PROTOCOL_VERSION + 1},
        {"run_id": bytes(31)},
        {"parent": bytes(33)},
        {"ring_id": b""},
        {"update_digest": b""},
        {"state_digest": b""},
        {"ledger_digest": b""},
        {"round": 0},
        {"round": limits.ROUNDS_MAX + 1},
        {"members": ()},
        {"members": (Member(MEMBERS[0], 1, 1.0), Member(MEMBERS[0], 1, 1.0))},
        {"members": (Member("not-a-peer", 1, 1.0),)},
        {"members": (Member(MEMBERS[0], -1, 1.0), Member(MEMBERS[1], 5, 1.0))},
        {"members": (Member(MEMBERS[0], limits.TOKENS_MAX + 1, 1.0),)},
        {"members": (Member(MEMBERS[0], 0, 1.0),)},
        {"members": (Member(MEMBERS[0], 1, -1.0), Member(MEMBERS[1], 1, 1.0))},
        {"members": (Member(MEMBERS[0], 1, math.nan), Member(MEMBERS[1], 1, 1.0))},
        {"members": (Member(MEMBERS[0], 1, math.inf), Member(MEMBERS[1], 1, 1.0))},
        {"tokens_total": 299},
        {"tokens_total": limits.TOKENS_TOTAL_MAX + 1},
        {"spans": (Span(0, 5, 5),)},
        {"spans": (Span(1, 0, 1), Span(0, 0, 1))},
        {"spans": (Span(1, 5, 9), Span(1, 0, 5))},
        {"spans": (Span(1, 0, 5), Span(1, 4, 9))},
        {"spans": (Span(1, 0, 5), Span(1, 0, 5))},
        {"spans": tuple(Span(i, 0, 1) for i in range(3 * limits.SPANS_MAX + 1))},
    ],
    ids=repr,
)
def test_a_header_out_of_range_is_malformed(change: dict[str, object]) -> None:
    with pytest.raises(MalformedError):
        decode_header(to_msgpack(header(MEMBERS, **change)))


def test_spans_of_a_header_are_sorted_and_may_touch_or_leave_gaps() -> None:
    spans = (Span(0, 0, 5), Span(0, 5, 6), Span(0, 8, 9), Span(2, 1, 3))
    assert decode_header(to_msgpack(header(MEMBERS, spans=spans))).spans == spans


def test_a_header_has_one_form() -> None:
    data = to_msgpack(header(MEMBERS))
    assert data[1] == limits.PROTOCOL_VERSION  # the version, as a small number
    with pytest.raises(MalformedError, match="canonical"):
        decode_header(data[:1] + b"\xcc\x01" + data[2:])


def test_a_child_continues_its_parent() -> None:
    child = header(MEMBERS)
    check_follows(child, HEAD, 4, 9_700)
    for parent, number, tokens in ((digest_of(b"x"), 4, 9_700), (HEAD, 5, 9_700), (HEAD, 4, 9_701)):
        with pytest.raises(MalformedError):
            check_follows(child, parent, number, tokens)


def test_an_update_index_is_checked_against_the_run_and_the_ring() -> None:
    average = ChunkAverage(digest_of(b"x"), mask_bytes(0b101, 3))
    assert average.mask() == 0b101
    assert [average.has(position) for position in range(3)] == [True, False, True]
    good = UpdateIndex("fp32", (average, average))
    assert decode_update_index(to_msgpack(good), 2, 3) == good
    for broken, num_chunks, num_members in (
        (good, 1, 3),
        (good, 2, 2),  # member 2 does not exist
        (good, 2, 9),  # the mask has two bytes
        (UpdateIndex("fp32", (ChunkAverage(b"", b"\x01"),)), 1, 3),
        (UpdateIndex("fp32", (ChunkAverage(digest_of(b"x"), b"\x00"),)), 1, 3),
    ):
        with pytest.raises(MalformedError):
            decode_update_index(to_msgpack(broken), num_chunks, num_members)
    with pytest.raises(MalformedError):
        decode_update_index(b"\x93" + to_msgpack(good)[1:] + b"\xc0", 2, 3)
    lacking = UpdateIndex("fp32", (ChunkAverage(digest_of(b"x"), b"\x00"),))
    assert decode_update_index(to_msgpack(lacking), 1, 3, may_lack=True) == lacking
    members = 16
    whole = ChunkAverage(digest_of(b"x"), mask_bytes((1 << members) - 1, members))
    large = UpdateIndex("fp32", (whole,))
    assert decode_update_index(to_msgpack(large), 1, members) == large


@given(st.integers(1, 10**9), st.integers(1, 100), st.data())
def test_tokens_count_by_the_chunks_that_hold_them(
    tokens: int, num_chunks: int, data: st.DataObject
) -> None:
    num_in = data.draw(st.integers(0, num_chunks))
    taken = tokens_taken(tokens, num_in, num_chunks)
    assert 0 <= taken <= tokens
    assert (taken == tokens) or num_in < num_chunks
    assert (taken > 0) == (num_in > 0)
    assert taken == tokens or taken * num_chunks - tokens * num_in in range(num_chunks)


def test_spans_count_from_half_of_the_chunks_on() -> None:
    assert [spans_taken(count, 3) for count in range(4)] == [False, False, True, True]
    assert [spans_taken(count, 4) for count in range(5)] == [False, False, True, True, True]


def test_a_record_tells_whether_a_member_was_out_of_the_ring() -> None:
    ring = ring_of(MEMBERS)
    assert not lost_members(commit_of(ring, MEMBERS))
    assert lost_members(commit_of(ring, MEMBERS[:2], removed=MEMBERS[2:]))


def test_a_member_is_out_by_the_word_of_more_than_half_of_the_signers() -> None:
    ring = ring_of(peers(5))
    *signers, out = ring.members
    for num_accusers, is_out in ((0, False), (1, False), (2, False), (3, True), (4, True)):
        votes = [
            *commit_of(ring, signers[:num_accusers], removed=[out]).votes,
            *commit_of(ring, signers[num_accusers:]).votes,
        ]
        commit = replace(commit_of(ring, ()), votes=tuple(votes))
        assert removed_in(commit) == ({out} if is_out else set())
        assert lost_members(commit) == (num_accusers > 0)
