"""A limit of the line as its owner writes it: Mbit/s, for the whole day or a part of it.

It stands apart from `rate_limit`, which keeps the limit, because every command reads settings, and
one that only asks a node should not load trio for it.
"""

from __future__ import annotations

import re

import msgspec

from gossamer.node.base.work_hours import DAY_MINUTES

LIMIT_MBIT_MIN = 0.5
"""A ring with a slower member is no faster than without it, and control messages need some."""

LIMIT_MBIT_MAX = 100_000

PERIODS_MAX = 8
"""Periods of one day with limits of their own."""

_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(?:@(\d\d):(\d\d)-(\d\d):(\d\d))?")


class Period(msgspec.Struct, frozen=True):
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
    start, stop = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
    if max(minutes) > 59 or max(start, stop) > DAY_MINUTES:
        raise ValueError(f"{text!r} names no time of the day; {hint}")
    if start == stop:
        raise ValueError(f"{text!r}: the period has no length")
    return Period(mbit, start, stop)
