"""Threads that take turns far more often than usual, so that a race shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def eager_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
