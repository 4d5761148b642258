"""A token bucket: it fills at a steady rate and bounds how fast a peer may go. No clock."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

THROTTLES_MAX = 1024
"""Throttles of one kind that are kept. When there are more, those that are full again are
forgotten, and else the oldest one."""

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Rate:
    """A rate: `per_second` on average, and `burst` at once after a pause."""

    per_second: float
    burst: float


class Throttle:
    """One bucket. Events carry the local clock in seconds."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._tokens = rate.burst
        self._filled_seconds = float("-inf")

    def take(self, now: float, amount: float = 1.0) -> float:
        """Takes `amount` now. Returns the seconds to wait before going on; 0.0: there was enough.

        The bucket may go below zero: a message that was read counts, and the next one waits.
        """
        self._fill(now)
        self._tokens -= amount
        return max(0.0, -self._tokens / self._rate.per_second)

    def try_take(self, now: float, amount: float = 1.0) -> bool:
        """Takes `amount` if the bucket holds it. Returns whether it did."""
        self._fill(now)
        if self._tokens < amount:
            return False
        self._tokens -= amount
        return True

    def holds(self, now: float, amount: float = 1.0) -> bool:
        """Returns whether `try_take` would take `amount`."""
        self._fill(now)
        return self._tokens >= amount

    def give_back(self, amount: float = 1.0) -> None:
        """Puts back what was taken for nothing; the bucket holds no more than its burst."""
        self._tokens = min(self._rate.burst, self._tokens + amount)

    def is_full(self, now: float) -> bool:
        """Returns whether the bucket is full, so that it need not be kept."""
        self._fill(now)
        return self._tokens >= self._rate.burst

    def _fill(self, now: float) -> None:
        if now > self._filled_seconds:
            gained = (now - self._filled_seconds) * self._rate.per_second
            self._tokens = min(self._rate.burst, self._tokens + gained)
            self._filled_seconds = now


def throttle_of(kept: dict[_Key, Throttle], key: _Key, rate: Rate, now: float) -> Throttle:
    """Returns the throttle of a peer, or of whatever the key names. At most `THROTTLES_MAX` are
    kept."""
    throttle = kept.get(key)
    if throttle is None:
        if len(kept) >= THROTTLES_MAX:
            for idle in [each for each, one in kept.items() if one.is_full(now)]:
                del kept[idle]
        if len(kept) >= THROTTLES_MAX:
            del kept[next(iter(kept))]
        throttle = kept[key] = Throttle(rate)
    return throttle
