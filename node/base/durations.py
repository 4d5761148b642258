"""Lengths of time, as people write them."""

from __future__ import annotations

import math
import re

_DURATION = re.compile(r"([0-9]{1,9})\s*(s|m|min|h|d)")
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}

FOREVER = "forever"

_SERVE_SECONDS_MAX = 3650 * 86_400
"""Ten years: a longer time is meant to have no end."""


def parse_duration(text: str, seconds_min: int, seconds_max: int) -> int:
    """Returns the seconds of a text such as `90s`, `5min`, `2h` or `7d`.

    Raises:
        ValueError: it is none, or shorter or longer than allowed; the message is for people.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no duration; write it as 90s, 30min, 2h or 7d")
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]]
    if not seconds_min <= seconds <= seconds_max:
        least, most = format_duration(seconds_min), format_duration(seconds_max)
        raise ValueError(f"{text} is not allowed: {least} to {most}")
    return seconds


def parse_serve_after(text: str) -> float:
    """Returns the seconds of a text such as `12h`; 0 for `0`, and inf for `forever`.

    Raises:
        ValueError: as `parse_duration`.
    """
    text = text.strip().lower()
    if text == FOREVER:
        return math.inf
    if text == "0":
        return 0.0
    try:
        return parse_duration(text, 1, _SERVE_SECONDS_MAX)
    except ValueError as error:
        raise ValueError(f"{error}; 0 and {FOREVER} are allowed, too") from None


def format_duration(seconds: int) -> str:
    """Returns a number of seconds in the largest unit that it is a multiple of, such as `2h`."""
    for unit in ("d", "h", "min"):
        if seconds and seconds % _UNIT_SECONDS[unit] == 0:
            return f"{seconds // _UNIT_SECONDS[unit]}{unit}"
    return f"{seconds}s"
