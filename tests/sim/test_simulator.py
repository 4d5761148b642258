"""Some hundred worlds. `run.py` runs any number of them."""

from __future__ import annotations

from collections import Counter

import pytest
from arithmetic import WrongSumError, add, check, value_of
from scenario import draw
from signatures import peer_id_of
from simulator import simulate

NUM_WORLDS = 350

CASES = (
    "crash",
    "hang",
    "restart",
    "partition",
    "ring switched",
    "link refused",
    "forks",
    "head held back",
    "computed again",
    "gathered again",
    "suspect: accused",
    "suspect: follows another head",
    "suspect: follows another ring",
    "suspect: is out",
    "suspect: refused",
    "suspect: reset",
    "suspect: restarted",
    "suspect: slow",
    "suspect: timeout",
)
"""What some world has to meet: a simulator that never comes to a rule says nothing about it."""


def test_swarms_commit_what_the_living_hold_and_end_on_one_head() -> None:
    statistics: Counter[str] = Counter()
    for seed in range(NUM_WORLDS):
        try:
            statistics.update(simulate(seed).statistics)
        except Exception as error:
            pytest.fail(
                f"seed {seed}: {type(error).__name__}: {error}\n"
                f"replay: python tests/sim/run.py --start {seed} --seeds 1 --verbose"
            )
    assert not [case for case in CASES if not statistics[case]]


def test_a_seed_decides_everything() -> None:
    first, second = simulate(1234), simulate(1234)
    assert first.now == second.now
    assert first.statistics == second.statistics
    assert list(first.headers) == list(second.headers)


def test_the_arithmetic_notices_who_counts_twice_or_is_missing() -> None:
    members = tuple(peer_id_of(index) for index in range(3))
    weights = dict.fromkeys(members, 5)
    head = bytes(32)

    def plus(payload: bytes | None, index: int) -> bytes:
        value = value_of(members[index], head, 0)
        return add(payload, members, members[index], 5, value)

    once = plus(plus(None, 0), 1)
    check(once, 0b011, members, weights, head, 0)
    with pytest.raises(WrongSumError):
        check(once, 0b111, members, weights, head, 0)
    with pytest.raises(WrongSumError):
        check(plus(once, 0), 0b011, members, weights, head, 0)


def test_scenarios_are_drawn_from_the_seed_alone() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
