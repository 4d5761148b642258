"""A limit of the bytes that all connections of this node move in one direction."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

BITS = 8
MBIT = 1_000_000

BURST_SECONDS = 0.05
"""Data that an idle line may move at once, as time at the limit: 60 KB at 10 Mbit/s, so that a
video call beside it waits no longer than for one picture."""

PACKET_BYTES = 1448
"""Payload of one TCP segment on Ethernet with timestamps (RFC 7323)."""

HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP headers of one segment: the owner's line carries them too."""

LIMIT_MBIT_MIN = 0.5
"""A ring with a slower member is no faster than without it, and control messages need some."""

LIMIT_MBIT_MAX = 100_000

PERIODS_MAX = 8
"""Periods of one day with limits of their own."""

_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(?:@(\d\d):(\d\d)-(\d\d):(\d\d))?")


@dataclass(frozen=True)
class Period:
    """A limit, and the part of the day for which it holds."""

    mbit: float
    start_minute: int = 0
    stop_minute: int = 0
    """Minutes after midnight, local time; the same one as `start_minute` means the whole day."""

    def holds(self, minute: int) -> bool:
        """Returns whether the limit holds at a minute of the day."""
        if self.start_minute == self.stop_minute:
            return True
        if self.start_minute < self.stop_minute:
            return self.start_minute <= minute < self.stop_minute
        return minute >= self.start_minute or minute < self.stop_minute


def parse_limit(text: str) -> Period:
    """Parses `MBIT` or `MBIT@HH:MM-HH:MM`.

    Raises:
        ValueError: the text is neither; the message is for people.
    """
    match = _PERIOD.fullmatch(text)
    hint = "write it as 10 (Mbit/s) or 10@18:00-23:00"
    if match is None:
        raise ValueError(f"{text!r} is not a limit; {hint}")
    mbit = float(match[1])
    if not LIMIT_MBIT_MIN <= mbit <= LIMIT_MBIT_MAX:
        raise ValueError(f"{mbit:g} Mbit/s is not allowed: {LIMIT_MBIT_MIN} to {LIMIT_MBIT_MAX}")
    if match[2] is None:
        return Period(mbit)
    hours, minutes = (int(match[2]), int(match[4])), (int(match[3]), int(match[5]))
    if max(hours) > 24 or max(minutes) > 59:
        raise ValueError(f"{text!r} names no time of the day; {hint}")
    start, stop = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
    if start == stop:
        raise ValueError(f"{text!r}: the period has no length")
    return Period(mbit, start, stop)


def minute_of_day() -> int:
    """The present minute of the day, local time."""
    now = time.localtime()
    return 60 * now.tm_hour + now.tm_min


class RateLimit:
    """Lets bytes through at a limit that may depend on the time of the day.

    Callers are served in the order in which they ask.
    """

    def __init__(
        self, periods: Sequence[Period] = (), minute: Callable[[], int] = minute_of_day
    ) -> None:
        """
        Args:
            periods: the first one that holds decides; none means no limit.
            minute: the present minute of the day.
        """
        self._periods = tuple(periods)
        self._minute = minute
        self._free_seconds = -math.inf
        """Local time at which everything that was let through has left the line."""

    @property
    def bytes_per_second(self) -> float:
        """The present limit, headers included; inf for none."""
        if not self._periods:
            return math.inf
        minute = self._minute()
        holding = (period.mbit for period in self._periods if period.holds(minute))
        return next(holding, math.inf) * MBIT / BITS

    async def take(self, num_bytes: int) -> None:
        """Returns when so many payload bytes may go, at the limit with their packets' headers."""
        rate = self.bytes_per_second
        if rate == math.inf:
            return
        whole = num_bytes + HEADER_BYTES * math.ceil(num_bytes / PACKET_BYTES)
        now = trio.current_time()
        self._free_seconds = max(self._free_seconds, now - BURST_SECONDS) + whole / rate
        if self._free_seconds > now:
            await trio.sleep_until(self._free_seconds)


def rate_limit_of(periods: Sequence[str]) -> RateLimit:
    """Returns the limit that a setting such as `up_limit` describes. Raises ValueError."""
    return RateLimit([parse_limit(period) for period in periods])


@dataclass(frozen=True)
class Limits:
    """The limits of both directions."""

    up: RateLimit
    down: RateLimit


NO_LIMIT = RateLimit()
NO_LIMITS = Limits(NO_LIMIT, NO_LIMIT)
