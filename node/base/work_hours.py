"""The hours of the week in which a node may train, as its owner writes them.

`22:00-07:00` means every day. `mon-fri 22:00-07:00, sat-sun 00:00-24:00` means other hours at the
weekend; each group ends with a comma. A period that ends at or before its start goes on into the
next day, so the one that begins on Friday at 22:00 ends on Saturday.

The hours are those that a clock on the wall of this place shows. So in a night in which the clock
is set, a period may be an hour shorter or longer.
"""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

import msgspec

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = len(DAYS) * DAY_MINUTES

GROUPS_MAX = 32
"""Groups in one setting: four periods for every day."""

_TIMES = re.compile(r"(\d\d?):(\d\d)-(\d\d?):(\d\d)", re.ASCII)
_HINT = "write them as 22:00-07:00, or as mon-fri 22:00-07:00, sat-sun 00:00-24:00"

_STEP_SECONDS = 15 * 60
"""Places change their offset from UTC by whole quarters of an hour, at the beginning of one: within
a quarter of an hour of UTC the clock on the wall runs evenly."""

_SEARCH_SECONDS = 16 * 24 * 3600
"""A period begins again within a week, or within two if the clock is set forward over one. Two days
more cover every setting of the clock."""


class WorkHours(msgspec.Struct, frozen=True):
    """The minutes of a week in which the node may train."""

    minutes: bytes
    """1 for each minute from Monday 00:00 in which it may, and 0 otherwise; `WEEK_MINUTES` long."""

    def holds(self, unix_seconds: float, zone: tzinfo | None = None) -> bool:
        """Returns whether a moment lies in the hours. `zone`: None means that of this machine."""
        return bool(self.minutes[_minute_of_week(unix_seconds, zone)])

    def next_start(self, unix_seconds: float, zone: tzinfo | None = None) -> float:
        """Returns the first moment from `unix_seconds` on that lies in the hours (Unix time)."""
        minutes = self.minutes + self.minutes  # a step may reach into the next week
        step = unix_seconds
        while step < unix_seconds + _SEARCH_SECONDS:
            end = (step // _STEP_SECONDS + 1) * _STEP_SECONDS
            first = _minute_of_week(step, zone)
            num_minutes = -int((step - end) // 60)
            found = minutes.find(1, first, first + num_minutes)
            if found >= 0:
                return max(unix_seconds, step // 60 * 60 + 60 * (found - first))
            step = end
        raise AssertionError("every setting has a period in each week")


def parse_work_hours(text: str) -> WorkHours:
    """Parses hours in the form that stands at the top of this module.

    Raises:
        ValueError: the text is no such hours; the message is for people.
    """
    groups = text.lower().split(",")
    if len(groups) > GROUPS_MAX:
        raise ValueError(f"{len(groups)} groups of hours; allowed: up to {GROUPS_MAX}")
    minutes = bytearray(WEEK_MINUTES)
    for group in groups:
        *days, times = group.split() or [""]
        start, length = _parse_times(times, text)
        for day in _parse_days(days, text):
            for minute in range(start, start + length):
                minutes[(day * DAY_MINUTES + minute) % WEEK_MINUTES] = 1
    return WorkHours(bytes(minutes))


def _parse_times(times: str, text: str) -> tuple[int, int]:
    """Returns the first minute of the day and the number of minutes."""
    match = _TIMES.fullmatch(times)
    if match is None:
        raise ValueError(f"{text!r} are no hours; {_HINT}")
    start_hour, start_minute, end_hour, end_minute = (int(part) for part in match.groups())
    start, end = 60 * start_hour + start_minute, 60 * end_hour + end_minute
    if max(start_minute, end_minute) > 59 or start >= DAY_MINUTES or end > DAY_MINUTES:
        raise ValueError(f"{text!r}: {times} names no time of the day; {_HINT}")
    if start == end:
        raise ValueError(f"{text!r}: {times} has no length; the whole day is 00:00-24:00")
    return start, end - start if end > start else end - start + DAY_MINUTES


def _parse_days(words: list[str], text: str) -> set[int]:
    """Returns the numbers of the days, from 0 for Monday; no word means all days."""
    days = set() if words else set(range(len(DAYS)))
    for word in words:
        first, dash, last = word.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"{text!r}: {word} is no day; the days are {', '.join(DAYS)}")
        number = DAYS.index(first)
        days.add(number)
        while dash and number != DAYS.index(last):
            number = (number + 1) % len(DAYS)
            days.add(number)
    return days


def _minute_of_week(unix_seconds: float, zone: tzinfo | None) -> int:
    local = datetime.fromtimestamp(unix_seconds, zone)
    return local.weekday() * DAY_MINUTES + local.hour * 60 + local.minute
