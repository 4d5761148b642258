"""The sequences of a step that each process takes.

Processes of one and the same device model get equal shares from the first step to the last: sums
are then taken in the same order in every run, and have the same bits. Unequal ones get shares by
their speeds, which are measured. A step ends with its slowest process, so the best shares make all
end together.
"""

from __future__ import annotations

from collections.abc import Sequence

_WARM_UP_STEPS = 2
"""Steps that are not measured: kernels are loaded and caches are filled."""

_NEWEST_WEIGHT = 0.2
"""Weight of the newest step in a mean speed. One slow step of another program's moves little."""

_GAIN_MIN = 1.03
"""Factor by which other shares must make a step faster, by the means. Each change changes sums by
their rounding."""


class Shares:
    """The shares of a step."""

    def __init__(self, num_sequences: int, num_ranks: int, *, by_speed: bool) -> None:
        """`num_sequences`: of a step, at least one for each process. `by_speed`: whether the
        processes may have different speeds."""
        self._num_sequences, self._by_speed = num_sequences, by_speed
        self.counts = divided(num_sequences, [1.0] * num_ranks)
        """Sequences of each process."""
        self._speeds: list[float] = []
        """Mean sequences a second of each process; empty before the first measurement."""
        self._num_steps = 0

    def measured(self, seconds: Sequence[float]) -> None:
        """Takes in the time that each process needed for its share of a step."""
        self._num_steps += 1
        if not self._by_speed or self._num_steps <= _WARM_UP_STEPS:
            return
        speeds = [count / max(time, 1e-9) for count, time in zip(self.counts, seconds, strict=True)]
        if self._speeds:
            old, new = 1.0 - _NEWEST_WEIGHT, _NEWEST_WEIGHT
            speeds = [old * a + new * b for a, b in zip(self._speeds, speeds, strict=True)]
        self._speeds = speeds
        better = divided(self._num_sequences, speeds)
        if self._step_seconds(self.counts) > _GAIN_MIN * self._step_seconds(better):
            self.counts = better

    def _step_seconds(self, counts: Sequence[int]) -> float:
        return max(count / speed for count, speed in zip(counts, self._speeds, strict=True))


def divided(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole shares of `total` in proportion to positive weights, each at least 1."""
    assert total >= len(weights)
    left = total - len(weights)
    exact = [left * weight / sum(weights) for weight in weights]
    counts = [int(each) for each in exact]
    # The largest rests get one more; of equal ones the first.
    order = sorted(range(len(weights)), key=lambda n: (counts[n] - exact[n], n))
    for n in order[: left - sum(counts)]:
        counts[n] += 1
    return tuple(1 + count for count in counts)
