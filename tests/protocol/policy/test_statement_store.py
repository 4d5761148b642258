"""The statement store keeps the newest statement of each key, in whatever order the statements
come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.ids import digest_of
from gossamer.protocol.policy import statement_store as statement_store_module
from gossamer.protocol.policy.statement_store import StatementStore
from gossamer.protocol.wire.envelopes import open_signed
from gossamer.protocol.wire.statements import Announce, Signed, Statement
from tests.support.builders import (
    HEAD,
    RUN_ID,
    accusation_of,
    announce,
    peer,
    peers,
    ready,
    sealed,
    verify,
    vote,
)

STATEMENTS: list[tuple[Signed, Statement]] = [
    (sealed(author, statement), statement)
    for author in peers(3)
    for statement in (
        announce(sequence=1),
        announce(sequence=2),
        announce(sequence=2, phase="paused"),  # a lie: the same version with other content
        ready(),
        ready(tokens=9000),
        accusation_of(peer(7)),
        vote(HEAD),
        vote(digest_of(b"other"), sequence=2),
    )
]


def statement_store_of(statements: list[tuple[Signed, Statement]]) -> StatementStore:
    statement_store = StatementStore()
    for signed, statement in statements:
        statement_store.post(signed, statement)
    return statement_store


@given(st.permutations(STATEMENTS), st.lists(st.sampled_from(STATEMENTS)))
def test_order_and_repetition_do_not_matter(
    order: list[tuple[Signed, Statement]], again: list[tuple[Signed, Statement]]
) -> None:
    assert set(statement_store_of(order + again).tags()) == set(
        statement_store_of(STATEMENTS).tags()
    )


@given(st.lists(st.sampled_from(STATEMENTS)), st.lists(st.sampled_from(STATEMENTS)))
def test_two_statement_stores_are_equal_after_reconciliation(
    left: list[tuple[Signed, Statement]], right: list[tuple[Signed, Statement]]
) -> None:
    one, other = statement_store_of(left), statement_store_of(right)
    for giver, taker in ((one, other), (other, one)):
        for signed in giver.missing_from(taker.tags()):
            taker.post(signed, open_signed(signed, RUN_ID, verify))
    assert set(one.tags()) == set(other.tags())
    assert one.missing_from(other.tags()) == []


def test_news_is_news_once() -> None:
    statement_store = StatementStore()
    old, new = announce(sequence=1), announce(sequence=2)
    assert statement_store.post(sealed(peer(0), old), old)
    assert not statement_store.post(sealed(peer(0), old), old)
    assert statement_store.post(sealed(peer(0), new), new)
    assert not statement_store.post(sealed(peer(0), old), old)
    assert [statement for _, statement in statement_store.statements()] == [new]


def test_a_reply_is_bounded_and_the_next_brings_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_store_module, "REPLY_BYTES_MAX", 1000)
    full = statement_store_of(STATEMENTS)
    taker = StatementStore()
    sync_sets = 0
    while missing := full.missing_from(taker.tags()):
        assert sum(len(signed.payload) for signed in missing) <= 1000
        for signed in missing:
            taker.post(signed, open_signed(signed, RUN_ID, verify))
        sync_sets += 1
    assert set(taker.tags()) == set(full.tags())
    assert sync_sets > 1


def test_one_author_cannot_fill_the_statement_store() -> None:
    statement_store = StatementStore()
    for index in range(2 * statement_store_module.AUTHOR_STATEMENTS_MAX):
        accusation = accusation_of(peer(1), digest_of(index.to_bytes(4, "big")))
        statement_store.post(sealed(peer(0), accusation), accusation)
    assert len(statement_store.tags()) == statement_store_module.AUTHOR_STATEMENTS_MAX
    assert statement_store.post(sealed(peer(2), ready()), ready())


def test_one_author_cannot_take_all_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_store_module, "AUTHOR_BYTES_MAX", 2000)
    statement_store = StatementStore()
    for index in range(100):
        accusation = accusation_of(peer(1), digest_of(index.to_bytes(4, "big")))
        statement_store.post(sealed(peer(0), accusation), accusation)
    size = sum(len(signed.payload) for signed, _ in statement_store.statements())
    assert 0 < size < 2000
    # Replacing a statement does not count twice, and dropping gives the room back.
    statement_store.keep(lambda _signed, _statement: False)
    for sequence in range(1, 100):
        newer = announce(sequence=sequence)
        assert statement_store.post(sealed(peer(0), newer), newer)


def test_many_authors_cannot_keep_others_from_a_full_statement_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statement_store_module, "STATEMENTS_MAX", 40)
    near = {peer(0), peer(1)}
    statement_store = StatementStore(near=lambda: near)
    for index in range(2, 202):
        assert statement_store.post(sealed(peer(index), announce()), announce()) == (index < 42)
    # A near author takes the place of far ones, as often as it has something to say ...
    for index in range(30):
        accusation = accusation_of(peer(2), digest_of(index.to_bytes(4, "big")))
        assert statement_store.post(sealed(peer(0), accusation), accusation)
    assert len(statement_store.tags()) == 40
    # ... and of two near ones the one that has said more gives way.
    for index in range(20):
        accusation = accusation_of(peer(2), digest_of(index.to_bytes(4, "big")))
        assert statement_store.post(sealed(peer(1), accusation), accusation)
    authors = [signed.author for signed, _ in statement_store.statements()]
    assert sorted(map(authors.count, near)) == [20, 20]
    assert len(statement_store.tags()) == 40
    assert not statement_store.post(sealed(peer(300), announce()), announce())


def test_a_full_statement_store_gives_way_by_bytes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_store_module, "STATEMENT_STORE_BYTES_MAX", 20_000)
    statement_store = StatementStore()
    for index in range(300):
        accusation = accusation_of(peer(1), digest_of(index.to_bytes(4, "big")))
        statement_store.post(sealed(peer(0), accusation), accusation)
    assert 10 < len(statement_store.tags()) < 100
    for author in range(1, 4):
        assert statement_store.post(sealed(peer(author), ready()), ready())
    size = sum(len(signed.payload) for signed, _ in statement_store.statements())
    assert size < 20_000


def test_what_was_dropped_is_not_held_any_more() -> None:
    statement_store = StatementStore()
    old, new = announce(sequence=1), announce(sequence=2)
    statement_store.post(sealed(peer(0), old), old)
    assert statement_store.has(sealed(peer(0), old).digest)
    statement_store.post(sealed(peer(0), new), new)
    assert not statement_store.has(sealed(peer(0), old).digest)
    statement_store.keep(lambda _signed, _statement: False)
    assert not statement_store.has(sealed(peer(0), new).digest)


def test_a_statement_that_fits_no_reply_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_store_module, "STATEMENT_BYTES_MAX", 300)
    assert not StatementStore().post(sealed(peer(0), announce()), announce())


def test_keep_drops_what_is_not_wanted() -> None:
    statement_store = statement_store_of(STATEMENTS)
    statement_store.keep(lambda _signed, statement: isinstance(statement, Announce))
    assert len(statement_store.tags()) == 3


def test_accusations_and_votes_last_for_two_heads() -> None:
    statement_store = statement_store_of(STATEMENTS)
    statement_store.age()
    assert len(statement_store.tags()) == len(statement_store_of(STATEMENTS).tags())
    late = vote(HEAD)
    statement_store.post(sealed(peer(5), late), late)
    statement_store.age()
    kinds = {type(statement).__name__ for _, statement in statement_store.statements()}
    assert kinds == {"Announce", "Ready", "Vote"}
    assert sum(statement == late for _, statement in statement_store.statements()) == 1


def said_by(store: StatementStore, author: int, num_statements: int, start: int = 0) -> int:
    """An author accuses many; returns how many of its statements were taken."""
    taken = 0
    for index in range(start, start + num_statements):
        accusation = accusation_of(peer(1), digest_of(index.to_bytes(4, "big")))
        taken += store.post(sealed(peer(author), accusation), accusation)
    return taken


def test_authors_without_standing_have_less_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_store_module, "STRANGER_BYTES_MAX", 5_000)
    monkeypatch.setattr(statement_store_module, "STRANGERS_BYTES_MAX", 20_000)
    store = StatementStore(has_standing=lambda author: author == peer(0))
    of_one = said_by(store, 2, 100)
    assert 5 < of_one < 40
    for author in range(3, 20):
        said_by(store, author, 100)
    total = sum(len(signed.payload) + 200 for signed, _ in store.statements())
    assert 15_000 < total <= 20_000
    # Strangers make strangers give way, and none of those with standing.
    assert said_by(store, 0, 100) == 100
    assert said_by(store, 30, 1) == 1
    authors = [signed.author for signed, _ in store.statements()]
    assert authors.count(peer(0)) == 100
    total = sum(len(s.payload) + 200 for s, _ in store.statements() if s.author != peer(0))
    assert total <= 20_000


def test_what_an_author_may_say_grows_with_its_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement_store_module, "STRANGER_BYTES_MAX", 5_000)
    standing: set[str] = set()
    store = StatementStore(has_standing=standing.__contains__)
    first = said_by(store, 2, 100)
    standing.add(peer(2))
    assert said_by(store, 2, 100) == 100 - first
