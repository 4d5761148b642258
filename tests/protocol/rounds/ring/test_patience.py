"""How long a ring may last in which something happens again and again."""

from __future__ import annotations

import pytest

from gossamer.protocol.codecs.payloads import Payloads, SumPayloads
from gossamer.protocol.codecs.sign_codec import SignCodec
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.rounds.ring.patience import (
    KEPT_SECONDS,
    LATE_STEP_SECONDS,
    Patience,
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
    assert 60.0 < whole < 64.0
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
