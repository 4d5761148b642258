"""The board keeps the newest of everything, whatever the order in which it came."""

from __future__ import annotations

import pytest
from builders import (
    HEAD,
    RUN_ID,
    announce,
    peer,
    peers,
    ready,
    sealed,
    suspect,
    verify,
    vote,
)
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import board as board_module
from gossamer.protocol.board import Board
from gossamer.protocol.ids import digest_of
from gossamer.protocol.messages import Announce, Signed, Statement, open_signed

STATEMENTS: list[tuple[Signed, Statement]] = [
    (sealed(author, statement), statement)
    for author in peers(3)
    for statement in (
        announce(sequence=1),
        announce(sequence=2),
        announce(sequence=2, phase="paused"),  # a lie: the same version with other content
        ready(),
        ready(tokens=9000),
        suspect(peer(7)),
        vote(HEAD),
        vote(digest_of(b"other"), sequence=2),
    )
]


def board_of(statements: list[tuple[Signed, Statement]]) -> Board:
    board = Board()
    for signed, statement in statements:
        board.post(signed, statement)
    return board


@given(st.permutations(STATEMENTS), st.lists(st.sampled_from(STATEMENTS)))
def test_order_and_repetition_do_not_matter(
    order: list[tuple[Signed, Statement]], again: list[tuple[Signed, Statement]]
) -> None:
    assert set(board_of(order + again).digests()) == set(board_of(STATEMENTS).digests())


@given(st.lists(st.sampled_from(STATEMENTS)), st.lists(st.sampled_from(STATEMENTS)))
def test_two_boards_are_equal_after_an_exchange(
    left: list[tuple[Signed, Statement]], right: list[tuple[Signed, Statement]]
) -> None:
    one, other = board_of(left), board_of(right)
    for giver, taker in ((one, other), (other, one)):
        for signed in giver.missing_from(taker.digests()):
            taker.post(signed, open_signed(signed, RUN_ID, verify))
    assert set(one.digests()) == set(other.digests())
    assert one.missing_from(other.digests()) == []


def test_news_is_news_once() -> None:
    board = Board()
    old, new = announce(sequence=1), announce(sequence=2)
    assert board.post(sealed(peer(0), old), old)
    assert not board.post(sealed(peer(0), old), old)
    assert board.post(sealed(peer(0), new), new)
    assert not board.post(sealed(peer(0), old), old)
    assert [statement for _, statement in board.statements()] == [new]


def test_a_reply_is_bounded_and_the_next_brings_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "REPLY_BYTES_MAX", 1000)
    full = board_of(STATEMENTS)
    taker = Board()
    exchanges = 0
    while missing := full.missing_from(taker.digests()):
        assert sum(len(signed.payload) for signed in missing) <= 1000
        for signed in missing:
            taker.post(signed, open_signed(signed, RUN_ID, verify))
        exchanges += 1
    assert set(taker.digests()) == set(full.digests())
    assert exchanges > 1


def test_one_author_cannot_fill_the_board() -> None:
    board = Board()
    for index in range(2 * board_module.AUTHOR_STATEMENTS_MAX):
        accusation = suspect(peer(1), digest_of(index.to_bytes(4, "big")))
        board.post(sealed(peer(0), accusation), accusation)
    assert len(board) == board_module.AUTHOR_STATEMENTS_MAX
    assert board.post(sealed(peer(2), ready()), ready())


def test_one_author_cannot_take_all_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "AUTHOR_BYTES_MAX", 2000)
    board = Board()
    for index in range(100):
        accusation = suspect(peer(1), digest_of(index.to_bytes(4, "big")))
        board.post(sealed(peer(0), accusation), accusation)
    size = sum(len(signed.payload) for signed, _ in board.statements())
    assert 0 < size < 2000
    # Replacing a statement does not count twice, and dropping gives the room back.
    board.keep(lambda _signed, _statement: False)
    for sequence in range(1, 100):
        newer = announce(sequence=sequence)
        assert board.post(sealed(peer(0), newer), newer)


def test_many_authors_cannot_keep_others_from_a_full_board(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board_module, "STATEMENTS_MAX", 40)
    near = {peer(0), peer(1)}
    board = Board(near=lambda: near)
    for index in range(2, 202):
        assert board.post(sealed(peer(index), announce()), announce()) == (index < 42)
    # A near author takes the place of far ones, as often as it has something to say ...
    for index in range(30):
        accusation = suspect(peer(2), digest_of(index.to_bytes(4, "big")))
        assert board.post(sealed(peer(0), accusation), accusation)
    assert len(board) == 40
    # ... and of two near ones the one that has said more gives way.
    for index in range(20):
        accusation = suspect(peer(2), digest_of(index.to_bytes(4, "big")))
        assert board.post(sealed(peer(1), accusation), accusation)
    authors = [signed.author for signed, _ in board.statements()]
    assert sorted(map(authors.count, near)) == [20, 20]
    assert len(board.digests()) == len(board) == 40
    assert not board.post(sealed(peer(300), announce()), announce())


def test_a_full_board_gives_way_by_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "BOARD_BYTES_MAX", 20_000)
    board = Board()
    for index in range(300):
        accusation = suspect(peer(1), digest_of(index.to_bytes(4, "big")))
        board.post(sealed(peer(0), accusation), accusation)
    assert 10 < len(board) < 100
    for author in range(1, 4):
        assert board.post(sealed(peer(author), ready()), ready())
    size = sum(len(signed.payload) for signed, _ in board.statements())
    assert size < 20_000


def test_what_was_dropped_is_not_held_any_more() -> None:
    board = Board()
    old, new = announce(sequence=1), announce(sequence=2)
    board.post(sealed(peer(0), old), old)
    assert board.has(sealed(peer(0), old).digest)
    board.post(sealed(peer(0), new), new)
    assert not board.has(sealed(peer(0), old).digest)
    board.keep(lambda _signed, _statement: False)
    assert not board.has(sealed(peer(0), new).digest)


def test_a_statement_that_fits_no_reply_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "STATEMENT_BYTES_MAX", 300)
    assert not Board().post(sealed(peer(0), announce()), announce())


def test_keep_drops_what_is_not_wanted() -> None:
    board = board_of(STATEMENTS)
    board.keep(lambda _signed, statement: isinstance(statement, Announce))
    assert len(board) == 3


def test_suspects_and_votes_last_for_two_heads() -> None:
    board = board_of(STATEMENTS)
    board.age()
    assert len(board) == len(board_of(STATEMENTS))
    late = vote(HEAD)
    board.post(sealed(peer(5), late), late)
    board.age()
    kinds = {type(statement).__name__ for _, statement in board.statements()}
    assert kinds == {"Announce", "Ready", "Vote"}
    assert sum(statement == late for _, statement in board.statements()) == 1
