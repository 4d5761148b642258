"""Each chunk has one finisher, with any members out, and an average of an earlier one is good."""

from __future__ import annotations

from itertools import combinations

from gossamer.protocol.rounds.ring.ring_members import LivingMembers
from tests.support.builders import peers

RING = peers(5)


def finishers_of(starters: list[int], chunk: int, out: tuple[int, ...]) -> tuple[int, set[int]]:
    """The finisher of a chunk, and the members that may have finished it, when some are out."""
    members = LivingMembers(RING, RING[0], starters)
    for place in out:
        members.remove(RING[place])
    places = range(len(RING))
    (finisher,) = [place for place in places if members.finishes(chunk, place)]
    return finisher, {place for place in places if members.may_finish(chunk, place)}


def test_the_member_before_the_first_one_finishes() -> None:
    members = LivingMembers(RING, RING[0], [1, 3])
    assert [members.first(chunk) for chunk in range(4)] == [1, 3, 1, 3]
    for chunk, finisher in enumerate([0, 2, 0, 2]):
        assert finishers_of([1, 3], chunk, ()) == (finisher, {finisher})


def test_the_one_before_it_takes_the_place_of_a_finisher_that_is_out() -> None:
    assert finishers_of([1], 0, (0,)) == (4, {0, 4})
    assert finishers_of([1], 0, (0, 4)) == (3, {0, 4, 3})
    assert finishers_of([1], 0, (4, 1)) == (0, {0})
    assert finishers_of([1], 0, (0, 4, 3, 2)) == (1, {0, 4, 3, 2, 1})


def test_who_may_have_finished_stays_so_when_more_go_out() -> None:
    for size in range(len(RING) - 1):
        for out in combinations(range(len(RING)), size):
            before = finishers_of([2], 0, out)[1]
            for more in set(range(len(RING))) - set(out):
                if len(out) + 1 < len(RING):
                    assert before <= finishers_of([2], 0, (*out, more))[1]
