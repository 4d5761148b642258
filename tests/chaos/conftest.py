"""One swarm for all tests of this folder, on machines that they may break."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator

import pytest

from tests.chaos.runs import MODES, OPTIONS, PEERS, SLOW_RINGS, Run
from tests.chaos.watch import Watch
from tests.support.lab import Lab, Machine
from tests.support.netns import NamespacesUnavailable

UNDISTURBED_ROUNDS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mode", choices=MODES, default="fp32", help="of averaging, in tests/chaos")


@pytest.fixture(scope="module")
def run(pytestconfig: pytest.Config) -> Run:
    """The run to train, in the mode of the command line."""
    # Not known where these tests are run together with others.
    return SLOW_RINGS.averaging(pytestconfig.getoption("--mode", "fp32"))


@pytest.fixture(scope="module")
def num_peers() -> int:
    return PEERS


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, run: Run, num_peers: int) -> Iterator[Lab]:
    """A machine more than peers. The tests decide which of them are in the run later."""
    with contextlib.ExitStack() as stack:
        rates = [run.mbit] * (num_peers + 1)
        try:
            lab = stack.enter_context(Lab(tmp_path_factory.mktemp("chaos"), rates, OPTIONS))
        except NamespacesUnavailable as reason:
            pytest.skip(str(reason))
        run.found(lab, num_peers)
        yield lab


@pytest.fixture(scope="module")
def watch(lab: Lab, run: Run, num_peers: int) -> Iterator[Watch]:
    ring_bytes = run.ring_bytes(num_peers)
    with Watch(lab, ring_bytes, trains_in_ring=run.trains_in_ring) as watch:
        yield watch


@pytest.fixture(scope="module")
def undisturbed(lab: Lab, run: Run, watch: Watch, num_peers: int) -> float:
    """Seconds of a round of the first peers that nothing happens to, the median of some."""
    machines = lab.machines[:num_peers]
    # Earlier rounds are quicker than usual, because no peer trains meanwhile.
    newest, seconds = run.warmup_rounds + 1, []
    for _ in range(UNDISTURBED_ROUNDS):
        seconds.append(watch.together(machines, after=newest))
        newest = watch.newest_round(machines)
    return statistics.median(seconds)


@pytest.fixture
def machines(lab: Lab, run: Run, undisturbed: float) -> list[Machine]:
    """The machines whose daemons are in the run. All run and have good lines, whatever a test
    before did."""
    members = [machine for machine in lab.machines if machine.is_member]
    lab.unite()
    for machine in members:
        machine.mend()
        machine.set_rate(run.mbit)
        machine.thaw()
        if not machine.is_running:
            machine.again()
    return members
