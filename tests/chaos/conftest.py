"""One swarm for all tests of this folder, on machines that they may break."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))  # daemons.py
sys.path.insert(0, str(Path(__file__).parent))  # the modules beside this one

from lab import Lab, Machine
from netns import NamespacesUnavailable
from runs import OPTIONS, SLOW_RINGS
from watch import Watch

NUM_PEERS = 4


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A machine more than peers. Who of them is in the run later is the tests' affair."""
    with contextlib.ExitStack() as stack:
        rates = [SLOW_RINGS.mbit] * (NUM_PEERS + 1)
        try:
            lab = stack.enter_context(Lab(tmp_path_factory.mktemp("chaos"), rates, OPTIONS))
        except NamespacesUnavailable as reason:
            pytest.skip(str(reason))
        SLOW_RINGS.found(lab, NUM_PEERS)
        yield lab


@pytest.fixture(scope="module")
def watch(lab: Lab) -> Iterator[Watch]:
    with Watch(lab, SLOW_RINGS.model_bytes) as watch:
        yield watch


@pytest.fixture(scope="module")
def undisturbed(lab: Lab, watch: Watch) -> float:
    """Seconds of a round of the first peers that nothing happens to."""
    machines = lab.machines[:NUM_PEERS]
    watch.together(machines)
    return watch.together(machines, after=watch.newest_round(machines))


@pytest.fixture
def machines(lab: Lab, undisturbed: float) -> list[Machine]:
    """Whose daemons are in the run, all running and on good lines, whatever a test before did."""
    members = [machine for machine in lab.machines if machine.is_member]
    lab.unite()
    for machine in members:
        machine.mend()
        machine.set_rate(SLOW_RINGS.mbit)
        machine.thaw()
        if not machine.is_running:
            machine.again()
    return members
