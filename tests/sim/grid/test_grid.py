"""Rings in rows and columns, simulated with the machine of the product's ring."""

from __future__ import annotations

import pytest

from tests.sim.grid.member import Grid, Sum
from tests.sim.grid.world import World


@pytest.mark.parametrize("size", [2, 8, 16])
def test_without_faults_all_members_are_in_one_average_everywhere(size: int) -> None:
    outcome = World(Grid(size, size, size), seed=1, num_faults=0).run()
    assert (outcome.num_incomplete, outcome.num_different, outcome.num_wrong) == (0, 0, 0)
    assert outcome.lost == 0.0
    # A chunk makes 2 hops in each row for each of its members, and 2 in its column. The finisher's
    # neighbour in front of it sends no average back.
    hops = 2 * size * (size - 1) + 2 * (size - 1)
    assert outcome.num_messages == size * hops


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_members_that_fail_cost_parts_and_no_agreement(first: int) -> None:
    """One member of 64 that fails costs at most the parts of its row in its column, and its own."""
    for seed in range(first, first + 20):
        num_faults = seed % 4
        outcome = World(Grid(8, 8, 8), seed, num_faults).run()
        assert outcome.num_incomplete == 0, seed
        assert outcome.num_different == 0, seed
        assert outcome.num_wrong == 0, seed
        assert outcome.lost <= num_faults * 8 / (8 * 64), seed


def test_a_part_is_never_added_twice() -> None:
    one, other = Sum(5, ((0, 0b01),)), Sum(7, ((0, 0b10), (1, 0b01)))
    assert one.plus(other) == Sum(12, ((0, 0b11), (1, 0b01)))
    with pytest.raises(ValueError, match="twice"):
        one.plus(one.plus(other))
