"""The members that are out of a ring."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.protocol.rounds.ring.ring_members import REPEATED, Accusations, Heard
from tests.support.builders import peers

A, B, C, D = MEMBERS = peers(4)


def test_the_word_of_a_member_puts_another_out() -> None:
    seen = Accusations(MEMBERS, A)
    assert seen.accuse(B, C)
    assert not seen.accuse(D, C)
    assert seen.out == {C}


def test_strangers_neither_accuse_nor_are_accused() -> None:
    seen = Accusations(MEMBERS, A)
    stranger = peers(9)[8]
    assert not seen.accuse(stranger, B)
    assert not seen.accuse(B, stranger)
    assert seen.out == frozenset()


def test_a_member_that_is_out_puts_no_member_out_but_itself() -> None:
    """A machine that lost its network accuses everybody; when it is back, no member minds."""
    seen = Accusations(MEMBERS, A)
    seen.accuse(D, B)
    for accused in (A, C, D):
        assert not seen.accuse(B, accused)
    assert seen.out == {B}
    assert seen.to_repeat() == [B]  # it does not know that it is out
    seen.accuse(A, B)
    assert seen.to_repeat() == []
    assert seen.accuse(C, C)


def test_an_accusation_whose_author_fell_is_repeated() -> None:
    seen = Accusations(MEMBERS, A)
    seen.accuse(B, C)
    assert seen.to_repeat() == []
    seen.accuse(D, B)
    assert seen.to_repeat() == [C]
    seen.accuse(A, C)
    assert seen.to_repeat() == []


def test_a_self_accusation_needs_no_repeating_and_a_member_that_is_out_repeats_nothing() -> None:
    seen = Accusations(MEMBERS, A)
    seen.accuse(C, C)
    assert seen.to_repeat() == []
    seen.accuse(B, D)
    seen.accuse(B, B)
    assert seen.to_repeat() == [D]
    seen.accuse(A, A)
    assert seen.to_repeat() == []


def test_whose_word_it_is_that_a_member_is_out() -> None:
    """The one whose word it is answers for it: others doubt its next words, or avoid it."""
    seen = Accusations(MEMBERS, A)
    seen.accuse(C, C)
    seen.accuse(C, B)  # does not count, because C is out
    own, repeated = Heard(D, B, "reset"), Heard(D, B, REPEATED)
    assert seen.word_of(own) == own, "it has seen that itself"
    assert seen.word_of(repeated) == Heard(C, B, REPEATED)
    of_another = Heard(B, D, REPEATED)
    assert seen.word_of(of_another) == of_another, "of D nobody else said anything"


@st.composite
def conversations(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], int]:
    """Members, accusations as (author, accused), and a seed for the order of delivery."""
    num = draw(st.integers(2, 6))
    pairs = draw(st.lists(st.tuples(st.integers(0, num - 1), st.integers(0, num - 1)), max_size=8))
    return num, pairs, draw(st.integers(0, 2**32))


@pytest.mark.long
@settings(max_examples=10 * settings().max_examples)  # a tenth finds no lost repetition
@given(conversations())
def test_members_that_hold_each_other_in_hold_the_same_members_out(
    conversation: tuple[int, list[tuple[int, int]], int],
) -> None:
    """Every member says what the rules make it say, and hears everything, in any order."""
    num, pairs, seed = conversation
    random = Random(seed)
    members = peers(num)
    views = {member: Accusations(members, member) for member in members}
    queue: list[tuple[int, int, int]] = []  # hearer, author, accused

    def say(author: int, accused: int) -> None:
        """An author accuses a member as in `FollowedRing.accuse`. A member that is out does not
        accuse, and a member that it holds to be out is not accused."""
        view = views[members[author]]
        if {members[author], members[accused]} & view.out:
            return
        view.accuse(members[author], members[accused])
        queue.extend((hearer, author, accused) for hearer in range(num) if hearer != author)
        react(author)

    def react(index: int) -> None:
        view = views[members[index]]
        for accused in view.to_repeat():
            view.accuse(members[index], accused)
            target = members.index(accused)
            queue.extend((hearer, index, target) for hearer in range(num) if hearer != index)

    def hear(hearer: int, author: int, accused: int) -> None:
        view = views[members[hearer]]
        was_in = members[hearer] not in view.out
        view.accuse(members[author], members[accused])
        if was_in and members[hearer] in view.out:
            queue.extend((other, hearer, hearer) for other in range(num) if other != hearer)
        react(hearer)

    left = list(pairs)
    while left or queue:
        if left and (random.random() < 1 / 3 or not queue):
            say(*left.pop())
        else:
            hear(*queue.pop(random.randrange(len(queue))))

    for one in members:
        for other in members:
            both_in = one not in views[one].out and other not in views[other].out
            if both_in and other not in views[one].out:
                assert views[one].out == views[other].out
