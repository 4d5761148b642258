"""How long a ring may last in which something happens again and again."""

from __future__ import annotations

import pytest

from gossamer.protocol.codecs.payloads import Payloads, SumPayloads
from gossamer.protocol.codecs.sign_codec import SignCodec
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.commit import VOTE_SECONDS
from gossamer.protocol.rounds.ring.patience import (
    AVERAGES_SECONDS,
    KEPT_SECONDS,
    KEPT_STEP_SECONDS,
    LATE_STEP_SECONDS,
    SLOW_LINE_BYTES_PER_SECOND,
    STALL_MORE_SECONDS,
    STALL_SECONDS,
    WORKED_FACTOR,
    Patience,
    kept_seconds,
    whole_seconds,
)
from gossamer.protocol.rounds.roster import RoundRules

TICK_SECONDS = 0.1
SUMS = SumPayloads(codec("fp32"))
STEPS = SignPayloads(StepCodec([SignCodec([(1, 4)], 1)]))


def rules_of(payloads: Payloads) -> RoundRules:
    return RoundRules(payloads, 1024, 40, 20.0, 0.3, 5.0, round_seconds=60.0)


def late_at(missing: int, until: float, payloads: Payloads = SUMS) -> float | None:
    """The first time at which a member accuses its successor in a ring where a chunk comes every
    7 s; None: it does not."""
    patience = Patience(rules_of(payloads), 4, 0.0)
    for tick in range(1, int(until / TICK_SECONDS)):
        now = tick * TICK_SECONDS
        patience.ticked(now)
        if patience.may_be_over and patience.is_over(
            missing, is_well_beside=False, is_suspect=False
        ):
            return now
        if tick % 70 == 0:
            patience.progressed(now)
    return None


def test_sums_that_come_one_by_one_in_time_do_not_prolong_a_ring_for_ever() -> None:
    whole = whole_seconds(rules_of(SUMS), 4)
    rules = rules_of(SUMS)
    sent_bytes = 2 * 3 / 4 * rules.num_chunks * rules.chunk_bytes(4)
    assert whole == pytest.approx(60.0 + sent_bytes / SLOW_LINE_BYTES_PER_SECOND)
    for missing, more in ((1, 0.0), (2, LATE_STEP_SECONDS), (3, 2 * LATE_STEP_SECONDS)):
        expected = whole + KEPT_SECONDS + more
        assert late_at(missing, 600.0) == pytest.approx(expected, abs=0.2)
    assert late_at(1, 600.0, STEPS) is None, "members train in such a ring"


def test_a_ring_that_goes_on_without_a_member_is_late_anew() -> None:
    rules = rules_of(SUMS)
    whole, patience = whole_seconds(rules, 4), Patience(rules, 4, 0.0)

    def lasts(seconds: float, since: float) -> float:
        for tick in range(1, int(seconds / TICK_SECONDS)):
            patience.ticked(since + tick * TICK_SECONDS)
            patience.progressed(since + tick * TICK_SECONDS)
        return since + seconds

    now = lasts(whole + KEPT_SECONDS - 1.0, 0.0)
    assert not patience.may_be_over
    now = lasts(3.0, now)
    assert patience.may_be_over
    assert patience.member_removed(now) == pytest.approx(KEPT_SECONDS, abs=2.0)
    now = lasts(whole + KEPT_SECONDS - 3.0, now)
    assert not patience.may_be_over
    patience.ticked(now + 300.0)  # this process stood still
    assert not patience.may_be_over


P, Q = PeerId("p"), PeerId("q")


def accused_at(
    votes: dict[float, tuple[PeerId, bytes]], pause: float, payloads: Payloads = SUMS
) -> float | None:
    """The time at which a member accuses P before it, in a ring where a chunk comes after each
    `pause` from the first vote of P on, and each second before; None: within 400 s it does not."""
    patience, last_seconds = Patience(rules_of(payloads), 4, 0.0), 0.0
    has_voted = False
    for tick in range(1, 4000):
        now = tick * TICK_SECONDS
        patience.ticked(now)
        if vote := votes.get(round(now, 1)):
            patience.voted(*vote)
            has_voted = has_voted or vote[0] == P
        if has_voted and patience.is_over_beside_votes(P):
            return now
        if now - last_seconds >= (pause if has_voted else 1.0):
            patience.progressed(now)
            last_seconds = now
    return None


@pytest.mark.parametrize(
    ("voted_seconds", "patience"),
    [(5.0, AVERAGES_SECONDS), (60.0, 60.0), (180.0, 180.0)],
)
def test_averages_that_come_may_take_as_long_as_the_ring_did(
    voted_seconds: float, patience: float
) -> None:
    """The member before the slowest line has half of its bytes yet to send when it votes, and none
    of them may be of use to this one. So a member that keeps averages makes a ring take twice as
    long at most."""
    votes = {voted_seconds: (P, b"header")}
    for pause in (3.0, 1000.0):
        seconds = accused_at(votes, pause)
        assert seconds == pytest.approx(voted_seconds + patience, abs=0.2)


def kept_until(worked_seconds: float, payloads: Payloads = SUMS) -> tuple[float, float]:
    """How long a member bears that nothing happens in a ring that worked for so long: a member
    whose sum lacks two, and then this peer itself."""
    patience = Patience(rules_of(payloads), 4, 0.0)
    accused = 0.0
    for tick in range(1, 10_000):
        now = tick * TICK_SECONDS
        patience.ticked(now)
        if now <= worked_seconds:
            patience.progressed(now)
        elif not accused and patience.may_be_over:
            is_over = patience.is_over(2, is_well_beside=False, is_suspect=False)
            accused = now - worked_seconds if is_over else 0.0
        if now >= patience.stall_seconds:
            return accused, now - worked_seconds
    raise AssertionError("this peer waits for ever")


def test_patience_with_a_ring_that_stands_still_grows_with_its_work() -> None:
    """What waits at the slowest line is of use to others. A member of a short ring, and one of a
    ring in which members train, is accused after half a minute as ever."""
    step = KEPT_STEP_SECONDS
    for worked, payloads, kept, stalled in (
        (5.0, SUMS, KEPT_SECONDS, STALL_SECONDS),
        (40.0, SUMS, 40.0, STALL_SECONDS),
        (100.0, STEPS, KEPT_SECONDS, STALL_SECONDS),
    ):
        found = kept_until(worked, payloads)
        assert found == pytest.approx((kept + step, stalled), abs=0.2)
    slow = RoundRules(SUMS, 1024, 40, 20.0, 0.3, 5.0, round_seconds=600.0)
    patience = Patience(slow, 4, 0.0)
    for tick in range(1, 3001):
        patience.ticked(tick * TICK_SECONDS)
    patience.progressed(300.0)
    assert patience.stall_seconds == pytest.approx(600.0 + STALL_MORE_SECONDS, abs=0.2)


@pytest.mark.parametrize("worked_seconds", [2.0, 7.0, 20.0, 40.0])
def test_a_neighbour_has_less_patience_in_a_ring_that_worked_for_a_short_time(
    worked_seconds: float,
) -> None:
    """And never more than those behind it, which would accuse a member that keeps nothing."""
    rules = rules_of(SUMS)
    least = max(kept_seconds(rules, 4), WORKED_FACTOR * worked_seconds)
    patience, now = Patience(rules, 4, 0.0), 0.0
    while not patience.is_over(1, is_well_beside=True, is_suspect=False):
        now += TICK_SECONDS
        patience.ticked(now)
        if now <= worked_seconds:
            patience.progressed(now)
    expected = min(least, max(KEPT_SECONDS, worked_seconds))
    assert now - worked_seconds == pytest.approx(expected, abs=0.3)


def test_an_early_vote_has_no_honest_member_accused() -> None:
    """Nobody knows a header at the beginning of a ring. A vote for that of P counts as P's does."""
    votes = {1.0: (Q, b"made up"), 60.0: (P, b"header")}
    assert accused_at(votes, pause=3.0) == pytest.approx(120.0, abs=0.2)
    votes = {50.0: (Q, b"header"), 60.0: (P, b"header")}
    assert accused_at(votes, pause=3.0) == pytest.approx(100.0, abs=0.2)


def test_members_that_have_voted_wait_for_others_longer_than_for_averages() -> None:
    """And not until they would leave the ring themselves. Shared steps bring averages all along."""
    more = VOTE_SECONDS - AVERAGES_SECONDS
    for payloads, ran, patience in (
        (SUMS, 5.0, VOTE_SECONDS),
        (SUMS, 60.0, 60.0 + more),
        (SUMS, 250.0, 250.0 + more),
        (STEPS, 250.0, VOTE_SECONDS),
    ):
        each = Patience(rules_of(payloads), 4, 0.0)
        for tick in range(1, int(ran / TICK_SECONDS) + 1):
            each.ticked(tick * TICK_SECONDS)
        each.progressed(ran)
        assert each.vote_seconds == pytest.approx(patience, abs=0.2)
        assert ran + each.vote_seconds < each.stall_seconds
