"""A sparse run with overlap on machines that break: the mode that is least like the default one.

The short set of `test_chaos` in every mode takes as long each time; see there for how to run it.
"""

from __future__ import annotations

import pytest
from evidence import Effort, check_round
from lab import Machine
from runs import SLOW_RINGS, Run
from watch import Watch

pytestmark = pytest.mark.e2e

KILL_SECONDS = 2.0
"""What a death may add to a round."""


@pytest.fixture(scope="module")
def run() -> Run:
    return SLOW_RINGS.averaging("sparse+overlap")


@pytest.fixture(scope="module")
def num_peers() -> int:
    return 3


def test_one_dies_in_the_middle_of_a_ring_and_comes_back(
    machines: list[Machine], watch: Watch, undisturbed: float
) -> None:
    watch.together(machines)
    ring = watch.mid_ring(machines)
    *others, victim = ring.members
    efforts = [Effort(machine) for machine in others]
    victim.power_off()
    check_round(watch, others, ring.number, undisturbed + KILL_SECONDS, undisturbed)
    victim.again()
    watch.together(machines)
    assert watch.num_digests_compared() > 0
    for effort in efforts:
        effort.check_kept()
