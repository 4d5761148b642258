"""Error feedback of a sparse run."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.trainer.sparse import ERROR_DECAY, settle


def top(values: np.ndarray, number: int) -> np.ndarray:
    kept = np.zeros_like(values)
    strongest = np.argsort(-np.abs(values), kind="stable")[:number]
    kept[strongest] = values[strongest]
    return kept


def test_what_is_not_sent_waits_and_is_sent_at_last() -> None:
    delta = np.array([8, 7, 6, 5, 4, 3, 2, 1], np.float32)
    error, sent = delta.copy(), np.zeros_like(delta)
    for _ in range(4):
        part = top(error, 2)
        settle(error, part, decay=1.0)
        sent += part
    assert (sent == delta).all()
    assert not error.any()


def test_what_waits_decays() -> None:
    error, nothing = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for _ in range(200):
        error += 1.0
        settle(error, nothing)
    assert error[0] == pytest.approx(ERROR_DECAY / (1 - ERROR_DECAY), rel=1e-3)
