"""A schedule of tokens, the end of a run, and the founder's word on both."""

from __future__ import annotations

import math

import msgspec
import pytest

from gossamer.protocol import limits
from gossamer.protocol.errors import ImplausibleError
from gossamer.protocol.manifest import (
    Manifest,
    TokenSchedule,
    decode_manifest,
    encode_manifest,
)
from gossamer.protocol.manifest_checks import problems_of
from gossamer.protocol.state.run_end import RunEnd, SchedulePlace, check_extension
from gossamer.protocol.wire.statements import Extension
from tests.support.builders import manifest

replace = msgspec.structs.replace
WSD = TokenSchedule(warmup_tokens=1_000, total_tokens=10_000, cooldown_tokens=4_000)


def counting(schedule: TokenSchedule = WSD, *, ends: bool = True) -> Manifest:
    """The example, with a schedule of tokens."""
    example = manifest()
    return replace(example, inner=replace(example.inner, schedule=schedule, ends=ends))


def end_of(run: Manifest) -> RunEnd:
    return RunEnd(run.model, run.inner, run.outer)


def rate_after(tokens: int, schedule: TokenSchedule = WSD) -> float:
    """The learning rate of the step that ends with so many tokens, as a part of the highest."""
    inner = replace(manifest().inner, learning_rate=1.0, final_fraction=0.1)
    place = SchedulePlace(schedule=schedule, tokens_before=0, tokens_per_step=tokens)
    return place.learning_rate(0, inner)


def test_the_rate_rises_stays_and_falls() -> None:
    assert rate_after(10) == pytest.approx(0.01)
    assert rate_after(500) == pytest.approx(0.5)
    assert [rate_after(tokens) for tokens in (1_000, 3_000, 6_000)] == [1.0] * 3
    assert rate_after(7_000) == pytest.approx(0.1 + 0.9 * (1 - math.sqrt(0.25)))
    assert rate_after(10_000) == rate_after(10**9) == pytest.approx(0.1)
    falling = [rate_after(tokens) for tokens in range(6_000, 10_001, 100)]
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) == len(falling)


def test_a_run_may_have_neither_warm_up_nor_cool_down() -> None:
    plain = TokenSchedule(warmup_tokens=0, total_tokens=10_000, cooldown_tokens=0)
    assert [rate_after(tokens, plain) for tokens in (1, 9_999, 10_000)] == [1.0] * 3
    assert rate_after(10_001, plain) == pytest.approx(0.1)


def test_what_was_trained_moves_the_schedule_and_not_what_was_planned() -> None:
    run = counting(TokenSchedule(warmup_tokens=0, total_tokens=10**9, cooldown_tokens=10**9))
    end, inner = end_of(run), run.inner
    step_tokens = inner.sequences_per_step * run.model.context
    slow = end.place_of(46 * step_tokens, 1)  # a round of 125 steps in which 46 were done
    whole = end.place_of(0, 1)
    assert slow is not None
    assert whole is not None
    assert slow.learning_rate(0, inner) == whole.learning_rate(46, inner)


def test_within_a_round_as_many_peers_are_counted_as_gave_tokens_to_the_last() -> None:
    run = counting()
    end = end_of(run)
    step_tokens = run.inner.sequences_per_step * run.model.context
    assert end.place_of(0, 0) == end.place_of(0, 1)
    place = end.place_of(5_000, 3, tokens_ahead=700)
    assert place is not None
    assert (place.tokens_before, place.tokens_per_step) == (5_700, 3 * step_tokens)


def test_a_run_that_counts_tokens_ends_with_the_first_head_that_has_them() -> None:
    end = end_of(counting())
    assert counting().last_round is None
    assert [end.is_over_after(10**6, tokens) for tokens in (0, 9_999, 10_000, 10_001)] == [
        False, False, True, True,
    ]  # fmt: skip
    endless = end_of(counting(ends=False))
    assert endless.final_tokens is None
    assert not endless.is_over_after(10**6, 10**9)


def test_a_run_that_counts_steps_has_no_schedule_of_tokens() -> None:
    end = end_of(manifest())
    assert end.schedule is None
    assert end.final_tokens is None
    assert end.place_of(100, 2) is None


def test_the_highest_number_holds_in_whatever_order_extensions_come() -> None:
    first, second = Extension(1, 20_000, 4_000), Extension(2, 8_000, 1_000)
    for order in ((first, second), (second, first), (first, second, first)):
        end = end_of(counting())
        told = [end.extend(each) for each in order]
        assert told[0]
        assert end.newest == second
        assert end.final_tokens == 8_000
        assert end.schedule == replace(WSD, total_tokens=8_000, cooldown_tokens=1_000)
    assert not end.extend(second)


def test_two_extensions_of_one_number_end_the_run_at_one_place_for_all() -> None:
    one, other = Extension(3, 20_000, 4_000), Extension(3, 30_000, 1_000)
    for order in ((one, other), (other, one)):
        end = end_of(counting())
        for each in order:
            end.extend(each)
        assert end.newest == other


def test_an_extension_that_the_run_cannot_have_is_refused() -> None:
    check_extension(Extension(1, 5_000, 4_000), counting())
    with pytest.raises(ImplausibleError, match="planned steps"):
        check_extension(Extension(1, 5_000, 4_000), manifest())
    with pytest.raises(ImplausibleError, match="longer than the run"):
        check_extension(Extension(1, 5_000, 4_001), counting())


def test_a_schedule_keeps_its_values_in_a_manifest_and_has_bounds() -> None:
    run = counting()
    assert problems_of(run) == []
    assert decode_manifest(encode_manifest(run)) == run
    assert run.run_id != manifest().run_id
    bad = [
        replace(WSD, total_tokens=0, warmup_tokens=0, cooldown_tokens=0),
        replace(WSD, total_tokens=limits.TOKENS_TOTAL_MAX + 1),
        replace(WSD, warmup_tokens=-1),
        replace(WSD, cooldown_tokens=-1),
        replace(WSD, warmup_tokens=6_001),
    ]
    for schedule in bad:
        problems = problems_of(counting(schedule))
        assert problems, schedule
        assert all(problem.startswith("schedule.") for problem in problems)
    shared = replace(run, sync="distro", outer=replace(run.outer, warmup_rounds=0))
    assert any("schedule.kind" in problem for problem in problems_of(shared))


def test_a_manifest_without_a_schedule_keeps_its_bytes() -> None:
    assert b"schedule" not in encode_manifest(manifest())
    assert len(type(manifest().inner).__struct_fields__) <= 15
