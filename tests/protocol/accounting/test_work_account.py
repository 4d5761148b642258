"""The rules of the work account, one by one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.accounting.account_state import AccountState
from gossamer.protocol.accounting.spans import merged, without
from gossamer.protocol.accounting.work_account import OFFERS_MAX, WorkAccount
from gossamer.protocol.accounting.work_records import (
    LATE,
    OUT_OF_RANGE,
    Offer,
    Offered,
    Settlement,
    apportioned,
    mask_of,
    offered_by,
)
from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.rounds.roster import make_roster
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import Span
from tests.support.balance import is_balanced
from tests.support.builders import HEAD, RING_RULES, peers, ready, sealed

NUM_CHUNKS = 4
ALL = 0b1111
STALE_ROUNDS = 3

H0, H1, H2, H3 = (digest_of(bytes([number])) for number in range(4))


def account() -> WorkAccount:
    return WorkAccount(NUM_CHUNKS, STALE_ROUNDS)


def span(start: int, stop: int) -> Span:
    return Span(7, start, stop)


def offered(one: WorkAccount, head: bytes, number: int, life: int = 0, sequence: int = 0) -> Offer:
    offer = one.offer(head, number, life=life, sequence=sequence)
    assert offer is not None
    return offer


def with_offer(tokens: int) -> WorkAccount:
    """An account that has offered its first work, which was trained on `H0`, to round 1."""
    one = account()
    one.trained(H0, 1, tokens, [])
    offered(one, H0, 1)
    return one


def fates(one: WorkAccount) -> tuple[int, int, int, int, int]:
    """Returns the tokens that are on time, late, dropped, lost, and carried."""
    assert is_balanced(one)
    state = one.state
    return (
        state.committed_on_time, state.committed_late, one.dropped, state.lost, one.carried,
    )  # fmt: skip


def restarted(one: WorkAccount) -> WorkAccount:
    """A new life that finds the state of the newest event."""
    written = msgspec.msgpack.encode(one.state)
    new = WorkAccount(NUM_CHUNKS, STALE_ROUNDS, msgspec.msgpack.decode(written, type=AccountState))
    new.restarted()
    return new


def test_what_its_own_round_takes_is_on_time() -> None:
    one = account()
    one.trained(H0, 1, 100, [span(0, 100)])
    assert offered(one, H0, 1).spans == (span(0, 100),)
    settled = one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    assert (settled.on_time, settled.late, settled.taken, settled.zeroed) == (100, 0, ALL, 0)
    assert fates(one) == (100, 0, 0, 0, 0)
    assert one.state.spans == []
    assert one.offer(H1, 2) is None


def test_what_missed_its_round_counts_late_and_the_new_work_beside_it_on_time() -> None:
    one = with_offer(100)
    one.committed_by(H1, H0, 0, 0, counts_spans=False)  # without me
    one.trained(H1, 2, 300, [])
    assert offered(one, H1, 2).tokens == 400
    settled = one.committed_by(H2, H1, 400, ALL, counts_spans=True)
    assert (settled.on_time, settled.late) == (300, 100)


def test_what_is_not_taken_stays_carried_in_proportion_to_the_chunks() -> None:
    one = account()
    one.trained(H0, 1, 101, [span(0, 101)])
    offered(one, H0, 1)
    settled = one.committed_by(H1, H0, 26, 0b0001, counts_spans=False)
    assert settled.taken == 0b0001
    assert fates(one) == (26, 0, 0, 0, 75)
    assert one.state.spans == [span(0, 101)], "too little was taken for its data to count"
    assert offered(one, H1, 2).spans == (span(0, 101),)
    one.committed_by(H2, H1, 75, ALL, counts_spans=True)
    assert fates(one) == (26, 75, 0, 0, 0)


def test_a_ring_that_commits_unheard_of_takes_only_what_it_was_given() -> None:
    one = account()
    one.trained(H0, 1, 100, [span(0, 100)])
    first = offered(one, H0, 1)
    one.trained(H0, 1, 50, [span(100, 150)])
    settled = one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    assert settled.offer == first.number
    assert fates(one) == (100, 0, 0, 0, 50)
    assert one.state.spans == [span(100, 150)]
    assert one.state.since == [1] * NUM_CHUNKS, "what is there now was trained in round 1"


@pytest.mark.parametrize("further", [0, 1])
def test_of_the_offers_of_two_lives_the_ready_in_the_ring_tells_which_was_taken(
    further: int,
) -> None:
    """A half of 101 tokens is 51, as a half of 102 is."""
    for life in (1, 2):
        one = account()
        one.trained(H0, 1, 101, [])
        numbers = {1: offered(one, H0, 1, life=1).number}
        one.saved()
        one = restarted(one)
        if further:
            one.trained(H0, 1, further, [])
        numbers[2] = offered(one, H0, 1, life=2).number
        told = Offered(life, 101 if life == 1 else 101 + further)
        settled = one.committed_by(H1, H0, 51, 0b0011, counts_spans=True, offered=told)
        assert settled.offer == numbers[life]


@pytest.mark.parametrize("sequence", [7, 9])
def test_of_two_offers_with_as_many_tokens_the_ready_in_the_ring_tells_which_was_taken(
    sequence: int,
) -> None:
    """A ring took the first one in some chunks, unheard of, before a value of the work went out of
    range. The work that was done in its place is not in the chain."""
    one = account()
    numbers = {}
    for each in (7, 9):
        one.trained(H0, 1, 100, [])
        numbers[each] = offered(one, H0, 1, life=1, sequence=each).number
        if each == 7:
            one.drop(OUT_OF_RANGE)
    one.saved()
    one = restarted(one)
    told = Offered(1, 100, sequence)
    settled = one.committed_by(H1, H0, 100, ALL, counts_spans=True, offered=told)
    assert settled.offer == numbers[sequence]
    assert (settled.taken, settled.zeroed) == (0 if sequence == 7 else ALL, 0)
    assert fates(one) == ((100, 0, 0, 0, 100) if sequence == 7 else (100, 0, 100, 0, 0))


def test_an_account_without_the_numbers_of_its_readys_is_read() -> None:
    """So wrote earlier versions: of two such offers a header then takes the newest."""
    one = account()
    one.trained(H0, 1, 100, [])
    numbers = [offered(one, H0, 1, life=1).number for _ in range(2)]
    written = msgspec.to_builtins(one.state, builtin_types=(bytes,))
    for offer in written["offers"]:
        del offer["sequence"]
    one.state = msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=AccountState)
    told = Offered(1, 100, 7)
    settled = one.committed_by(H1, H0, 100, ALL, counts_spans=True, offered=told)
    assert settled.offer == numbers[1]


def test_of_several_offers_on_a_head_the_header_tells_which_it_took() -> None:
    one = account()
    one.trained(H0, 1, 100, [])
    first = offered(one, H0, 1)
    one.trained(H0, 1, 50, [])
    second = offered(one, H0, 1)
    assert one.committed_by(H1, H0, 50, 0b0011, counts_spans=True).offer == first.number
    assert fates(one) == (50, 0, 0, 0, 100)
    one.abandoned(H1, H0, 50, 2)
    assert one.committed_by(H2, H0, 75, 0b0011, counts_spans=True).offer == second.number
    assert fates(one) == (75, 0, 0, 0, 75)


def test_a_header_on_another_head_is_about_no_offer_of_this_one() -> None:
    one = with_offer(100)
    settled = one.committed_by(H2, H1, 40, ALL, counts_spans=True)
    assert (settled.offer, settled.taken) == (None, 0)
    assert fates(one) == (0, 40, 0, 0, 100), "it was an earlier life's"
    assert one.state.trained == 140
    one.abandoned(H2, H1, 40, 2)
    assert fates(one) == (0, 0, 0, 40, 100)


def test_a_header_may_have_more_than_is_known_to_have_been_offered() -> None:
    one = with_offer(100)
    one.drop("stale")
    one.state.lots[1].dropped -= 40  # as if its records were older
    one.state.dropped["stale"] -= 40
    one.state.trained -= 40
    one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    assert fates(one) == (60, 40, 0, 0, 0)
    assert one.state.trained == 100
    one.abandoned(H1, H0, 100, 2)
    assert fates(one) == (0, 0, 60, 40, 0)


def test_an_offer_that_went_into_no_ring_is_forgotten() -> None:
    one = account()
    one.trained(H0, 1, 100, [])
    one.withdraw(offered(one, H0, 1).number)
    assert one.state.offers == []
    assert one.carried == 100


def test_a_record_tells_what_each_member_of_its_ring_offered() -> None:
    *members, stranger = peers(4)
    envelopes = {
        member: sealed(member, ready(tokens=1000 + number, sequence=10 + number, incarnation=2))
        for number, member in enumerate(members)
    }
    made = make_roster(HEAD, 5, 0, envelopes, RING_RULES)
    record = Commit(b"", sealed(members[0], made), ())
    found = [offered_by(member, record) for member in members]
    assert found == [Offered(2, 1000 + number, 10 + number) for number in range(3)]
    assert offered_by(stranger, record) is None


def test_work_of_an_abandoned_round_is_carried_again_and_then_late() -> None:
    one = account()
    one.trained(H0, 1, 100, [span(0, 100)])
    offer = offered(one, H0, 1)
    one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    assert one.offer_behind(H1) == offer
    reclaim = one.abandoned(H1, H0, 100, 2)
    assert reclaim.chunks == ALL
    assert (reclaim.on_time, reclaim.late, reclaim.carried) == (100, 0, 100)
    assert fates(one) == (0, 0, 0, 0, 100)
    assert one.state.spans == [span(0, 100)]
    offered(one, H2, 2)
    one.committed_by(H3, H2, 100, ALL, counts_spans=True)
    assert fates(one) == (0, 100, 0, 0, 0)


def test_a_head_that_comes_back_takes_the_same_again() -> None:
    one = with_offer(100)
    one.committed_by(H1, H0, 50, 0b0110, counts_spans=True)
    one.abandoned(H1, H0, 50, 2)
    settled = one.committed_by(H1, H0, 50, 0b0110, counts_spans=True)
    assert (settled.on_time, settled.taken) == (50, 0b0110)
    assert fates(one) == (50, 0, 0, 0, 50)


def test_a_head_that_comes_back_takes_the_offer_that_it_took_before() -> None:
    """A later offer on the same head has as many tokens."""
    one = account()
    one.trained(H0, 1, 100, [])
    first = offered(one, H0, 1)
    one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    one.trained(H1, 2, 100, [])
    second = offered(one, H1, 2)
    one.abandoned(H1, H0, 100, 1)
    one.state.drop_excess(100)
    offered(one, H0, 1)

    assert one.committed_by(H1, H0, 100, ALL, counts_spans=True).offer == first.number
    assert one.committed_by(H2, H1, 100, ALL, counts_spans=True).offer == second.number
    assert fates(one) == (200, 0, 0, 0, 0)
    assert one.state.trained == 200


def test_of_an_abandoned_round_what_is_stale_is_dropped() -> None:
    one = with_offer(100)
    one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    reclaim = one.abandoned(H1, H0, 100, 1 + STALE_ROUNDS + 1)
    assert (reclaim.chunks, reclaim.carried) == (0, 0)
    assert fates(one) == (0, 0, 100, 0, 0)
    assert one.state.dropped == {"stale": 100}


def test_without_its_vector_the_work_of_an_abandoned_round_is_lost() -> None:
    one = with_offer(100)
    one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    reclaim = one.abandoned(H1, H0, 100, 2, has_vector=False)
    assert reclaim.chunks == 0
    assert fates(one) == (0, 0, 0, 100, 0)
    # It was in that round, so if this is in the chain after all the work was not lost.
    settled = one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    assert settled.taken == 0, "it is in no `pending`"
    assert fates(one) == (100, 0, 0, 0, 0)


def test_work_does_not_become_younger_on_a_branch_with_fewer_rounds() -> None:
    one = account()
    for number, (parent, head) in enumerate([(H0, H1), (H1, H2), (H2, H3)], start=10):
        one.trained(parent, number, 100, [])
        offered(one, parent, number)
        one.committed_by(head, parent, 100, ALL, counts_spans=True)
    one.branch_left(12, 5)
    for parent, head in [(H2, H3), (H1, H2), (H0, H1)]:
        assert one.abandoned(head, parent, 100, 5).carried == 100
    assert set(one.state.since) == {2}, "three rounds old, as round 10 was before round 13"
    assert one.drop_stale(5) == (0, 0)
    assert one.drop_stale(6) == (ALL, 300)


def test_a_branch_with_more_rounds_makes_work_older() -> None:
    one = account()
    one.trained(H0, 1, 100, [])
    one.branch_left(1, 1 + STALE_ROUNDS + 1)
    assert one.drop_stale(1 + STALE_ROUNDS + 1) == (ALL, 100)


def test_work_that_missed_too_many_rounds_is_dropped() -> None:
    one = account()
    one.trained(H0, 1, 100, [span(0, 100)])
    assert one.drop_stale(1 + STALE_ROUNDS) == (0, 0)
    assert one.drop_stale(1 + STALE_ROUNDS + 1) == (ALL, 100)
    assert fates(one) == (0, 0, 100, 0, 0)
    assert one.state.spans == []


def test_a_chunk_that_is_never_taken_becomes_stale_alone() -> None:
    one = account()
    heads = [digest_of(b"%d" % number) for number in range(8)]
    for number in range(1, 6):
        one.trained(heads[number - 1], number, 1000, [])
        tokens = offered(one, heads[number - 1], number).tokens
        taken = -(-tokens * 3 // 4)
        one.committed_by(heads[number], heads[number - 1], taken, 0b0111, counts_spans=True)
        carried = one.carried
        chunks, dropped = one.drop_stale(number + 1)
        if number + 1 <= 1 + STALE_ROUNDS:
            assert (chunks, dropped) == (0, 0)
        elif number + 1 == 1 + STALE_ROUNDS + 1:
            assert (chunks, dropped) == (0b1000, carried), "only that chunk had anything left"
        assert is_balanced(one)


def test_a_stale_chunk_takes_its_share_of_the_tokens_with_it() -> None:
    one = account()
    one.trained(H0, 1, 400, [span(0, 400)])
    offered(one, H0, 1)
    one.committed_by(H1, H0, 300, 0b0111, counts_spans=True)
    one.trained(H1, 2, 300, [])
    assert one.state.since == [2, 2, 2, 1]
    assert one.drop_stale(1 + STALE_ROUNDS + 1) == (0b1000, 100)
    assert fates(one) == (300, 0, 100, 0, 300)
    assert one.state.since == [2, 2, 2, 0]


def test_shared_steps_are_offered_once_they_are_done_with_the_data_that_was_told_before() -> None:
    """The `Ready` promised a round's steps and named the data of the round before it."""
    one = account()
    one.trained(H0, 1, 400, [span(0, 400)])
    assert one.offer(H0, 1, ()) is not None
    one.committed_by(H1, H0, 400, ALL, counts_spans=True)
    assert one.state.spans == [span(0, 400)]  # in no ledger yet

    told = tuple(one.state.spans)
    one.trained(H1, 2, 400, [span(400, 800)])
    assert one.offer(H1, 2, told) is not None
    one.committed_by(H2, H1, 300, 0b1011, counts_spans=True)  # one step went on without me
    assert one.state.spans == [span(400, 800)]
    assert one.has_work
    assert one.drop(LATE, one.state.spans) == 100
    assert not one.has_work
    assert one.state.spans == [span(400, 800)]
    assert fates(one) == (700, 0, 100, 0, 0)


def test_the_data_of_skipped_steps_are_named_with_the_next_work() -> None:
    """The ledger counts nothing behind a gap."""
    one = account()
    one.trained(H0, 1, 0, [span(0, 100)])
    assert fates(one) == (0, 0, 0, 0, 0)
    assert one.offer(H0, 1) is None
    one.trained(H1, 2, 100, [span(100, 200)])
    assert offered(one, H1, 2).spans == (span(0, 200),)


def test_a_round_that_took_what_was_dropped_took_it_all_the_same() -> None:
    one = with_offer(100)
    assert one.drop("nonfinite") == 100
    one.trained(H0, 1, 70, [])
    settled = one.committed_by(H1, H0, 100, ALL, counts_spans=True)
    assert (settled.taken, settled.zeroed) == (0, 0), "what is in `pending` came later"
    assert fates(one) == (100, 0, 0, 0, 70)


def test_a_trainer_that_dies_loses_the_steps_it_did() -> None:
    one = account()
    one.stepped(60)
    one.stepped(40)
    assert fates(one) == (0, 0, 0, 0, 0)
    one.trained(H0, 1, 0, [])
    assert one.state.trained == 100
    assert fates(one) == (0, 0, 0, 100, 0)
    one.stepped(50)
    one.trained(H0, 1, 50, [])
    assert fates(one) == (0, 0, 0, 100, 50)


def test_the_steps_of_a_round_that_was_spoilt_are_trained_and_dropped() -> None:
    one = account()
    one.stepped(60)
    one.spoilt(50, OUT_OF_RANGE)
    assert one.state.trained == 60
    assert fates(one) == (0, 0, 50, 10, 0)
    one.trained(H0, 1, 0, [])
    assert fates(one) == (0, 0, 50, 10, 0), "nothing of it is under way any more"


def test_a_restart_loses_what_was_not_saved() -> None:
    one = account()
    one.trained(H0, 1, 100, [])
    assert not one.state.is_saved
    one.saved()
    assert one.state.is_saved
    one.trained(H0, 1, 50, [])
    one.stepped(7)
    new = restarted(one)
    assert new.state.trained == 157
    assert fates(new) == (0, 0, 0, 57, 100)


def test_of_an_offer_of_an_earlier_life_as_much_is_lost_as_had_counted_late() -> None:
    one = with_offer(100)
    one.committed_by(H2, H1, 40, ALL, counts_spans=True)
    reclaim = one.abandoned(H2, H1, 40, 2)
    assert (reclaim.on_time, reclaim.late, reclaim.carried) == (0, 40, 0)


def test_a_round_that_had_the_work_of_a_killed_process_had_it() -> None:
    one = account()
    one.trained(H0, 1, 100, [])
    one.committed_by(H1, H0, 0, 0, counts_spans=False)
    one.saved()
    one.trained(H1, 2, 300, [])
    offered(one, H1, 2)
    new = restarted(one)
    assert fates(new) == (0, 0, 0, 300, 100)
    settled = new.committed_by(H2, H1, 200, 0b0011, counts_spans=True)
    assert settled.taken == 0b0011
    assert (settled.on_time, settled.late) == (150, 50)
    assert fates(new) == (150, 50, 0, 150, 50)


def test_a_round_that_had_work_without_tokens_of_a_killed_process_had_it() -> None:
    one = with_offer(10)
    one.saved()
    one.trained(H0, 1, 10, [])
    offered(one, H0, 1)
    one.state.drop_excess(10)  # the tokens of the work on disk, which stays in `pending`
    one = restarted(one)

    settled = one.committed_by(H1, H0, 20, ALL, counts_spans=True)

    assert (settled.taken, settled.zeroed) == (ALL, 0)
    assert not one.has_work
    assert fates(one) == (20, 0, 0, 0, 0)


def test_work_of_another_offer_stays_where_all_of_one_was_dropped() -> None:
    one = with_offer(10)
    one.state.drop_excess(5)
    one.drop(LATE)
    one.trained(H0, 1, 7, [])

    settled = one.committed_by(H1, H0, 10, ALL, counts_spans=True)

    assert (settled.taken, settled.zeroed) == (0, 0)
    assert fates(one) == (10, 0, 0, 0, 7)


def test_work_without_tokens_that_a_killed_process_lost_is_not_taken() -> None:
    one = with_offer(10)
    one.trained(H0, 1, 10, [])
    one.state.drop_excess(10)  # the tokens of what was offered, which stays in `pending`
    one = restarted(one)

    settled = one.committed_by(H1, H0, 10, ALL, counts_spans=True)

    assert (settled.taken, settled.zeroed) == (0, 0), "it is in no `pending`"
    assert fates(one) == (10, 0, 0, 10, 0)


def test_work_without_tokens_stays_where_an_older_offer_is_taken() -> None:
    one = with_offer(10)
    one.trained(H0, 2, 10, [])
    one.state.drop_excess(0)

    settled = one.committed_by(H1, H0, 10, ALL, counts_spans=True)

    assert (settled.taken, settled.zeroed) == (ALL, 0)
    assert one.state.since == [2] * NUM_CHUNKS
    assert not one.state.is_saved
    assert fates(one) == (10, 0, 10, 0, 0)


def test_what_was_saved_together_with_work_that_a_round_took_is_not_on_disk_any_more() -> None:
    one = with_offer(100)
    one.trained(H0, 1, 50, [])
    one.saved()
    one.committed_by(H1, H0, 50, 0b0011, counts_spans=True)
    assert not one.state.is_saved

    new = restarted(one)

    assert fates(new) == (50, 0, 0, 25, 75)
    assert new.state.since == [0, 0, 1, 1]


def test_a_chunk_that_had_no_work_when_it_was_saved_has_none_after_a_restart() -> None:
    one = with_offer(100)
    one.committed_by(H1, H0, 50, 0b0011, counts_spans=True)
    one.saved()
    one.abandoned(H1, H0, 50, 2)
    assert not one.state.is_saved

    new = restarted(one)

    assert new.state.since == [0, 0, 1, 1]
    assert fates(new) == (0, 0, 0, 50, 50)
    assert new.state.is_saved
    settled = new.committed_by(H1, H0, 50, 0b0011, counts_spans=True)
    assert settled.taken == 0, "it is in no `pending`"
    assert new.state.is_saved


def test_tokens_left_over_by_rounds_are_lost_with_the_work_that_they_lay_beside() -> None:
    one = with_offer(6)
    one.committed_by(H1, H0, 3, 0b1001, counts_spans=True)
    one.trained(H1, 2, 1, [])
    offered(one, H1, 2)
    one.committed_by(H2, H1, 2, 0b0110, counts_spans=True)
    # The rounds have the first work in all chunks, and not all of its tokens.
    assert one.carried == 2

    new = restarted(one)

    assert not new.has_work
    assert fates(new) == (3, 2, 0, 2, 0)


def test_no_tokens_stay_where_no_work_is_left() -> None:
    one = with_offer(5)
    one.committed_by(H1, H0, 2, 0b0001, counts_spans=True)
    new = restarted(one)
    assert fates(new) == (2, 0, 0, 3, 0)
    new.abandoned(H1, H0, 2, 1)
    assert fates(new) == (0, 0, 0, 3, 2)

    new.committed_by(H1, H0, 2, 0b0001, counts_spans=True)

    assert not new.has_work
    assert fates(new) == (2, 0, 0, 3, 0)


def test_a_killed_process_that_did_not_write_down_its_offer() -> None:
    one = account()
    one.state.head = H0
    one.trained(H0, 1, 100, [])
    one.saved()
    new = restarted(one)  # it had offered 400 by then
    new.trained(H0, 1, 30, [])
    settled = new.committed_by(H1, H0, 400, ALL, counts_spans=True)
    assert settled.offer is None, "there is no telling what that was"
    assert is_balanced(new)
    new = restarted(one)
    assert new.committed_by(H1, H0, 100, ALL, counts_spans=True).on_time == 100
    assert fates(new) == (100, 0, 0, 0, 0)


def test_what_a_round_took_had_been_saved_as_much_as_the_rest() -> None:
    one = account()
    one.trained(H0, 1, 100, [])
    one.saved()
    one.trained(H0, 1, 100, [])
    offered(one, H0, 1)
    one.committed_by(H1, H0, 100, 0b0011, counts_spans=True)
    assert fates(restarted(one)) == (100, 0, 0, 50, 50)


def test_the_vector_of_an_offer_after_a_restart() -> None:
    one = account()
    one.state.head = H0
    one.trained(H0, 1, 100, [])
    first = offered(one, H0, 1)
    one.saved()
    one.trained(H0, 1, 50, [])
    second = offered(one, H0, 1)
    assert one.restarted().offers == {second.number: ALL}, "it is what is left of it"
    assert first.void == second.void == b""

    one.trained(H0, 1, 50, [])
    third = offered(one, H0, 1)
    one.trained(H0, 1, 50, [])
    assert one.restarted().offers == {third.number: ALL}, "what came after it is lost"
    assert third.void == b""

    one.trained(H0, 1, 40, [])
    fourth = offered(one, H0, 1)
    one.trained(H0, 1, 20, [])
    offered(one, H0, 1)
    one.committed_by(H1, H0, 80, 0b0011, counts_spans=True)
    assert one.restarted().offers[fourth.number] == 0b1100, "a header took the rest of it"
    assert int.from_bytes(fourth.void) == 0


def test_a_chunk_that_was_taken_after_saving_does_not_come_back() -> None:
    one = account()
    one.trained(H0, 1, 100, [])
    one.saved()
    offered(one, H0, 1)
    one.committed_by(H1, H0, 50, 0b0101, counts_spans=True)
    written = msgspec.msgpack.encode(one.state)
    new = WorkAccount(NUM_CHUNKS, STALE_ROUNDS, msgspec.msgpack.decode(written, type=AccountState))
    assert new.restarted().chunks == 0b1010
    assert fates(new) == (50, 0, 0, 0, 50)


def test_without_the_saved_vector_all_that_was_carried_is_lost() -> None:
    one = account()
    one.trained(H0, 1, 100, [])
    one.saved()
    assert one.restarted(has_saved=False).chunks == 0
    assert fates(one) == (0, 0, 0, 100, 0)
    assert set(one.state.since) == {0}


def test_a_header_whose_chunks_are_not_known_takes_all_that_could_count_twice() -> None:
    one = with_offer(100)
    one.trained(H0, 1, 30, [])
    settled = one.committed_by(H1, H0, 60, None, counts_spans=False)
    assert (settled.taken, settled.zeroed) == (0, ALL)
    assert fates(one) == (60, 0, 70, 0, 0)
    assert one.abandoned(H1, H0, 60, 2).chunks == 0, "there is no vector of it alone"
    assert fates(one) == (0, 0, 70, 60, 0)


def test_what_is_remembered_is_bounded() -> None:
    one = account()
    head = H0
    for number in range(3 * OFFERS_MAX):
        one.trained(head, number + 1, 10, [])
        offered(one, head, number + 1)
        new = digest_of(head)
        if number % 3:
            one.committed_by(new, head, one.carried, ALL, counts_spans=True)
        head = new
    assert len(one.state.offers) == OFFERS_MAX
    assert len(one.state.lots) <= OFFERS_MAX + 2
    assert is_balanced(one)
    for _ in range(100):
        one.trained(head, 1, 10, [])
        one.withdraw(offered(one, head, 1).number)
    assert len(one.state.lots) <= OFFERS_MAX + 2


@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(0, 1000))
def test_parts_are_in_proportion_and_add_up(weights: list[int], per_mille: int) -> None:
    total = sum(weights) * per_mille // 1000
    parts = apportioned(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert 0 <= part <= weight
        assert abs(part * sum(weights) - total * weight) <= sum(weights)


def test_more_than_there_is_cannot_be_apportioned() -> None:
    with pytest.raises(LocalProtocolError):
        apportioned(4, [1, 2])


spans = st.builds(
    lambda shard, start, length: Span(shard, start, start + length),
    st.integers(0, 2),
    st.integers(0, 20),
    st.integers(1, 10),
)


def tokens_of(several: list[Span]) -> set[tuple[int, int]]:
    return {(s.partition, position) for s in several for position in range(s.start, s.stop)}


@given(st.lists(spans, max_size=10), st.lists(spans, max_size=10))
def test_arithmetic_of_spans(several: list[Span], cut: list[Span]) -> None:
    assert tokens_of(merged(several)) == tokens_of(several)
    assert merged(merged(several)) == merged(several)
    assert tokens_of(without(several, cut)) == tokens_of(several) - tokens_of(cut)


def test_mask() -> None:
    assert mask_of([True, False, True]) == 0b101


LOW, HIGH = 0b0011, 0b1100
"""Two fragments."""


def test_a_round_of_a_fragment_credits_all_tokens_and_leaves_the_other_chunks() -> None:
    one = with_offer(100)
    settled = one.committed_by(H1, H0, 100, LOW, counts_spans=True, exchanged=LOW)
    assert (settled.on_time, settled.taken, settled.zeroed) == (100, LOW, 0)
    assert one.state.since == [0, 0, 1, 1]
    one.trained(H1, 2, 60, [])
    offered(one, H1, 2)
    one.committed_by(H2, H1, 30, 0b0100, counts_spans=True, exchanged=HIGH)
    assert fates(one) == (130, 0, 0, 0, 30)
    assert one.state.since == [2, 2, 0, 1]


def test_of_several_offers_the_header_tells_by_the_chunks_of_its_round() -> None:
    one = account()
    one.trained(H0, 1, 80, [])
    first = offered(one, H0, 1)
    one.trained(H0, 1, 100, [])
    offered(one, H0, 1)
    settled = one.committed_by(H1, H0, 40, 0b0001, counts_spans=True, exchanged=LOW)
    assert settled.offer == first.number


def test_a_fragment_whose_chunks_are_not_known_takes_no_others_with_it() -> None:
    one = with_offer(100)
    settled = one.committed_by(H1, H0, 50, None, counts_spans=False, exchanged=LOW)
    assert (settled.taken, settled.zeroed) == (0, LOW)
    assert fates(one) == (50, 0, 25, 0, 25)


def test_what_waits_for_its_turn_is_to_be_saved_although_its_tokens_are_committed() -> None:
    one = with_offer(100)
    one.committed_by(H1, H0, 100, LOW, counts_spans=True, exchanged=LOW)
    assert one.carried == 0
    assert not one.state.is_saved
    one.saved()
    assert one.state.is_saved
    new = restarted(one)
    assert new.state.is_saved
    assert new.state.since == [0, 0, 1, 1]
    new.trained(H1, 2, 50, [])
    assert not new.state.is_saved
    offered(new, H1, 2)
    new.committed_by(H2, H1, 50, HIGH, counts_spans=True, exchanged=HIGH)
    new.saved()
    new.trained(H2, 3, 50, [])
    offered(new, H2, 3)
    new.committed_by(H3, H2, 50, ALL, counts_spans=True)
    assert new.state.is_saved, "nothing is left to save"


def test_what_waited_for_its_turn_is_taken_with_an_offer_of_a_killed_process() -> None:
    """Its tokens are committed, so nothing but the vector of the offer says that it was in it."""
    one = with_offer(100)
    one.committed_by(H1, H0, 100, LOW, counts_spans=True, exchanged=LOW)
    one.saved()
    one.trained(H1, 2, 50, [])
    offer = offered(one, H1, 2)
    one.trained(H1, 2, 30, [])  # its ring came to nothing here, and was committed elsewhere
    written = msgspec.msgpack.encode(one.state)
    new = WorkAccount(NUM_CHUNKS, STALE_ROUNDS, msgspec.msgpack.decode(written, type=AccountState))
    restart = new.restarted()
    assert (restart.chunks, restart.offers[offer.number]) == (ALL, ALL)
    settled = new.committed_by(H2, H1, 50, HIGH, counts_spans=True, exchanged=HIGH)
    assert (settled.offer, settled.taken, settled.zeroed) == (offer.number, HIGH, 0)
    assert fates(new) == (150, 0, 0, 30, 0)


def test_what_waited_for_its_turn_and_was_dropped_with_one_offer_is_not_in_another() -> None:
    """Two lives offer the same round what waits for its fragment. The round that takes the later
    offer is left when that is too old, and the other branch has taken the earlier one."""
    one = account()
    one.trained(H0, 1, 100, [])
    offered(one, H0, 1, life=1)
    one.committed_by(H1, H0, 100, LOW, counts_spans=True, exchanged=LOW)
    one.saved()
    one.trained(H1, 2, 50, [])
    offered(one, H1, 2, life=1)
    new = restarted(one)
    new.trained(H1, 2, 10, [])
    offered(new, H1, 2, life=2)
    settled = new.committed_by(
        H2, H1, 10, HIGH, counts_spans=True, exchanged=HIGH, offered=Offered(2, 10)
    )
    assert settled.taken == HIGH
    assert new.abandoned(H2, H1, 10, 2 + STALE_ROUNDS + 1).chunks == 0
    settled = new.committed_by(
        H3, H1, 50, HIGH, counts_spans=True, exchanged=HIGH, offered=Offered(1, 50)
    )
    assert settled.taken == 0
    assert fates(new) == (150, 0, 10, 0, 0)


@pytest.mark.parametrize("has_vector", [False, True])
@pytest.mark.parametrize("life", [1, 2])
def test_what_a_round_takes_of_a_forgotten_offer_was_trained_once(
    life: int, *, has_vector: bool
) -> None:
    """A peer goes on alone for so long that it forgets its first offer, a part of which counts on
    the branch that wins. Only an earlier life, whose records are gone, trained more than this."""
    one, num_rounds = account(), OFFERS_MAX + 1
    heads = [digest_of(b"alone", bytes([number])) for number in range(num_rounds + 1)]
    for number in range(num_rounds):
        one.trained(heads[number], number + 1, 100, [])
        offered(one, heads[number], number + 1, life=2)
        one.committed_by(heads[number + 1], heads[number], 100, ALL, counts_spans=False)
    one.branch_left(num_rounds, 1)
    for number in reversed(range(num_rounds)):
        one.abandoned(heads[number + 1], heads[number], 100, 1, has_vector=has_vector)
    one.drop_stale(STALE_ROUNDS + 2)
    gone = one.dropped + one.state.lost
    assert gone == one.state.trained == 100 * num_rounds
    one.committed_by(H1, heads[0], 25, 0b1, counts_spans=False, offered=Offered(life, 100))
    num_more = 25 if life == 1 else 0
    assert one.state.trained == 100 * num_rounds + num_more
    assert fates(one)[:2] == (0, 25)
    assert one.dropped + one.state.lost == gone - 25 + num_more


def whole(one: WorkAccount, head: bytes, parent: bytes, tokens: int, chunks: int) -> Settlement:
    """A round of some chunks that takes work in all of them."""
    return one.committed_by(head, parent, tokens, chunks, counts_spans=True, exchanged=chunks)


@pytest.mark.parametrize("newer", [0, 20])
def test_what_waits_for_its_turn_and_was_dropped_with_one_offer_is_in_no_other(newer: int) -> None:
    """The later offer is to another round and has no tokens of it."""
    one = with_offer(100)
    one.trained(H0, 1, 50, [])
    offered(one, H0, 1)
    whole(one, H1, H0, 100, LOW)
    offered(one, H1, 2)
    whole(one, H2, H1, 50, HIGH)
    one.trained(H2, 3, 30, [])
    offered(one, H2, 3)  # with what waits in the low chunks
    one.trained(H2, 3, newer, [])
    one.abandoned(H2, H1, 50, 1)
    one.abandoned(H1, H0, 100, 1)
    assert whole(one, H3, H0, 150, LOW).taken == LOW
    one.abandoned(H3, H0, 150, 1 + STALE_ROUNDS + 1)

    assert whole(one, H1, H0, 100, LOW).taken == 0
    assert whole(one, H2, H1, 50, HIGH).taken == HIGH
    settled = whole(one, digest_of(b"other"), H2, 30, LOW)

    assert (settled.taken, settled.zeroed) == (0, LOW)
    # The newer work cannot be told from the other in the low chunks, and is in the high ones.
    assert fates(one) == (130, 50, newer // 2, 0, newer - newer // 2)


def test_what_a_killed_process_lost_of_an_offer_in_some_chunks() -> None:
    one = with_offer(100)
    one.committed_by(H1, H0, 100, LOW, counts_spans=True, exchanged=LOW)
    one.saved()
    one.trained(H1, 2, 50, [])
    offer = offered(one, H1, 2)
    one.committed_by(H2, H1, 25, 0b0100, counts_spans=True, exchanged=HIGH)
    one.trained(H2, 3, 50, [])

    restart = one.restarted()

    assert restart.chunks & 0b1100 == 0b1000
    assert restart.offers[offer.number] & 0b1100 == 0b1000, "a header took the rest"
    assert one.state.since == [0, 0, 0, 1]
    assert one.abandoned(H2, H1, 25, 3).chunks == 0b0100


def test_the_state_of_an_older_version() -> None:
    """It does not say which chunks have which work."""
    one = with_offer(100)
    one.committed_by(H1, H0, 50, 0b0011, counts_spans=True)
    one.saved()
    one.trained(H1, 2, 40, [])
    offered(one, H1, 2)
    old = msgspec.to_builtins(one.state, str_keys=False)
    for lot, saved in zip(old["lots"].values(), [50, 0], strict=True):
        del lot["there"], lot["on_disk"]
        lot["saved"] = saved
    for offer in old["offers"]:
        del offer["work"], offer["heads"]
    state = msgspec.convert(old, AccountState)
    new = WorkAccount(NUM_CHUNKS, STALE_ROUNDS, state)

    new.restarted()

    assert fates(new)[3:] == (40, 50)
    settled = new.committed_by(H2, H1, 90, ALL, counts_spans=True)
    assert (settled.taken, settled.zeroed) == (ALL, 0)
    assert not new.has_work
    assert fates(new) == (90, 50, 0, 0, 0)
