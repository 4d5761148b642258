"""Some swarms of whole nodes under faults. `run.py` runs any number of them."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from tests.swarms.swarm_story import FAULTS, MODES, draw
from tests.swarms.swarm_world import replay, run_seed

SEEDS = {
    "distro": range(6),
    "signed steps": range(2),
    "fp32": (0,),
    "sparse": (1,),
    "sparse sums": (3,),
    "fragments": (2,),
    "int4": (77007,),  # all start again while one is cut off, and find the others first
}
"""Some seconds of a processor."""

NUM_STORIES = 1000

first_run = cache(run_seed)
"""What happened in a seed's swarm when it was run first: each is run once for all tests that ask
how a run goes."""


@pytest.mark.parametrize(
    ("mode", "seed"), [(mode, seed) for mode, seeds in SEEDS.items() for seed in seeds]
)
def test_a_swarm_agrees_at_any_time_and_is_one_again_when_all_has_healed(
    mode: str, seed: int
) -> None:
    print(f"replay: {replay(seed, mode)}")
    first_run(seed, mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_fault_meets_swarms_of_every_size(mode: str) -> None:
    stories = [draw(seed, mode) for seed in range(NUM_STORIES)]
    met = {(fault.kind, len(story.names)) for story in stories for fault in story.faults}
    assert met == set(product(FAULTS, (3, 4, 5, 6)))
    assert len({fault.seconds for story in stories for fault in story.faults}) > NUM_STORIES


def test_a_seed_decides_everything() -> None:
    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert first_run(3, "distro") == run_seed(3, "distro")
