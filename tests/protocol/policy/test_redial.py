"""The times at which lost peers are dialled again, without anything to dial."""

from __future__ import annotations

import itertools
import random

import pytest

from gossamer.protocol.policy import redial
from gossamer.protocol.policy.redial import Redial

JITTER_MAX = 1.2


@pytest.fixture
def again() -> Redial:
    return Redial(random.Random(1))


def waits(again: Redial, key: str, start: float, num_failures: int, *, alone: bool) -> list[float]:
    """Seconds from each failure to the next attempt."""
    now, found = start, []
    for _ in range(num_failures):
        assert key in again.due(now, alone=alone)
        again.failed(now, key)
        failed = now
        while key not in again.due(now, alone=alone):
            now += 0.125
        found.append(now - failed)
    return found


def test_failures_back_off_but_not_far_in_the_first_minutes(again: Redial) -> None:
    again.want(0.0, "a", 0.0)
    seconds = waits(again, "a", 0.0, 60, alone=False)
    assert 1.6 <= seconds[0] <= 2.5
    assert 3.2 <= seconds[1] <= 5.0
    assert max(seconds) <= redial.RECENT_BACK_OFF_SECONDS_MAX * JITTER_MAX + 0.125


def test_a_peer_that_is_away_for_long_is_dialled_once_a_minute_unless_no_peer_is_connected(
    again: Redial,
) -> None:
    again.want(0.0, "a", 0.0)
    for _ in range(2000):  # and the exponent does not overflow
        again.failed(0.0, "a")
    later = redial.RECENT_SECONDS + 1.0
    seconds = waits(again, "a", later, 5, alone=False)
    assert 48 <= min(seconds) <= max(seconds) <= 73
    seconds = waits(again, "a", later + 1000, 5, alone=True)
    assert max(seconds) <= redial.RECENT_BACK_OFF_SECONDS_MAX * JITTER_MAX + 0.125


def test_patience_before_the_first_attempt(again: Redial) -> None:
    again.want(10.0, "a", 2.0)
    again.want(11.0, "a", 2.0)  # said again: nothing begins anew
    assert again.due(11.9, alone=False) == []
    assert again.due(12.0, alone=False) == ["a"]


def test_when_the_trouble_was_ours_everybody_is_due(again: Redial) -> None:
    for key in "abc":
        again.want(0.0, key, 2.0 if key == "c" else 0.0)
    for key in "ab":
        for _ in range(8):
            again.failed(700.0, key)
    assert again.due(710.0, alone=False) == ["c"]
    again.hurry(710.0)
    assert again.due(710.0, alone=False) == ["a", "b"]
    assert again.due(712.0, alone=False) == ["a", "b", "c"]


def test_a_sign_of_life_after_silence(again: Redial) -> None:
    again.want(0.0, "a", 0.0)
    for second in range(0, 700, 2):  # alive and out of our reach, as behind a router
        again.heard(second, "a", (1, second))
        again.failed(float(second), "a")
    assert again.due(710.0, alone=False) == []
    again.heard(710.0, "a", (1, 701))
    assert again.due(710.0, alone=False) == [], "it was never silent"
    for now in range(711, 760):
        again.heard(now, "a", (1, 701))  # the same as before: nothing new
    again.failed(759.5, "a")
    assert again.due(760.0, alone=False) == []
    again.heard(760.0, "a", (1, 702))
    assert again.due(760.0, alone=False) == ["a"]


def test_the_peer_with_the_fewest_failures_comes_first(again: Redial) -> None:
    for key in ("dead1", "dead2", "new"):
        again.want(0.0, key, 0.0)
    for _ in range(3):
        again.failed(0.0, "dead1")
    again.failed(0.0, "dead2")
    assert again.due(100.0, alone=True) == ["new", "dead2", "dead1"]


def test_a_peer_that_is_not_wanted_any_more_begins_anew(again: Redial) -> None:
    again.want(0.0, "a", 0.0)
    for _ in range(9):
        again.failed(0.0, "a")
    again.keep([], ["a"])
    assert again.due(1.0, alone=False) == []
    again.want(1.0, "a", 0.0)
    assert again.due(1.0, alone=False) == ["a"]
    again.heard(1.0, "a", (1, 1))
    again.keep(["a"], [])
    again.failed(100.0, "a")
    again.heard(100.0, "a", (1, 2))
    assert again.due(100.0, alone=False) == [], "what was heard of strangers is forgotten"
    again.failed(100.0, "unknown")


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_peer_that_closes_each_connection_at_once_is_dialled_more_and_more_seldom(
    again: Redial, is_seen: bool
) -> None:
    """`is_seen`: whether a look falls into the short life of each connection."""
    dials: list[float] = []
    for second in range(1200):
        now = float(second)
        is_connected = is_seen and bool(dials) and now - dials[-1] == 1.0
        if not is_connected:
            again.want(now, "a", 0.0)
        again.keep([] if is_connected else ["a"], ["a"])
        for key in again.due(now, alone=False):
            again.reached(now, key)
            dials.append(now)
    waits = [later - earlier for earlier, later in itertools.pairwise(dials)]
    assert min(waits) >= 2
    assert max(waits[:20]) <= 8
    assert min(waits[-5:]) >= 48, "it is away for ten minutes"


def test_a_peer_whose_connection_was_of_use_is_dialled_at_once_when_it_breaks(
    again: Redial,
) -> None:
    again.want(0.0, "a", 0.0)
    again.failed(0.0, "a")
    again.reached(3.0, "a")
    again.keep([], ["a"])
    later = 3.0 + redial.BRIEF_SECONDS
    again.want(later, "a", 0.0)
    assert again.due(later, alone=False) == ["a"]


def test_a_peer_that_is_connected_through_another_one_is_dialled_seldom(again: Redial) -> None:
    again.want(0.0, "a", 0.0, is_relayed=True)
    assert not again.due(19.9, alone=False)
    assert again.due(20.0, alone=False) == ["a"]
    found = waits(again, "a", 20.0, 8, alone=False)
    assert found[0] <= JITTER_MAX * redial.RELAYED_BACK_OFF_SECONDS_MIN + 0.125
    longest = redial.RELAYED_BACK_OFF_SECONDS_MAX
    assert 0.8 * longest <= found[-1] <= JITTER_MAX * longest + 0.125
    again.want(10_000.0, "a", 0.0)  # the circuit has ended
    assert again.due(10_000.0, alone=False) == ["a"], "what failed beside it says nothing"
