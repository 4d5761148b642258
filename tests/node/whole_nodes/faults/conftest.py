"""What the tests of faults among whole nodes share."""

from __future__ import annotations

import pytest

from tests.support.noted_offences import NotedOffences, noted_offences


@pytest.fixture
def offences(monkeypatch: pytest.MonkeyPatch) -> NotedOffences:
    """Offences for which any node blamed any peer."""
    return noted_offences(monkeypatch)
