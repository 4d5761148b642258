"""Error feedback of a sparse run."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.trainer.sparse import accumulate, settle


def top(values: np.ndarray, number: int) -> np.ndarray:
    kept = np.zeros_like(values)
    strongest = np.argsort(-np.abs(values), kind="stable")[:number]
    kept[strongest] = values[strongest]
    return kept


def test_what_is_not_sent_waits_and_is_sent_at_last() -> None:
    error = np.zeros(8, np.float32)
    delta = np.array([8, 7, 6, 5, 4, 3, 2, 1], np.float32)
    sent = np.zeros_like(delta)
    for number in range(4):
        accumulate(error, delta if number == 0 else np.zeros_like(delta), decay=1.0)
        part = top(error, 2)
        settle(error, part)
        sent += part
    assert (sent == delta).all()
    assert not error.any()


def test_what_waits_decays() -> None:
    error = np.zeros(2, np.float32)
    for _ in range(200):
        accumulate(error, np.ones(2, np.float32))
    assert error[0] == pytest.approx(20.0, rel=1e-3), "1 / (1 - 0.95)"
