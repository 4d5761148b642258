"""Are honest nodes credited in their rounds while three of eight lie?

`python -m tests.benchmarks.attacks C8 C9 C10` shows all attacks, with three codecs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rogue.hostile_minority import CREDITED_SHARE_MIN, HOSTILE, credited_under
from tests.support.lies import MIXED
from tests.support.measured import measured

pytestmark = pytest.mark.usefixtures("quiet")

ROUNDS = 6
"""In which each honest node has to be credited: one without it would be a sixth of them."""

SOUND = 10.0
"""Honest parameters stay below this."""


@pytest.mark.long
def test_honest_nodes_are_credited_beside_three_of_eight_that_lie(tmp_path: Path) -> None:
    found = credited_under(tmp_path, "int8", MIXED, ROUNDS)
    measured(f"int8, {MIXED}: {found}")
    assert found.lowest_share >= CREDITED_SHARE_MIN
    assert found.largest < SOUND
    assert len(found.hostile) == len(HOSTILE)
    assert min(found.hostile) > 0, "the attack did not take place"
