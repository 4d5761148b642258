"""The worlds of `test_simulator`, simulated beside the tests that come before it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import cast

import pytest

from tests.sim.pool import Outcome, simulating

NUM_WORLDS = 2000

NUM_WORLDS_FIRST = 300
"""Worlds without `--long`. They meet all that the others meet: the rarest case, a head that is out
of reach, comes in the worlds of seeds 112 and 259."""

FIRST, OTHERS = range(NUM_WORLDS_FIRST), range(NUM_WORLDS_FIRST, NUM_WORLDS)

SEEDS = "seeds"
"""The argument of the tests that ask for worlds."""


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Iterator[Outcome]]:
    """What becomes of each world that tests of this session ask for, in the order of the tests and
    of their seeds. No world is simulated twice."""
    with simulating(chain.from_iterable(_asked_for(request))) as outcomes:
        yield outcomes


def _asked_for(request: pytest.FixtureRequest) -> list[Sequence[int]]:
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    params = (item.callspec.params for item in items if "outcomes" in item.fixturenames)
    return [cast(Sequence[int], each[SEEDS]) for each in params]


@pytest.fixture(scope="session", autouse=True)
def _early(request: pytest.FixtureRequest) -> None:
    """Begins with the worlds at once where a test will ask for them. The other tests use one
    processor, and would leave the others idle."""
    # Of several processes of xdist one alone has that test, and does not know yet that it will.
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if _asked_for(request) and not is_worker:
        request.getfixturevalue("outcomes")
