"""What comes first where a reply of the statement store has no room for all that the asker lacks.
The asker may refuse what strangers say, and then it lacks it at each comparison."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.statement_store import (
    STRANGERS_REPLY_BYTES_MAX,
    StatementStore,
)
from gossamer.protocol.wire.statements import Extension, Rollback, Roster, Statement
from tests.support.builders import HEAD, accusation_of, announce, peer, peers, ready, sealed

ME, MEMBER, FOUNDER, NEWCOMER, *STRANGERS = peers(10)


def roster(num_members: int, attempt: int = 0) -> Roster:
    return Roster(5, HEAD, attempt, (sealed(peer(20), ready()),) * num_members, "fp32", 1024)


def bytes_by(store: StatementStore, authors: Collection[str]) -> int:
    """Bytes of what authors say in a reply to a peer that holds nothing."""
    reply = store.missing_from(())
    return sum(len(signed.payload) for signed in reply if signed.author in authors)


def said_in_reply(store: StatementStore, author: PeerId) -> list[bytes]:
    return [signed.payload for signed in store.missing_from(()) if signed.author == author]


@pytest.fixture
def full() -> StatementStore:
    """Holds 300 KiB of strangers' rosters. The largest that fits between them into a reply has two
    members."""
    store = StatementStore(has_standing={ME, MEMBER}.__contains__)
    say(store, ME, announce())
    say(store, MEMBER, announce())
    num_bytes = 0
    for number in range(1000):
        author, statement = STRANGERS[number % len(STRANGERS)], roster(2, attempt=number)
        say(store, author, statement)
        num_bytes += len(sealed(author, statement).payload)
        if num_bytes > 300 * limits.KIB:
            return store
    raise AssertionError("the strangers say too little")


def say(store: StatementStore, author: PeerId, statement: Statement) -> None:
    assert store.post(sealed(author, statement), statement)


def test_a_members_statement_comes_whatever_strangers_have_said(full: StatementStore) -> None:
    say(full, MEMBER, roster(100))
    assert sealed(MEMBER, roster(100)).payload in said_in_reply(full, MEMBER)


def test_strangers_fill_half_of_a_reply(full: StatementStore) -> None:
    num_bytes = bytes_by(full, STRANGERS)
    assert 0.6 * STRANGERS_REPLY_BYTES_MAX < num_bytes <= STRANGERS_REPLY_BYTES_MAX


SHORT = accusation_of(MEMBER, b"")


@pytest.fixture
def crowd(full: StatementStore) -> StatementStore:
    """Holds short statements of so many strangers that a reply has no room for one of each."""
    for stranger in peers(800)[100:]:
        say(full, stranger, SHORT)
    return full


def test_the_announcement_of_a_newcomer_comes_before_what_strangers_say(
    crowd: StatementStore,
) -> None:
    payload = sealed(NEWCOMER, announce()).payload
    assert len(payload) > len(sealed(NEWCOMER, SHORT).payload)  # so it is no shortness that counts
    say(crowd, NEWCOMER, announce())
    assert said_in_reply(crowd, NEWCOMER) == [payload]


@pytest.mark.parametrize("order", [Rollback(bytes(32), bytes(32), 4), Extension(1, 2**40, 2**39)])
def test_an_order_comes_whatever_strangers_have_said(
    crowd: StatementStore, order: Rollback | Extension
) -> None:
    """A founder need not take part in rounds."""
    say(crowd, FOUNDER, order)
    for stranger in peers(2000)[800:]:  # newcomers, as it seems
        say(crowd, stranger, announce())
    assert said_in_reply(crowd, FOUNDER) == [sealed(FOUNDER, order).payload]


@pytest.mark.parametrize("has_standing", [True, False])
def test_an_author_that_says_little_is_heard_beside_those_that_say_much(has_standing: bool) -> None:
    store = StatementStore(has_standing=lambda author: has_standing or author == ME)
    for number in range(400):
        say(store, STRANGERS[number % len(STRANGERS)], roster(2, attempt=number))
    say(store, NEWCOMER, roster(20))
    assert said_in_reply(store, NEWCOMER) == [sealed(NEWCOMER, roster(20)).payload]
    # What is chosen comes in the order in which it came here.
    assert store.missing_from(())[-1].author == NEWCOMER
