"""The peers that sit out of rings, after what others say of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct import ring_conduct
from gossamer.protocol.policy.conduct.conduct_record import MARKS_MAX, UNFAIR_MAX, WRONG_MAX
from gossamer.protocol.policy.conduct.ring_conduct import (
    ACCUSERS_MAX,
    LOST_FACTOR,
    MEMBERS_MIN,
    MEMORY_ROUNDS,
    RingConduct,
    VotesSeen,
)
from gossamer.protocol.policy.conduct.sit_out import (
    FORGET_ROUNDS,
    SITS_OUT_ROUNDS,
    SITS_OUT_ROUNDS_MAX,
    SitOut,
)
from tests.support.builders import peers

ME, A, B, C, D = ORDER = peers(5)
ELSEWHERE = peers(7)[5:]

LATE = VotesSeen(have_begun=True, is_late=True, may_be_late=True)


def conduct() -> RingConduct:
    return RingConduct(ME)


def before(peer: PeerId, accuser: PeerId, members: Sequence[PeerId] = ORDER) -> list[PeerId]:
    """The order of a ring in which the accuser comes before a peer."""
    return [accuser, peer, *(each for each in members if each not in (accuser, peer))]


def test_a_member_that_different_ones_put_out_sits_out_twice_as_long_each_time() -> None:
    mine, now = conduct(), 1
    mine.put_out(now, B, C, ORDER)
    assert not mine.sits_out(now + 1, C)
    # Each time it is another one at first. Then more than half of the others have found it so.
    for accuser, times in ((D, 1), (A, 2), (D, 3), (A, 4)):
        now, rounds = now + 1, SITS_OUT_ROUNDS * 2 ** (times - 1)
        mine.put_out(now, accuser, C, before(C, accuser))
        assert all(mine.sits_out(now + ahead, C) for ahead in range(1, rounds + 1))
        now += rounds + 1
        assert not mine.sits_out(now, C)
    now += FORGET_ROUNDS
    mine.put_out(now, D, C, ORDER)
    assert not mine.sits_out(now + 1, C), "it is long ago"
    assert not any(mine.sits_out(number, peer) for number in range(now) for peer in (A, B, D))


def test_two_that_lie_together_make_no_other_one_sit_out_for_ever() -> None:
    """A and B accuse C wherever they are its neighbours, and it is not theirs for a while then."""
    mine, num_rounds = conduct(), 600
    next_lies, sat_out = {A: 1, B: 2}, 0
    for number in range(1, num_rounds + 1):
        if mine.sits_out(number, C):
            sat_out += 1
            continue
        for liar in (A, B):
            if number >= next_lies[liar]:
                next_lies[liar] = number + MEMORY_ROUNDS + 1
                mine.put_out(number, liar, C, before(C, liar, ORDER + ELSEWHERE))
                break
    assert sat_out <= 0.3 * num_rounds
    mine.put_out(num_rounds + 1, D, C, before(C, D, ORDER + ELSEWHERE))
    assert mine.sits_out(num_rounds + 1 + 2 * SITS_OUT_ROUNDS, C), "a third one finds it so"


def test_a_liar_does_not_make_a_ring_small_first_to_count_for_more() -> None:
    """A and B put out members on the way to C, until so few are left that the two are half."""
    mine, num_rounds, members = conduct(), 600, (*ORDER, *ELSEWHERE, *peers(8)[7:])
    next_lies, sat_out = {A: 1, B: 2}, 0
    for number in range(1, num_rounds + 1):
        if mine.sits_out(number, C):
            sat_out += 1
            continue
        for liar in (A, B):
            if number < next_lies[liar]:
                continue
            next_lies[liar] = number + MEMORY_ROUNDS + 1
            left = [each for each in members if each not in (A, B, C)]
            while len(left) > 1:
                order = [liar, left[-1], *left[:-1], C, B if liar == A else A]
                mine.put_out(number, liar, left.pop(), order, num_members=len(members))
            mine.put_out(number, liar, C, before(C, liar, (A, B, C, *left)), num_members=8)
            break
    assert sat_out <= 0.3 * num_rounds


def spoilt(mine: RingConduct, *rounds: int, seconds: float = 9.0) -> None:
    """C keeps what it should pass on in rings of these rounds, each of which stands still."""
    for number, accuser in zip(rounds, (B, D) * len(rounds), strict=False):
        mine.put_out(number, accuser, C, ORDER, lost_seconds=seconds)


def test_a_member_that_keeps_sums_sits_out_twice_the_rounds_that_it_cost() -> None:
    mine, other = conduct(), conduct()
    for seconds in (0.5, 0.5, 0.5, 60.0, 60.0):
        mine.round_took(seconds)
        other.round_took(120.0 * seconds)
    for each in (mine, other):
        spoilt(each, 1, 2)
    rounds = round(LOST_FACTOR * 2 * 9.0 / 0.5)
    assert mine.sits_out(2 + rounds, C)
    assert not mine.sits_out(3 + rounds, C)
    assert other.sits_out(2 + SITS_OUT_ROUNDS, C), "as many as any other"
    assert not other.sits_out(3 + SITS_OUT_ROUNDS, C), "rounds of a minute lose less than one"


def test_a_member_that_keeps_sums_sits_out_no_longer_than_others_may() -> None:
    mine = conduct()
    spoilt(mine, 1, 2)
    assert not mine.sits_out(3 + SITS_OUT_ROUNDS, C), "no round was committed yet"
    mine = conduct()
    mine.round_took(0.01)
    spoilt(mine, 1, 2)
    assert mine.sits_out(2 + SITS_OUT_ROUNDS_MAX, C)
    assert not mine.sits_out(3 + SITS_OUT_ROUNDS_MAX, C)


def test_a_member_that_was_let_in_too_early_sits_out_no_shorter_for_it() -> None:
    """An organiser that does not remember it has it in a ring, and it spoils that one too."""
    mine = conduct()
    mine.round_took(0.25)
    spoilt(mine, 1, 2)
    until = 2 + int(LOST_FACTOR * 2 * 9.0 / 0.25)
    spoilt(mine, 5, seconds=1.0)
    assert mine.sits_out(until, C)
    assert not mine.sits_out(until + 1, C)


def test_a_member_that_kept_sums_is_suspected_for_a_while() -> None:
    mine = conduct()
    mine.put_out(1, B, A, ORDER)
    assert mine.suspected(2) == frozenset(), "it kept nothing"
    spoilt(mine, 1)
    assert mine.suspected(2) == mine.suspected(1 + MEMORY_ROUNDS) == {C}
    assert mine.suspected(2 + MEMORY_ROUNDS) == frozenset()
    spoilt(mine, 2, 3)
    back = 3 + SITS_OUT_ROUNDS
    assert mine.suspected(back + FORGET_ROUNDS) == {C}
    assert mine.suspected(1 + back + FORGET_ROUNDS) == frozenset()


def test_what_was_long_ago_does_not_count() -> None:
    mine = conduct()
    mine.put_out(1, B, C, ORDER)
    mine.put_out(1 + MEMORY_ROUNDS, D, C, ORDER)
    assert not mine.sits_out(2 + MEMORY_ROUNDS, C)


def test_one_accuser_alone_needs_more_marks() -> None:
    assert ACCUSERS_MAX < MARKS_MAX
    mine = conduct()
    for number in range(1, MARKS_MAX):
        mine.put_out(number, B, C, ORDER)
        assert not mine.sits_out(number + 1, C)
    mine.put_out(MARKS_MAX, B, C, ORDER)
    assert mine.sits_out(MARKS_MAX + 1, C)


def test_a_member_that_accuses_those_it_cannot_know_sits_out_itself() -> None:
    """One of five accuses the same member in every ring, wherever that stands."""
    mine = conduct()
    mine.put_out(1, A, C, ORDER)
    mine.put_out(2, A, C, ORDER)
    assert mine.sits_out(3, A)
    assert not mine.sits_out(3, C)


def test_wrong_accusations_of_long_ago_make_no_sentence_longer() -> None:
    mine, now = conduct(), 1
    for rounds in (SITS_OUT_ROUNDS, SITS_OUT_ROUNDS):
        for _ in range(WRONG_MAX):
            mine.put_out(now, A, C, ORDER)
        assert mine.sits_out(now + rounds, A)
        assert not mine.sits_out(now + rounds + 1, A)
        now += rounds + FORGET_ROUNDS + 1


def test_one_that_puts_out_members_at_work_is_doubted_for_a_while() -> None:
    mine = conduct()
    mine.put_out(1, B, C, ORDER)
    assert mine.doubted(2) == frozenset()
    mine.contested(1, B, C, len(ORDER))
    assert mine.doubted(2) == mine.doubted(MEMORY_ROUNDS) == {B}
    assert mine.doubted(1 + MEMORY_ROUNDS) == frozenset()


@pytest.mark.parametrize("is_slow", [False, True])
def test_one_whose_accusation_others_share_is_not_doubted(*, is_slow: bool) -> None:
    mine = conduct()
    mine.put_out(1, B, C, ORDER, is_slow=is_slow)
    mine.contested(1, B, C, len(ORDER))
    assert B in mine.doubted(2)
    mine.put_out(2, D, C, ORDER, is_slow=is_slow)
    assert B not in mine.doubted(3)


def test_in_small_rings_and_of_itself_no_peer_doubts_anything() -> None:
    mine = conduct()
    mine.contested(1, B, C, MEMBERS_MIN - 1)
    mine.contested(1, ME, C, MEMBERS_MIN)
    assert mine.doubted(2) == frozenset()
    mine.contested(1, B, C, MEMBERS_MIN)
    assert mine.doubted(2) == {B}, "of C nobody knows a fault"


def test_what_others_found_long_ago_shares_no_accusation() -> None:
    mine = conduct()
    mine.put_out(1, D, C, ORDER)
    mine.contested(1 + MEMORY_ROUNDS, B, C, len(ORDER))
    assert mine.doubted(2 + MEMORY_ROUNDS) == {B}


def test_one_that_sat_out_is_doubted_until_that_is_forgotten() -> None:
    mine = conduct()
    for number in (1, 2):
        mine.put_out(number, A, C, ORDER)
    assert mine.doubted(3) == mine.doubted(2 + SITS_OUT_ROUNDS + FORGET_ROUNDS) == {A}
    assert mine.doubted(3 + SITS_OUT_ROUNDS + FORGET_ROUNDS) == frozenset()


def test_an_answer_is_a_mark_among_neighbours_and_makes_others_sit_out() -> None:
    """The one that answers is no neighbour of the other one, and is right all the same."""
    mine = conduct()
    mine.put_out(1, C, A, ORDER, is_answer=True)
    assert mine.sits_out(2, A)
    assert not mine.sits_out(2, C)
    assert mine.doubted(2) == {A}
    mine = conduct()
    mine.put_out(1, C, B, ORDER, is_answer=True)
    assert not mine.sits_out(2, B)
    mine.put_out(2, A, B, ORDER, is_answer=True)
    assert mine.sits_out(3, B)


def test_what_a_member_replies_to_this_peer_is_not_held_against_it() -> None:
    mine = conduct()
    for number in range(1, 2 * WRONG_MAX + 1):
        mine.put_out(number, C, ME, ORDER, is_reply=True)
        assert not mine.sits_out(number + 1, C)
    mine.put_out(9, C, ME, ORDER)
    mine.put_out(10, C, ME, ORDER)
    assert mine.sits_out(11, C), "this peer had said nothing against it"


def test_an_answer_to_a_neighbour_that_found_a_line_slow_is_no_mark() -> None:
    mine = conduct()
    for accuser in (A, C):
        mine.put_out(1, accuser, B, ORDER, is_slow=True, is_answer=True)
    assert not mine.sits_out(2, B)
    assert mine.doubted(2) == frozenset()


def test_in_the_vote_any_member_may_say_who_delays_it() -> None:
    mine = conduct()
    for number in (1, 2, 3):
        mine.put_out(number, A, C, ORDER, votes=LATE)
    assert not mine.sits_out(4, A)
    mine.put_out(4, D, C, ORDER, votes=LATE)
    assert mine.sits_out(5, C)


def test_what_members_say_of_each_other_in_the_vote_leaves_no_mark_where_nobody_is_late() -> None:
    mine, votes = conduct(), VotesSeen(have_begun=True)
    for number in range(1, MARKS_MAX + 1):
        for accuser in (A, B, D):
            mine.put_out(number, accuser, C, ORDER, votes)
        mine.put_out(number, C, A, ORDER, votes, is_answer=True)
    assert not any(mine.sits_out(MARKS_MAX + 1, peer) for peer in ORDER)
    mine.put_out(1, ME, D, ORDER, votes)
    mine.put_out(1, A, ME, ORDER, votes)
    assert mine.is_avoided(2, D)
    assert mine.is_avoided(2, A), "it is known here that the line of the two is bad"


def test_two_that_have_trouble_with_each_other_are_no_neighbours() -> None:
    mine = conduct()
    mine.put_out(3, A, ME, ORDER)
    mine.put_out(3, ME, D, ORDER)
    assert mine.is_avoided(4, A)
    assert mine.is_avoided(4, D)
    assert not mine.is_avoided(4, B)
    assert not mine.is_avoided(4 + MEMORY_ROUNDS, A)


def test_a_neighbour_that_died_is_a_neighbour_again_when_it_is_back() -> None:
    mine = conduct()
    mine.put_out(3, ME, D, ORDER)
    mine.put_out(3, ME, A, ORDER, is_gone=True)
    assert not mine.is_avoided(4, A), "its connection was gone already"
    mine.disconnected(D)
    assert not mine.is_avoided(4, D)
    mine.put_out(4, ME, D, ORDER)
    assert mine.is_avoided(5, D), "its new connection has trouble too"


def test_an_accuser_is_avoided_although_it_connects_anew() -> None:
    """Otherwise one that accuses its neighbours without a reason could do so in each round."""
    mine = conduct()
    mine.put_out(3, A, ME, ORDER)
    mine.disconnected(A)
    assert mine.is_avoided(4, A)


def test_small_rings_and_self_accusations_tell_nothing() -> None:
    mine = conduct()
    for number in range(1, 9):
        mine.put_out(number, A, B, ORDER[: MEMBERS_MIN - 1])
        mine.put_out(number, C, C, ORDER)
    assert not any(mine.sits_out(9, peer) for peer in ORDER)
    assert not mine.is_avoided(9, A)


def test_nobody_sits_out_for_longer_than_the_limit() -> None:
    mine, now = conduct(), 1
    for _ in range(20):
        mine.put_out(now, B, C, ORDER)
        mine.put_out(now, D, C, ORDER)
        assert not mine.sits_out(now + SITS_OUT_ROUNDS_MAX + 1, C)
        now += SITS_OUT_ROUNDS_MAX + 1


def test_so_many_peers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_conduct, "PEERS_MAX", 2)
    mine = conduct()
    for accused in (A, C, ME):
        mine.put_out(1, B, accused, (A, B, C, ME), votes=LATE)
    assert len(mine._records) == 2


def test_one_that_alone_finds_a_neighbour_slow_is_no_neighbour_of_it() -> None:
    mine = conduct()
    mine.put_out(1, A, ME, ORDER, is_slow=True)
    mine.put_out(1, ME, D, ORDER, is_slow=True)
    assert [peer for peer in ORDER if mine.is_avoided(2, peer)] == [A, D]
    assert not any(mine.is_avoided(1 + MEMORY_ROUNDS, peer) for peer in ORDER)
    # Each of the two lines is slow to another neighbour as well: then the finding is right.
    mine.put_out(2, D, ME, ORDER, is_slow=True)
    mine.put_out(2, C, D, ORDER, is_slow=True)
    assert not any(mine.is_avoided(3, peer) for peer in ORDER)


def test_a_slow_line_is_no_fault() -> None:
    mine = conduct()
    for number in range(1, 2 * MARKS_MAX):
        for accuser in (A, C):
            mine.put_out(number, accuser, B, ORDER, is_slow=True)
        assert not mine.sits_out(number + 1, B)
    assert not any(mine.sits_out(number, peer) for number in range(20) for peer in (A, C))


def test_a_member_cannot_know_that_the_line_between_two_others_is_slow() -> None:
    mine = conduct()
    for number in range(1, WRONG_MAX + 1):
        mine.put_out(number, A, C, ORDER, is_slow=True)
    assert mine.sits_out(WRONG_MAX + 1, A)
    assert not mine.sits_out(WRONG_MAX + 1, C)


def test_one_wrong_accusation_is_enough_of_a_member_that_sat_out_lately() -> None:
    mine = conduct()
    for number in range(1, WRONG_MAX + 1):
        mine.put_out(number, A, C, ORDER)
    back = WRONG_MAX + SITS_OUT_ROUNDS + 1
    assert not mine.sits_out(back, A)
    mine.put_out(back, A, C, ORDER)
    assert all(mine.sits_out(back + ahead, A) for ahead in range(1, 2 * SITS_OUT_ROUNDS + 1))


def test_a_member_that_alone_puts_out_all_others_sits_out_and_is_not_believed() -> None:
    mine = conduct()
    for number in range(1, MARKS_MAX):
        mine.put_out(number, A, B, ORDER)
    mine.put_out(MARKS_MAX, A, B, (A, B), alone_of=len(ORDER))
    assert mine.sits_out(MARKS_MAX + SITS_OUT_ROUNDS, A)
    mine.put_out(MARKS_MAX, C, B, ORDER)
    assert not mine.sits_out(MARKS_MAX + 1, B), "one mark is left, and it is of C"


def test_the_last_that_is_left_of_its_ring_does_not_leave_itself_out() -> None:
    mine = conduct()
    mine.put_out(1, ME, D, (ME, D), alone_of=len(ORDER))
    assert not mine.sits_out(2, ME)


@pytest.mark.parametrize("lone", [ME, A])
def test_the_accusations_of_a_member_that_was_cut_off_make_no_other_one_sit_out(
    lone: PeerId,
) -> None:
    """B stood still once before. Then a line breaks, and its member takes all others for dead."""
    mine = conduct()
    mine.put_out(1, C, B, ORDER)
    order = [lone, B, *(peer for peer in ORDER if peer not in (lone, B))]
    mine.put_out(3, lone, B, order)
    order.remove(B)
    while len(order) > 1:
        alone_of = len(ORDER) if len(order) == 2 else 0
        mine.put_out(3, lone, order[-1], order, alone_of=alone_of)
        order.pop()
    for peer in ORDER:
        assert mine.sits_out(4, peer) == (peer == lone != ME)
        assert not mine.is_avoided(4, peer)
    mine.put_out(4, D, B, ORDER, votes=LATE)
    assert mine.sits_out(5, B), "the mark of C is still there"


@pytest.mark.parametrize("lone", [ME, A])
def test_nobody_is_suspected_by_the_word_of_a_member_that_was_cut_off(lone: PeerId) -> None:
    """It takes the silence of its own line for sums that the others keep. C kept some before."""
    mine = conduct()
    mine.put_out(1, B, C, ORDER, lost_seconds=9.0)
    order = [lone, *(peer for peer in ORDER if peer != lone)]
    while len(order) > 1:
        alone_of = len(ORDER) if len(order) == 2 else 0
        mine.put_out(3, lone, order[1], order, lost_seconds=9.0, alone_of=alone_of)
        del order[1]
    assert mine.suspected(MEMORY_ROUNDS + 1) == {C}
    assert mine.suspected(MEMORY_ROUNDS + 2) == frozenset()


def test_both_marks_of_one_round_go_with_the_word_of_a_member_that_was_cut_off() -> None:
    """Its first ring was replaced, and it accused B in both, which C had put out before."""
    mine = conduct()
    mine.put_out(1, C, B, ORDER)
    mine.put_out(3, A, B, ORDER)
    mine.put_out(3, A, B, ORDER)
    assert mine.sits_out(4, B)
    mine.put_out(3, A, ME, (A, ME), alone_of=len(ORDER))
    assert not mine.sits_out(4, B)
    mine.put_out(4, D, B, ORDER, votes=LATE)
    assert mine.sits_out(5, B), "the mark of C is still there"
    assert not mine.sits_out(4 + SITS_OUT_ROUNDS + 1, B), "it is the first time"


def test_the_word_of_a_member_that_was_cut_off_makes_no_majority() -> None:
    mine = conduct()
    for accuser in (B, D):
        mine.put_out(1, accuser, C, ORDER)
    now = 2 + SITS_OUT_ROUNDS
    mine.put_out(now, A, C, before(C, A))
    assert mine.sits_out(now + 1, C)
    mine.put_out(now, A, ME, (A, ME), alone_of=len(ORDER))
    assert not mine.sits_out(now + 1, C)
    mine.put_out(now + 1, D, C, ORDER)
    assert not mine.sits_out(now + 2, C), "B and D have found it so before, and nobody else"


def test_the_word_of_a_member_that_was_cut_off_hides_no_wrong_of_another_one() -> None:
    """B accused one that is not its neighbour. It sat out on A's word, which counts no more."""
    mine = conduct()
    mine.put_out(1, B, D, ORDER)
    mine.put_out(2, C, B, ORDER)
    mine.put_out(3, A, B, ORDER)
    assert mine.sits_out(4, B)
    mine.put_out(3, A, ME, (A, ME), alone_of=len(ORDER))
    assert not mine.sits_out(4, B)
    mine.put_out(4, B, D, ORDER)
    assert mine.sits_out(5, B), "it is the second time"


def test_all_rings_of_a_round_in_which_a_member_was_cut_off_count_no_more() -> None:
    mine = conduct()
    for _ring in range(2):
        mine.put_out(3, A, C, before(C, A), lost_seconds=9.0)
    assert mine.suspected(4) == {C}
    for _ring in range(MARKS_MAX):
        mine.put_out(3, A, ME, (A, ME), alone_of=len(ORDER))
    assert mine.suspected(4) == frozenset()
    mine = conduct()
    mine.put_out(1, C, B, ORDER)
    mine.put_out(3, A, B, ORDER)
    for _ring in range(MARKS_MAX):
        mine.put_out(3, A, ME, (A, ME), alone_of=len(ORDER))
    mine.put_out(4, C, B, ORDER)
    assert not mine.sits_out(5, B), "C put it out twice, and no other one"


def test_a_round_that_was_taken_back_is_not_the_one_that_takes_its_number() -> None:
    mine = conduct()
    mine.put_out(3, C, B, ORDER)
    mine.put_out(3, A, B, ORDER)
    mine.put_out(10, C, A, ORDER)
    mine.put_out(10, D, B, ORDER)
    mine.rounds_back(1)
    mine.put_out(3, A, ME, (A, ME), alone_of=len(ORDER))
    assert mine.sits_out(4, B), "A was cut off in another round"
    mine = conduct()
    mine.put_out(10, A, C, ORDER)
    mine.rounds_back(8)
    mine.put_out(2 + MEMORY_ROUNDS, A, C, ORDER)
    assert not mine.sits_out(3 + MEMORY_ROUNDS, A), "the first time is long ago"


def test_a_further_time_may_be_as_short_as_the_first_one() -> None:
    sits_out = SitOut()
    for now in (1, 10):
        sits_out.begin(now)
    assert sits_out.until == 10 + 2 * SITS_OUT_ROUNDS
    now = sits_out.until + 1
    sits_out.begin(now, is_longer=False)
    assert sits_out.until == now + SITS_OUT_ROUNDS
    sits_out.begin(now)
    assert sits_out.until == now + 4 * SITS_OUT_ROUNDS, "which makes the next one no shorter"


def test_only_what_a_member_says_of_the_round_in_which_it_is_alone_counts_no_more() -> None:
    mine = conduct()
    mine.put_out(2, ME, D, ORDER)
    mine.put_out(3, ME, A, (ME, A), alone_of=MEMBERS_MIN)
    assert mine.is_avoided(4, D), "that was a round before"
    mine.put_out(4, ME, A, ORDER)
    mine.put_out(4, B, ME, (B, ME), alone_of=MEMBERS_MIN)
    assert mine.is_avoided(5, A), "and that was no word of B"
    assert mine.is_avoided(4 + MEMORY_ROUNDS, A)
    assert mine.sits_out(5, B)


@pytest.mark.parametrize(("num_members", "is_enough"), [(6, True), (7, False)])
def test_one_mark_is_enough_once_more_than_half_of_the_others_had_found_it_so(
    *, num_members: int, is_enough: bool
) -> None:
    mine, now = conduct(), 1
    for accusers in ((B, D), (A,)):
        for accuser in accusers:
            mine.put_out(now, accuser, C, before(C, accuser), num_members=num_members)
        assert mine.sits_out(now + 1, C)
        now += 2 * SITS_OUT_ROUNDS + 1
        assert not mine.sits_out(now, C)
    mine.put_out(now, B, C, ORDER, num_members=num_members)
    assert mine.sits_out(now + 1, C) == is_enough


def test_who_had_a_part_in_it_is_forgotten_when_a_peer_did_not_sit_out_for_long() -> None:
    """Else what it did in all its life would make it safe from the marks of ever more members."""
    mine, now = conduct(), 1
    for accusers in ((B, D), (A, ELSEWHERE[0])):
        for accuser in accusers:
            order = before(C, accuser, [*ORDER, *ELSEWHERE])
            mine.put_out(now, accuser, C, order, num_members=12)
        assert mine.sits_out(now + 1, C)
        now += SITS_OUT_ROUNDS + 1
        assert not mine.sits_out(now, C)
        back, now = now, now + FORGET_ROUNDS
    mine.put_out(back, B, C, ORDER, num_members=12)
    assert mine.sits_out(back + 1, C)


def test_of_three_members_one_may_be_left_alone() -> None:
    """Two nodes of one machine that wakes up hear that the third one has put them out."""
    mine = conduct()
    mine.put_out(1, A, ME, (A, ME), alone_of=MEMBERS_MIN - 1)
    assert not mine.sits_out(2, A)


def test_an_organiser_that_leaves_out_others_again_and_again_is_unfair_for_a_while() -> None:
    mine = conduct()
    for _ in range(3):  # rosters of one round
        mine.left_out(1, A, [B])
    assert UNFAIR_MAX == 2
    assert mine.unfair(2) == frozenset()
    mine.left_out(1 + MEMORY_ROUNDS, A, [B])
    assert mine.unfair(2 + MEMORY_ROUNDS) == frozenset(), "the first one is long ago"
    now = 2 * MEMORY_ROUNDS
    mine.left_out(now, A, [B])
    assert mine.unfair(now + 1) == mine.unfair(now + FORGET_ROUNDS) == {A}
    assert mine.unfair(now + 1 + FORGET_ROUNDS) == frozenset()
    again = now + FORGET_ROUNDS
    mine.left_out(again, A, [B])  # one more is enough while it is remembered
    assert mine.unfair(again + FORGET_ROUNDS) == {A}
    assert not mine.sits_out(again, A)
    assert mine.doubted(again) == frozenset()


def test_a_peer_that_several_organisers_left_out_is_wronged_for_a_while() -> None:
    mine = conduct()
    mine.left_out(1, A, [B])
    mine.left_out(1, C, [B])  # another roster of the same round
    assert mine.wronged(2) == frozenset()
    mine.left_out(2, C, [B, D])
    assert mine.wronged(3) == mine.wronged(2 + FORGET_ROUNDS) == {B}
    assert mine.unfair(3) == {C}
    assert mine.wronged(3 + FORGET_ROUNDS) == frozenset()
    again = 2 + FORGET_ROUNDS
    mine.left_out(again, A, [B])  # one more is enough while it is remembered
    assert mine.wronged(again + FORGET_ROUNDS) == {B}


def test_an_organiser_that_replaces_its_rings_in_a_second_round_sits_out() -> None:
    mine = conduct()
    mine.unsettled(1, B)
    mine.unsettled(1 + MEMORY_ROUNDS, B)
    assert not mine.sits_out(2 + MEMORY_ROUNDS, B), "the first time was long ago"
    mine.unsettled(2 + MEMORY_ROUNDS, B)
    assert mine.sits_out(3 + MEMORY_ROUNDS, B)
    assert not mine.sits_out(3 + MEMORY_ROUNDS + SITS_OUT_ROUNDS, B)


def troubled(mine: RingConduct, first: int) -> None:
    """What a peer hears of others in three rounds with everything that is remembered of them."""
    mine.put_out(first, A, ME, ORDER)
    mine.put_out(first, B, C, ORDER, lost_seconds=9.0)
    mine.put_out(first, C, D, ORDER, is_slow=True)
    mine.put_out(first + 1, D, B, ORDER)
    mine.put_out(first + 1, ME, D, ORDER)
    mine.contested(first + 1, C, D, len(ORDER))
    mine.unsettled(first + 1, D)
    for number in (first, first + 1):
        mine.left_out(number, A, [C])
    mine.left_out(first + 2, B, [D])


def seen(mine: RingConduct, number: int) -> tuple[object, ...]:
    """What a peer makes of all that in a round."""
    return (
        *(kind(number) for kind in (mine.unfair, mine.wronged, mine.suspected, mine.doubted)),
        *([kind(number, peer) for peer in ORDER] for kind in (mine.sits_out, mine.is_avoided)),
    )


def test_rounds_that_are_taken_back_make_nothing_last_longer() -> None:
    """Otherwise a peer that sat out would do so until the chain is as long as it was."""
    back, later = 400, 4 + MEMORY_ROUNDS + FORGET_ROUNDS
    mine, other = conduct(), conduct()
    troubled(mine, back + 2)
    mine.rounds_back(back)
    troubled(other, 2)
    before = [seen(mine, number) for number in range(4, later)]
    assert before == [seen(other, number) for number in range(4, later)]
    assert before[0] != before[-1] == seen(conduct(), later), "all of it ends"
    troubled(mine, 6)
    troubled(other, 6)
    assert all(seen(mine, number) == seen(other, number) for number in range(8, 2 * later))
