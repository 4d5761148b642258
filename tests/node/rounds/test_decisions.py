"""The decisions of a node between and during its rounds; a reason is logged when it changes."""

from __future__ import annotations

import math

import pytest
from structlog.testing import capture_logs

from gossamer.node.heads.heads import BetterHead
from gossamer.node.rounds.decisions import (
    LINGER_SECONDS,
    OVERTAKEN_SECONDS,
    Decision,
    DecisionLog,
    RingProgress,
    gives_up_round,
    goes_straight_on,
    is_overtaken,
    is_too_early,
    offers_without_training,
    stays_for_newest_round,
    stops_training,
)
from gossamer.protocol.ids import digest_of
from gossamer.protocol.policy.heads.head_choice import HeadWeight

NOW = 100.0
BETTER = BetterHead(
    digest_of(b"better"), HeadWeight(support=5, tokens_total=150), since_seconds=NOW
)
STAYS = Decision(False, "no better head is known")
OVERTAKEN = Decision(True, "a better head is committed elsewhere")


@pytest.mark.parametrize(
    ("wants_device", "better", "deadline_seconds", "stops", "reason"),
    [
        (False, None, None, False, "no peer waits"),
        (False, None, NOW + 0.1, False, "no peer waits"),
        (False, None, NOW, True, "the others are ready"),
        (False, BETTER, None, True, "a better head is known"),
        (True, BETTER, NOW, True, "the operator asked for a pause or a leave"),
    ],
)
def test_training_stops_for_an_order_a_better_head_or_others_that_wait(
    wants_device: bool,
    better: BetterHead | None,
    deadline_seconds: float | None,
    stops: bool,
    reason: str,
) -> None:
    decision = stops_training(
        wants_device=wants_device, better=better, deadline_seconds=deadline_seconds, now=NOW
    )
    assert decision == Decision(stops, reason)


@pytest.mark.parametrize(
    ("rounds_missed", "offers", "reason"),
    [
        (0, False, "no work has missed a round"),
        (1, False, "the others may wait for this node once more"),
        (2, True, "the others did not wait for this node"),
    ],
)
def test_a_node_whose_work_missed_two_rounds_offers_it_without_more_training(
    rounds_missed: int, offers: bool, reason: str
) -> None:
    decision = offers_without_training(rounds_missed)
    assert decision == Decision(offers, reason)


@pytest.mark.parametrize(
    ("wants_device", "is_trainer_up", "better", "goes_on"),
    [
        (False, True, None, True),
        (True, True, None, False),
        (False, False, None, False),
        (False, True, BETTER, False),
    ],
)
def test_the_next_round_goes_straight_on_if_nothing_comes_in_between(
    wants_device: bool, is_trainer_up: bool, better: BetterHead | None, goes_on: bool
) -> None:
    decision = goes_straight_on(
        wants_device=wants_device, is_trainer_up=is_trainer_up, better=better
    )
    assert decision.holds is goes_on


def test_only_the_first_round_waits_for_peers_and_only_ready_ones_count() -> None:
    assert is_too_early(0, ["syncing", "training"], 2).holds
    assert not is_too_early(0, ["averaging", "training"], 2).holds
    assert not is_too_early(1, [], 2).holds
    assert not is_too_early(0, [], 0).holds


@pytest.mark.parametrize(
    ("attainable", "seconds", "is_on_mine", "finishing_until", "holds"),
    [
        (HeadWeight(5, 151), 60.0, True, None, False),
        (HeadWeight(6, 1), 60.0, True, None, False),
        (HeadWeight(4, 10**9), 0.0, True, None, True),
        (HeadWeight(5, 150), 0.0, True, None, True),
        (HeadWeight(5, 151), 0.0, False, None, True),
        (HeadWeight(5, 150), 4.9, True, NOW + 5.0, False),
        (HeadWeight(5, 150), 5.0, True, NOW + 5.0, True),
    ],
)
def test_a_better_head_overtakes_a_round_that_cannot_outweigh_it_nor_is_nearly_finished(
    attainable: HeadWeight,
    seconds: float,
    is_on_mine: bool,
    finishing_until: float | None,
    holds: bool,
) -> None:
    decision = is_overtaken(
        BETTER, attainable, NOW + seconds, is_on_mine=is_on_mine, finishing_until=finishing_until
    )
    assert decision.holds is holds


@pytest.mark.parametrize(
    ("ring_seconds", "averages_at", "until"),
    [
        (60.0, [], NOW + OVERTAKEN_SECONDS),
        (60.0, [NOW - 1.0], NOW + OVERTAKEN_SECONDS),
        (60.0, [NOW + 4.0], NOW + 4.0 + OVERTAKEN_SECONDS),
        (60.0, [NOW + 4.0 * n for n in range(14)], NOW + 4.0 * 13 + OVERTAKEN_SECONDS),
        (60.0, [NOW + 4.0 * n for n in range(30)], NOW + 60.0),
        (1.0, [NOW + 4.0], NOW + 4.0 + OVERTAKEN_SECONDS),
        (1.0, [NOW + 4.0 * n for n in range(30)], NOW + LINGER_SECONDS),
    ],
    ids=["none", "before", "one", "many", "for ever", "short ring", "short ring, for ever"],
)
def test_a_ring_that_brings_averages_gets_as_much_time_again(
    ring_seconds: float, averages_at: list[float], until: float
) -> None:
    """The others commit the ring at NOW."""
    progress, ring_id = RingProgress(), digest_of(b"ring")
    progress.look(NOW - ring_seconds, ring_id, 0)
    for number, seconds in enumerate(averages_at, 1):
        progress.look(seconds, ring_id, number)
        progress.look(seconds + 0.1, ring_id, number)
    assert progress.finishing_until(NOW) == pytest.approx(until)


def test_another_ring_begins_with_its_own_time() -> None:
    progress = RingProgress()
    progress.look(NOW - 100.0, digest_of(b"first ring"), 3)
    progress.look(NOW - 20.0, digest_of(b"second ring"), 0)
    progress.look(NOW + 18.0, digest_of(b"second ring"), 1)
    assert progress.finishing_until(NOW) == pytest.approx(NOW + 20.0)


@pytest.mark.parametrize(
    ("overtaken", "leave_seconds", "is_ready", "better", "gives_up"),
    [
        (STAYS, math.inf, True, None, False),
        (OVERTAKEN, math.inf, True, BETTER, True),
        (STAYS, NOW, True, None, False),
        (STAYS, NOW - 0.1, True, None, True),
        (STAYS, math.inf, False, None, True),
        (STAYS, math.inf, False, BETTER, False),
    ],
)
def test_a_round_is_given_up_if_overtaken_or_out_of_time_or_without_work(
    overtaken: Decision,
    leave_seconds: float,
    is_ready: bool,
    better: BetterHead | None,
    gives_up: bool,
) -> None:
    decision = gives_up_round(overtaken, NOW, leave_seconds, is_ready=is_ready, better=better)
    assert decision.holds is gives_up


@pytest.mark.parametrize(
    ("is_best", "lacks_averages", "others_have_it", "stays"),
    [
        (True, False, [False, False], True),
        (True, False, [False, True], False),
        (True, True, [False, True], True),
        (True, False, [], False),
        (False, True, [False], False),
    ],
)
def test_a_node_that_leaves_stays_while_its_newest_round_would_go_with_it(
    is_best: bool, lacks_averages: bool, others_have_it: list[bool], stays: bool
) -> None:
    decision = stays_for_newest_round(
        is_best=is_best,
        lacks_averages=lacks_averages,
        others_have_it=others_have_it,
    )
    assert decision.holds is stays


def test_a_reason_is_logged_when_it_changes() -> None:
    decisions = DecisionLog()
    with capture_logs() as lines:
        assert not decisions.note("is the round given up", STAYS)
        assert not decisions.note("is the round given up", STAYS)
        assert decisions.note("is the round given up", OVERTAKEN)
        assert not decisions.note("does the training stop early", STAYS)
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("is the round given up", STAYS.reason),
        ("is the round given up", OVERTAKEN.reason),
        ("does the training stop early", STAYS.reason),
    ]
