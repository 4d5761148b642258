"""Accusations by members that are doubted, and the answers of those they accuse."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.ring.ring_members import (
    ANSWER_SECONDS,
    BASELESS,
    Accusations,
    Doubts,
    Heard,
)
from tests.support.builders import peers

A, B, C, D = MEMBERS = peers(4)
ACCUSATION, ANSWER = Heard(A, B, "reset"), Heard(B, A, BASELESS)


def test_an_accusation_that_nobody_answers_counts_a_little_later() -> None:
    doubts = Doubts({A})
    assert doubts.heard(5.0, ACCUSATION) == []
    assert doubts.heard(6.0, ACCUSATION) == [], "it is repeated"
    assert doubts.due(5.0 + ANSWER_SECONDS - 0.1) == []
    assert doubts.due(5.0 + ANSWER_SECONDS) == [ACCUSATION]
    assert doubts.due(5.0 + ANSWER_SECONDS) == []


@pytest.mark.parametrize("order", [(ACCUSATION, ANSWER), (ANSWER, ACCUSATION)])
def test_an_answer_counts_first_whichever_is_heard_first(order: tuple[Heard, Heard]) -> None:
    first, second = order
    doubts = Doubts({A})
    assert doubts.heard(1.0, first) == []
    assert doubts.heard(2.0, second) == [Heard(B, A, BASELESS, "reset"), ACCUSATION]
    assert doubts.due(99.0) == []


def test_two_doubted_members_may_answer_each_other() -> None:
    doubts = Doubts({A, B})
    assert doubts.heard(1.0, ACCUSATION) == []
    assert doubts.heard(2.0, ANSWER) == [Heard(B, A, BASELESS, "reset"), ACCUSATION]


@pytest.mark.parametrize("reason", ["reset", BASELESS])
def test_a_doubted_member_makes_no_answer_of_its_word_by_the_reason_that_it_gives(
    reason: str,
) -> None:
    """An answer puts its author's accuser out: a hostile member would say its first word so."""
    doubts, first = Doubts({A}), Heard(A, B, BASELESS)
    assert doubts.heard(1.0, first) == []
    plain = Heard(B, A, reason)
    counted = doubts.heard(2.0, plain)
    assert (counted[0].author, counted[0].accused) == (B, A), "that of the other one comes first"
    assert counted == ([plain] if reason == "reset" else [Heard(B, A, BASELESS, BASELESS), first])
    doubts = Doubts({A})
    assert doubts.heard(1.0, ANSWER) == []
    assert doubts.heard(2.0, first) == [Heard(B, A, BASELESS, BASELESS), first]


def test_only_an_answer_is_one() -> None:
    """What a member found itself is no answer, and a mark of another kind."""
    mine = Heard(B, A, "timeout")
    doubts = Doubts({A})
    assert doubts.heard(1.0, ACCUSATION) == []
    assert doubts.heard(2.0, mine) == [mine]
    doubts = Doubts({A, B})
    assert doubts.heard(1.0, mine) == doubts.heard(1.0, ACCUSATION) == []
    assert doubts.due(1.0 + ANSWER_SECONDS) == [mine, ACCUSATION]


def test_an_answer_to_nothing_is_an_accusation_like_any_other() -> None:
    doubts = Doubts({A})
    assert doubts.heard(1.0, ANSWER) == []
    assert doubts.due(1.0 + ANSWER_SECONDS) == [ANSWER], "it answers nothing"
    assert Doubts().heard(1.0, ANSWER) == [ANSWER]


def test_members_that_are_not_doubted_are_believed_at_once() -> None:
    doubts = Doubts({D})
    for heard in (ACCUSATION, Heard(A, D, "reset"), Heard(D, D, "stalled")):
        assert doubts.heard(1.0, heard) == [heard]


class Talk:
    """What four members say of each other. Every statement reaches all the others, in any order."""

    def __init__(self, seed: int, doubtful: frozenset[PeerId]) -> None:
        self._random = Random(seed)
        self.seen = {me: Accusations(MEMBERS, me) for me in MEMBERS}
        self._doubts = {me: Doubts({A} if me in doubtful else ()) for me in MEMBERS}
        self._unheard: list[tuple[PeerId, Heard]] = []
        self._now = 0.0

    def say(self, author: PeerId, accused: PeerId, reason: str) -> None:
        self.seen[author].accuse(author, accused)
        heard = Heard(author, accused, reason)
        self._unheard += [(me, heard) for me in MEMBERS if me != author]

    def run(self) -> None:
        while self._unheard:
            self._now += self._random.choice((0.1, 1.0))
            place = self._random.randrange(len(self._unheard))
            me, heard = self._unheard.pop(place)
            self._hear(me, heard)
            for each in MEMBERS:
                # At the end all that is held is due.
                due_seconds = self._now if self._unheard else float("inf")
                self._count(each, self._doubts[each].due(due_seconds))

    def _hear(self, me: PeerId, heard: Heard) -> None:
        are_in = not {me, heard.author} & self.seen[me].out
        if heard.accused == me and heard.author in self._doubts[me] and are_in:
            self.say(me, heard.author, BASELESS)
        else:
            self._count(me, self._doubts[me].heard(self._now, heard))

    def _count(self, me: PeerId, counted: list[Heard]) -> None:
        view = self.seen[me]
        for heard in counted:
            if view.accuse(heard.author, heard.accused) and heard.accused == me != heard.author:
                self.say(me, me, "accused")
            for accused in view.to_repeat():
                self.say(me, accused, "is out")


def test_members_that_doubt_different_ones_exclude_the_same_in_the_end() -> None:
    """A accuses B without a cause. Of the others some doubt A."""
    outcomes = set()
    for seed, number in itertools.product(range(100), range(8)):
        doubtful = frozenset(me for place, me in enumerate((B, C, D)) if number >> place & 1)
        talk = Talk(seed, doubtful)
        talk.say(A, B, "reset")
        talk.run()
        living = {me for me in MEMBERS if me not in talk.seen[me].out}
        for me in living:
            assert talk.seen[me].out == {*MEMBERS} - living, f"seed {seed}, {number}: {me}"
        assert {C, D} <= living
        outcomes.add(frozenset(living - {C, D}))
        if not doubtful:
            assert living == {A, C, D}
    assert outcomes == {frozenset({A}), frozenset({B}), frozenset()}
