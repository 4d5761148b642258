"""The rules of the ring, one by one. Members 0 to 3, two chunks unless said otherwise."""

from __future__ import annotations

import pytest

from gossamer.protocol.errors import ClaimedPartError, LocalProtocolError, MalformedError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.rounds.actions import (
    Contradicted,
    Contribute,
    FinishAverage,
    RingAction,
    Send,
)
from gossamer.protocol.rounds.inventory import ArrivedSum, Average, Held, SignedDigest
from gossamer.protocol.rounds.ring.ring import RingReduce
from tests.support.builders import peers

RING = peers(4)
A, B, C, D = RING


def reducing(
    members: list[PeerId], me: PeerId, num_chunks: int, starters: list[int] | None = None
) -> RingReduce:
    """A ring without signatures. `starters`: None: all members start chunks."""
    places = list(range(len(members))) if starters is None else starters
    return RingReduce(members, me, num_chunks, places, unsigned, unsigned)


def unsigned(_chunk: int, _mask: int, _digest: Digest) -> bytes:
    return b""


def member(me: int, num_chunks: int = 2) -> RingReduce:
    return reducing(RING, RING[me], num_chunks)


def take_partial_sum(
    ring: RingReduce, sender: int, chunk: int, mask: int, payload: bytes = b"sum"
) -> list[RingAction]:
    """The partial sum arrives and my part is added to it."""
    assert ring.partial_sum_received(chunk, ArrivedSum(RING[sender], mask, payload)) == [
        Contribute(chunk, payload, RING[sender], mask)
    ]
    return ring.contributed(chunk, payload + b"+")


def finisher_of(chunk: int) -> int:
    """The member that finishes a chunk while nobody is out."""
    return (chunk - 1) % len(RING)


def average(
    ring: RingReduce,
    sender: int,
    chunk: int,
    mask: int,
    payload: bytes = b"f",
    finisher: int | None = None,
) -> list[RingAction]:
    made_by = finisher_of(chunk) if finisher is None else finisher
    content = Average(mask, digest_of(payload), made_by, payload)
    return ring.average_received(RING[sender], chunk, content)


def passed_on(
    peer: PeerId, chunk: int, mask: int, payload: bytes, finisher: int | None = None
) -> Send:
    made_by = finisher_of(chunk) if finisher is None else finisher
    return Send(peer, chunk, mask, made_by, payload, digest_of(payload))


def test_each_member_starts_the_chunks_of_its_position() -> None:
    for me in range(4):
        assert member(me, 6).start() == [
            Contribute(chunk, None) for chunk in range(6) if chunk % 4 == me
        ]


def test_a_partial_sum_is_added_to_once_and_passed_on() -> None:
    ring = member(1)
    assert take_partial_sum(ring, 0, 0, 0b0001) == [Send(C, 0, 0b0011, None, b"sum+")]
    assert ring.partial_sum_received(0, ArrivedSum(A, 0b0001, b"sum")) == []


def test_a_partial_sum_that_claims_my_part_is_refused() -> None:
    with pytest.raises(ClaimedPartError):
        member(1).partial_sum_received(0, ArrivedSum(A, 0b0011, b"sum"))


@pytest.mark.parametrize(
    ("sender", "chunk", "mask"),
    [(peers(9)[8], 0, 1), (A, 2, 1), (A, -1, 1), (A, 0, 0), (A, 0, 1 << 4), (A, 0, -1)],
)
def test_values_out_of_range_are_malformed(sender: str, chunk: int, mask: int) -> None:
    ring = member(1)
    with pytest.raises(MalformedError):
        ring.partial_sum_received(chunk, ArrivedSum(sender, mask, b"sum"))  # type: ignore[arg-type]
    with pytest.raises(MalformedError):
        ring.average_received(sender, chunk, Average(mask, digest_of(b"f"), 0, b"f"))  # type: ignore[arg-type]
    with pytest.raises(MalformedError):
        average(ring, 0, 0, 0b1111, finisher=4)


def test_the_member_whose_sum_covers_the_living_finishes_and_sends_the_average_round() -> None:
    ring = member(3)
    assert take_partial_sum(ring, 2, 0, 0b0111) == [FinishAverage(0, b"sum+", 0b1111)]
    assert ring.average_finished(0, b"f", digest_of(b"f")) == [
        passed_on(A, 0, 0b1111, b"f", finisher=3)
    ]
    assert ring.num_averages == 1
    assert not ring.is_complete
    with pytest.raises(LocalProtocolError):
        _ = ring.averages


def test_one_member_alone_does_it_all() -> None:
    ring = reducing([A], A, 1)
    assert ring.start() == [Contribute(0, None)]
    assert ring.contributed(0, b"mine") == [FinishAverage(0, b"mine", 1)]
    assert ring.average_finished(0, b"f", digest_of(b"f")) == []
    assert ring.is_complete
    assert ring.successor is None


def test_an_average_is_taken_and_passed_on_if_it_is_better() -> None:
    ring = member(1)
    ring.member_removed(D)
    low, high = sorted([b"x", b"y"], key=digest_of)
    assert average(ring, 0, 0, 0b0111, high) == [passed_on(C, 0, 0b0111, high)]
    assert average(ring, 0, 0, 0b0111, high) == []
    assert average(ring, 0, 0, 0b0111, low) == [passed_on(C, 0, 0b0111, low)]
    assert average(ring, 0, 0, 0b0111, high) == []
    assert average(ring, 0, 0, 0b1111, high) == [passed_on(C, 0, 0b1111, high)]
    assert average(ring, 0, 0, 0b0111, low) == []


def test_an_average_goes_neither_to_its_finisher_nor_back_to_its_sender() -> None:
    ring = member(1)
    assert average(ring, 0, 0, 0b1111, finisher=2) == []
    pair = reducing([A, B], B, 1)
    assert pair.average_received(A, 0, Average(0b11, digest_of(b"f"), 0, b"f")) == []
    assert average(member(2), 1, 0, 0b1111) == [], "D, which comes next, made it"
    ring = member(0)
    ring.member_removed(C)
    ring.member_removed(D)
    assert average(ring, 1, 0, 0b1111) == [], "B sent what D had made"


def test_after_the_average_a_partial_sum_is_of_no_use() -> None:
    ring = member(1)
    average(ring, 0, 0, 0b1111)
    assert ring.partial_sum_received(0, ArrivedSum(A, 0b0001, b"sum")) == []


def test_an_average_that_comes_while_i_add_ends_the_walk() -> None:
    ring = member(1)
    ring.partial_sum_received(0, ArrivedSum(A, 0b0001, b"sum"))
    average(ring, 0, 0, 0b1111)
    assert ring.contributed(0, b"sum+") == []


def test_an_average_that_lacks_a_living_member_is_kept_aside_and_the_chunk_walks_on() -> None:
    ring = member(0, 1)
    ring.start()
    assert average(ring, 3, 0, 0b1011) == []
    assert ring.num_averages == 0
    assert ring.contributed(0, b"sum") == [Send(B, 0, 0b0001, None, b"sum")]
    assert ring.inventory().chunks[0] == Held(copy_mask=0b0001)
    assert ring.member_removed(C) == [passed_on(B, 0, 0b1011, b"f")]  # and the copy is of no use
    assert ring.num_averages == 1


def test_an_average_that_is_not_its_finishers_is_kept_aside_until_the_finisher_is_out() -> None:
    ring = member(0, 1)
    assert average(ring, 3, 0, 0b1111, finisher=2) == []
    assert ring.num_averages == 0
    assert ring.member_removed(D) == [passed_on(B, 0, 0b1111, b"f", finisher=2)]
    assert ring.num_averages == 1


def test_members_that_go_out_elsewhere_make_nobody_else_the_finisher() -> None:
    ring = member(0, 1)
    for sender, made_by in ((1, 0), (3, 2)):
        assert average(ring, sender, 0, 0b1111, finisher=made_by) == []
    ring.member_removed(C)
    assert ring.num_averages == 0
    ring.member_removed(D)  # and C, which is out, may have finished it before
    assert [each.finisher for each in ring.averages] == [2]


def test_an_average_whose_finisher_went_out_is_taken() -> None:
    ring = member(0, 1)
    ring.member_removed(D)
    assert average(ring, 2, 0, 0b1111, finisher=3) == [passed_on(B, 0, 0b1111, b"f", finisher=3)]


def test_a_whole_sum_walks_on_to_its_finisher() -> None:
    """C skipped D, which B does not know yet, and then went out itself: B's part comes last."""
    ring = member(1, 1)
    assert take_partial_sum(ring, 0, 0, 0b1101) == [Send(C, 0, 0b1111, None, b"sum+")]
    assert ring.member_removed(C) == [Send(D, 0, 0b1111, None, b"sum+")]
    assert ring.member_removed(D) == [FinishAverage(0, b"sum+", 0b1111)]


def test_a_sum_that_lacks_nobody_counts_the_members_up_to_its_finisher() -> None:
    ring = member(1, 1)
    assert ring.fewest_missing() is None
    take_partial_sum(ring, 0, 0, 0b0001)
    assert ring.fewest_missing() == 2
    assert take_partial_sum(ring, 0, 0, 0b1101) == [Send(C, 0, 0b1111, None, b"sum+")]
    assert ring.fewest_missing() == 2
    ring.member_removed(C)
    assert ring.fewest_missing() == 1


def test_of_several_sums_that_do_not_come_back_the_fullest_counts() -> None:
    """The member before the one that keeps them accuses first, and accuses the right one."""
    ring = member(1)
    ring.start()
    ring.contributed(1, b"mine")
    assert ring.fewest_missing() == 3
    take_partial_sum(ring, 0, 0, 0b0001)
    assert ring.fewest_missing() == 2
    average(ring, 0, 0, 0b1111)
    assert ring.fewest_missing() == 3, "that one came back"
    assert ring.inventory().chunks[0] == Held(0, (0b1111, digest_of(b"f"))), "nor is it kept"
    assert (ring.average_of(0), ring.average_of(1)) == (b"f", None)


def contradictions(
    ring: RingReduce, finisher: int, chunk: int, *signed: SignedDigest
) -> list[RingAction]:
    """The contradictions that averages of one finisher show, in the order of their arrival."""
    return [
        action
        for mask, digest, signature in signed
        for action in ring.average_received(
            RING[1], chunk, Average(mask, digest, finisher, b"f", signature)
        )
        if isinstance(action, Contradicted)
    ]


@pytest.mark.parametrize(
    "other",
    [SignedDigest(0b1111, digest_of(b"y"), b"2"), SignedDigest(0b1011, digest_of(b"x"), b"2")],
    ids=["another digest", "other members"],
)
def test_two_averages_of_a_chunk_that_one_member_signed_contradict_each_other(
    other: SignedDigest,
) -> None:
    one = SignedDigest(0b1111, digest_of(b"x"), b"1")
    ring = member(0)
    assert contradictions(ring, 3, 0, one, one) == []
    assert contradictions(ring, 2, 0, other) == []  # somebody else says it
    assert contradictions(ring, 3, 1, other) == []  # of another chunk
    assert contradictions(ring, 3, 0, other) == [Contradicted(0, 3, one, other)]
    assert contradictions(ring, 3, 0, other) == []  # one proof about a member is enough


def test_averages_that_need_no_signature_contradict_nothing() -> None:
    unsigned = (SignedDigest(0b1111, digest_of(part), b"") for part in (b"x", b"y"))
    assert contradictions(member(0), 3, 0, *unsigned) == []


@pytest.mark.parametrize("order", [1, -1])
def test_an_average_of_a_member_that_is_out_does_not_cost_a_living_member_its_part(
    order: int,
) -> None:
    """C gave up D, A gave up B, B gave up C. D heard B first: it held C to be in no more."""
    low, high = sorted([b"x", b"y"], key=digest_of)[::order]
    ring = member(0, 1)
    ring.member_removed(B)
    assert average(ring, 3, 0, 0b1011, low, finisher=3) == []
    assert average(ring, 2, 0, 0b0111, high, finisher=2) == []
    assert ring.member_removed(D) == []  # C made what A takes
    assert [(average.mask, average.payload) for average in ring.averages] == [(0b0111, high)]


def test_of_each_sender_the_last_early_average_is_kept_and_of_all_the_best_one_taken() -> None:
    first, low, high = b"0", *sorted([b"x", b"y"], key=digest_of)
    ring = member(1, 1)
    for sender, payload in ((0, first), (0, low), (3, high)):
        assert average(ring, sender, 0, 0b1011, payload) == []
    ring.member_removed(C)
    assert [average.payload for average in ring.averages] == [low]


def test_early_averages_that_are_not_better_go_when_the_chunk_has_one() -> None:
    ring = member(1, 1)
    low, high = sorted([b"x", b"y"], key=digest_of)
    assert average(ring, 3, 0, 0b0001, b"early") == []
    assert average(ring, 2, 0, 0b1111, low, finisher=0) == []  # its finisher may be in its turn
    average(ring, 0, 0, 0b1111, high)
    assert ring.num_averages == 1
    (state,) = ring._chunks
    assert [each.payload for each in state.early.values()] == [low]


def test_a_member_that_is_out_takes_averages_whatever_they_lack() -> None:
    ring = member(1)
    assert average(ring, 0, 0, 0b1000) == []
    assert ring.num_averages == 0
    assert ring.member_removed(B) == []
    assert ring.num_averages == 1
    assert average(ring, 0, 1, 0b1000) == []
    assert ring.num_averages == 2


def test_when_the_receiver_of_a_copy_is_removed_the_next_one_gets_it() -> None:
    ring = member(1)
    ring.start()
    take_partial_sum(ring, 0, 0, 0b0001)
    assert ring.member_removed(C) == [Send(D, 0, 0b0011, None, b"sum+")]
    assert ring.member_removed(C) == []
    assert ring.living == (A, B, D)


def test_a_copy_that_covers_the_living_is_finished() -> None:
    ring = member(1)
    take_partial_sum(ring, 0, 0, 0b0001)
    ring.member_removed(C)
    assert ring.member_removed(D) == [FinishAverage(0, b"sum+", 0b0011)]


def test_the_next_living_member_starts_the_chunk_of_a_removed_one() -> None:
    ring = member(1)
    ring.start()
    assert ring.member_removed(A) == [Contribute(0, None)]
    late = member(1)
    late.start()
    take_partial_sum(late, 0, 0, 0b0001)  # it has been through my hands already
    assert late.member_removed(A) == []


def test_a_new_successor_gets_every_average_again() -> None:
    ring = reducing(RING, B, 2, starters=[1])
    average(ring, 0, 0, 0b1111, finisher=0)
    average(ring, 0, 1, 0b1111, b"g", finisher=0)
    assert ring.member_removed(C) == [
        passed_on(D, 0, 0b1111, b"f", finisher=0),
        passed_on(D, 1, 0b1111, b"g", finisher=0),
    ]
    assert ring.member_removed(A) == []  # the successor is the same


def test_a_removed_member_only_listens() -> None:
    ring = member(1)
    take_partial_sum(ring, 0, 0, 0b0001)
    assert ring.member_removed(B) == []
    assert ring.partial_sum_received(1, ArrivedSum(A, 0b0001, b"sum")) == []
    assert ring.member_removed(C) == []
    assert average(ring, 0, 0, 0b1101) == []
    assert ring.num_averages == 1
    assert ring.living == (A, D)


def test_a_removal_while_i_add_or_finish_passes_nothing_on() -> None:
    ring = member(1)
    ring.partial_sum_received(0, ArrivedSum(A, 0b0001, b"sum"))
    ring.member_removed(B)
    assert ring.contributed(0, b"sum+") == []
    finisher = member(3)
    take_partial_sum(finisher, 2, 0, 0b0111)
    finisher.member_removed(D)
    assert finisher.average_finished(0, b"f", digest_of(b"f")) == []
    assert finisher.num_averages == 0


def test_of_two_sums_of_a_chunk_the_one_with_more_members_walks_on() -> None:
    """Member 0 began anew; a sum of the others, which went past it, comes round to it."""
    ring = reducing(RING[:3], A, 1)
    ring.start()
    assert ring.contributed(0, b"a") == [Send(B, 0, 0b001, None, b"a")]
    assert take_partial_sum(ring, 2, 0, 0b110, b"bc") == [Send(B, 0, 0b111, None, b"bc+")]
    finisher = reducing(RING[:3], C, 1)
    take_partial_sum(finisher, 1, 0, 0b010, b"b")
    assert finisher.partial_sum_received(0, ArrivedSum(B, 0b111, b"bc+")) == [
        FinishAverage(0, b"bc+", 0b111)
    ]


def test_a_sum_that_holds_less_than_the_kept_one_is_ignored() -> None:
    ring = member(3)
    take_partial_sum(ring, 1, 0, 0b0011)
    for mask in (0b0001, 0b0010, 0b0011):
        assert ring.partial_sum_received(0, ArrivedSum(B, mask, b"less")) == []
    assert take_partial_sum(ring, 1, 0, 0b0111, b"more") == [FinishAverage(0, b"more+", 0b1111)]


def test_a_sum_that_holds_me_and_more_than_mine_walks_on_as_it_is() -> None:
    ring = member(0)
    take_partial_sum(ring, 1, 1, 0b0010, b"b")
    assert ring.partial_sum_received(1, ArrivedSum(D, 0b0111, b"abc")) == [
        Send(B, 1, 0b0111, None, b"abc")
    ]
    assert ring.partial_sum_received(1, ArrivedSum(D, 0b0111, b"abc")) == []
    assert ring.partial_sum_received(1, ArrivedSum(D, 0b1111, b"abcd")) == [
        FinishAverage(1, b"abcd", 0b1111)
    ]


def test_two_that_hold_different_members_out_do_not_turn_down_each_others_sums() -> None:
    """All four members are out in the end, and neither of the two sends its sum again."""
    names = peers(6)
    third, last = reducing(names, names[2], 4), reducing(names, names[5], 4)
    for ring, removed in ((third, (3, 4)), (last, (0, 1))):
        for position in removed:
            ring.member_removed(names[position])
    assert third.partial_sum_received(3, ArrivedSum(names[1], 0b000011, b"ab"))
    assert third.contributed(3, b"abc") == [Send(names[5], 3, 0b000111, None, b"abc")]
    assert last.partial_sum_received(3, ArrivedSum(names[4], 0b011000, b"de"))
    assert last.contributed(3, b"def") == [Send(names[2], 3, 0b111000, None, b"def")]
    assert third.partial_sum_received(3, ArrivedSum(names[5], 0b111000, b"def")) == [
        Contribute(3, b"def", names[5], 0b111000)
    ]
    assert last.partial_sum_received(3, ArrivedSum(names[2], 0b000111, b"abc")) == [
        Contribute(3, b"abc", names[2], 0b000111)
    ]


def test_of_two_sums_with_as_many_members_everybody_keeps_the_same_one() -> None:
    low, high = 0b0110, 0b1010
    first_low, first_high = member(1, 1), member(1, 1)
    for ring in (first_low, first_high):
        ring.start()
        take_partial_sum(ring, 0, 0, 0b0100 if ring is first_low else 0b1000)
    assert first_low.partial_sum_received(0, ArrivedSum(D, high, b"high")) == [
        Send(C, 0, high, None, b"high")
    ]
    assert first_high.partial_sum_received(0, ArrivedSum(A, low, b"low")) == []


def test_what_comes_while_i_add_is_weighed_afterwards() -> None:
    ring = member(1)
    ring.partial_sum_received(0, ArrivedSum(A, 0b0001, b"a"))
    assert ring.partial_sum_received(0, ArrivedSum(A, 0b1000, b"d")) == []
    assert ring.partial_sum_received(0, ArrivedSum(A, 0b1101, b"acd")) == []
    assert ring.contributed(0, b"ab") == [
        Send(C, 0, 0b0011, None, b"ab"),
        Contribute(0, b"acd", A, 0b1101),
    ]
    assert ring.member_removed(C) == [Contribute(1, None)]  # the copy waits for the better sum
    assert ring.contributed(0, b"abcd") == [Send(D, 0, 0b1111, None, b"abcd")]
    assert ring.member_removed(D) == [FinishAverage(0, b"abcd", 0b1111)]


def test_a_bad_partial_sum_does_not_cost_the_copy() -> None:
    ring = member(1)
    ring.start()
    take_partial_sum(ring, 0, 0, 0b0001)
    ring.partial_sum_received(0, ArrivedSum(A, 0b1101, b"bad"))
    assert ring.member_removed(C) == []
    assert ring.rejected(0) == [Send(D, 0, 0b0011, None, b"sum+")]


def test_a_bad_partial_sum_leaves_room_for_a_good_one() -> None:
    ring = member(2)
    ring.partial_sum_received(0, ArrivedSum(B, 0b0011, b"bad"))
    assert ring.rejected(0) == []
    assert ring.partial_sum_received(0, ArrivedSum(A, 0b0001, b"good")) == [
        Contribute(0, b"good", A, 0b0001)
    ]
    with pytest.raises(LocalProtocolError):
        ring.rejected(1)


def test_what_came_while_a_bad_partial_sum_was_added_is_taken_instead() -> None:
    ring = member(2)
    ring.partial_sum_received(0, ArrivedSum(B, 0b0011, b"bad"))
    assert ring.partial_sum_received(0, ArrivedSum(A, 0b0001, b"good")) == []
    assert ring.rejected(0) == [Contribute(0, b"good", A, 0b0001)]


def test_a_sum_that_claims_my_part_while_i_add_it_for_the_first_time_is_refused() -> None:
    ring = member(2)
    ring.partial_sum_received(0, ArrivedSum(B, 0b0011, b"bad"))
    with pytest.raises(ClaimedPartError):
        ring.partial_sum_received(0, ArrivedSum(A, 0b0111, b"impossible"))
    assert ring.rejected(0) == []  # and the rejection blames no other member


def test_a_chunk_that_became_mine_while_a_bad_partial_sum_was_added_is_started() -> None:
    ring = member(2)
    ring.partial_sum_received(0, ArrivedSum(B, 0b0011, b"bad"))
    ring.member_removed(A)
    ring.member_removed(B)
    assert ring.rejected(0) == [Contribute(0, None)]


def test_a_better_average_that_comes_while_i_finish_stays() -> None:
    ring = member(3)
    ring.member_removed(A)
    take_partial_sum(ring, 2, 0, 0b0110)
    average(ring, 2, 0, 0b1111)
    assert ring.average_finished(0, b"worse", digest_of(b"worse")) == []
    ring.member_removed(B)  # and the copy is not finished once more
    assert ring.averages_for(C) == [passed_on(C, 0, 0b1111, b"f")]


def test_events_that_no_action_asked_for_are_our_own_mistake() -> None:
    ring = member(1)
    with pytest.raises(LocalProtocolError):
        ring.contributed(0, b"sum")
    with pytest.raises(LocalProtocolError):
        ring.average_finished(0, b"f", digest_of(b"f"))
    with pytest.raises(LocalProtocolError):
        reducing(RING, peers(9)[8], 1)


def test_of_two_averages_exactly_one_is_better() -> None:
    averages = [
        Average(mask, digest_of(payload), 0, payload)
        for mask in (0b0001, 0b0011, 0b0110)
        for payload in (b"x", b"y")
    ]
    for one in averages:
        assert one.is_better_than(None)
        for other in averages:
            same = (one.mask.bit_count(), one.digest) == (other.mask.bit_count(), other.digest)
            assert one.is_better_than(other) + other.is_better_than(one) == (0 if same else 1)


def test_the_inventory_names_kept_copies_and_averages() -> None:
    ring = member(1, num_chunks=3)
    take_partial_sum(ring, 0, 0, 0b0001)
    average(ring, 0, 1, 0b1111)
    assert ring.partial_sum_received(
        2, ArrivedSum(A, 0b0001, b"sum")
    )  # is being added to, and may be no good
    assert ring.inventory().chunks == (
        Held(copy_mask=0b0011),
        Held(average=(0b1111, digest_of(b"f"))),
        Held(),
    )
    ring.member_removed(B)
    assert ring.inventory().chunks[0] == Held()
