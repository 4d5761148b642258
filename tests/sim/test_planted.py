"""The simulator finds bugs that are planted on purpose, and finds nothing without them."""

from __future__ import annotations

import pytest

from gossamer.node.rounds.dispatcher import RoundDispatcher
from tests.sim.planted import BUGS
from tests.sim.pool import run_seed

SEEDS_MAX = 300
"""Seeds within which each bug has to be found; most are found among the first dozen."""


@pytest.mark.parametrize("bug", BUGS)
def test_the_simulator_finds(bug: str) -> None:
    # One after the other: to start processes takes longer than a dozen worlds.
    for seed in range(SEEDS_MAX):
        outcome = run_seed(seed, bug=bug)
        if outcome.error is not None:
            print(f"{bug}: found by {outcome}")
            slips = ("AttributeError", "NameError", "TypeError")
            assert not outcome.error.startswith(slips), f"not planted: {outcome.trace}"
            assert run_seed(outcome.seed).error is None, "without the bug as well"
            return
    pytest.fail(f"{bug}: no seed below {SEEDS_MAX} finds it")


def test_there_are_six_and_one_is_in_the_dispatcher() -> None:
    assert len(BUGS) == 6
    assert [kind for kind, _, _ in BUGS.values()].count(RoundDispatcher) == 1
