"""A run of a hundred thousand rounds is no larger on the disk, nor for a newcomer, than one of two
thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.protocol.policy.heads.chain_checkpoint import KEPT_ROUNDS
from gossamer.protocol.policy.heads.chain_summary import CHECKPOINT_PERIOD, MARKS_MAX
from tests.benchmarks.long_chain import measure

EARLY, LATE = 8 * CHECKPOINT_PERIOD, 391 * CHECKPOINT_PERIOD
"""Rounds: 2,048 and 100,096. As many follow the newest checkpoint."""

MARK_BYTES = 32
"""A checkpoint adds so much to the summary: the head that links name."""


@pytest.mark.long
def test_disk_and_join_are_flat(tmp_path: Path) -> None:
    early, late = measure(tmp_path, 4, [EARLY, LATE])
    num_marks = (LATE - EARLY) // CHECKPOINT_PERIOD
    assert num_marks < MARKS_MAX
    # The summary is in the member's start and beside its checkpoints; the numbers have more bytes.
    of_marks = num_marks * MARK_BYTES
    assert late.rounds_learned == early.rounds_learned < KEPT_ROUNDS
    assert late.join_bytes <= 1.02 * early.join_bytes + of_marks
    assert late.disk_bytes <= 1.02 * early.disk_bytes + 2 * of_marks
    assert late.join_bytes < 1_000_000
    assert late.disk_bytes < 5_000_000
