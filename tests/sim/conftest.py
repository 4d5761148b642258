"""The worlds of `test_simulator`, simulated beside the tests that come before it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.pool import Outcome, simulating
from tests.support.long_tests import is_asked_for

NUM_WORLDS = 2000

NUM_WORLDS_FIRST = 300
"""Worlds without `--long`. They meet all that the two thousand meet: the rarest case, a head that
is out of reach, comes in the worlds of seeds 112 and 259."""


@pytest.fixture(scope="session")
def num_worlds(request: pytest.FixtureRequest) -> int:
    file = Path(__file__).with_name("test_simulator.py")
    return NUM_WORLDS if is_asked_for(request.config, file) else NUM_WORLDS_FIRST


@pytest.fixture(scope="session")
def outcomes(num_worlds: int) -> Iterator[Iterator[Outcome]]:
    """What becomes of each world, in the order of the seeds."""
    with simulating(range(num_worlds)) as outcomes:
        yield outcomes


@pytest.fixture(scope="session", autouse=True)
def _early(request: pytest.FixtureRequest) -> None:
    """Begins with the worlds at once where a test will ask for them. The other tests use one
    processor, and would leave the others idle."""
    # Of several processes of xdist one alone has that test, and does not know yet that it will.
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    wants = any("outcomes" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if wants and not is_worker:
        request.getfixturevalue("outcomes")
