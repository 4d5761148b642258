"""How the sequences of a step are divided among devices."""

from __future__ import annotations

import pytest

from gossamer.trainer.ranks.shares import Shares, divided


@pytest.mark.parametrize(
    ("total", "weights", "counts"),
    [
        (4, [1.0, 1.0], (2, 2)),
        (5, [1.0, 1.0], (3, 2)),
        (2, [100.0, 1.0], (1, 1)),
        (16, [3.0, 1.0], (12, 4)),
        (7, [1.0, 2.0, 4.0], (2, 2, 3)),
    ],
)
def test_shares_are_whole_and_nobody_has_none(
    total: int, weights: list[float], counts: tuple[int, ...]
) -> None:
    assert divided(total, weights) == counts


def steps(shares: Shares, seconds_per_sequence: list[float], num_steps: int) -> None:
    for _ in range(num_steps):
        counts = zip(shares.counts, seconds_per_sequence, strict=True)
        shares.measured([count * seconds for count, seconds in counts])


def test_unequal_devices_end_together() -> None:
    shares = Shares(64, 2, by_speed=True)
    steps(shares, [1.0, 3.0], 20)
    assert shares.counts == (48, 16)


def test_shares_stay_where_little_would_be_gained() -> None:
    shares = Shares(64, 2, by_speed=True)
    steps(shares, [1.0, 1.03], 50)
    assert shares.counts == (32, 32)


def test_equal_devices_keep_equal_shares_whatever_is_measured() -> None:
    shares = Shares(64, 2, by_speed=False)
    steps(shares, [1.0, 3.0], 20)
    assert shares.counts == (32, 32)
