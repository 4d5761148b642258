"""Numbers with units, for people."""

from __future__ import annotations

import math
import re


def format_bytes(num_bytes: float) -> str:
    """Returns text such as `1.5 GB`, in powers of 1000 as networks and disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


_SECONDS_OF = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,6})([smhd])")

FOREVER = "forever"


def duration_seconds(text: str) -> float:
    """Returns the seconds of a text such as `30m`, `12h` or `7d`; inf for `forever`.

    Raises:
        ValueError: the text is no duration; the message is for people.
    """
    if text == FOREVER:
        return math.inf
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time; write 0, 30m, 12h, 7d or {FOREVER}")
    return int(match[1]) * _SECONDS_OF[match[2]]


def format_seconds(seconds: float) -> str:
    """Returns text such as `90 s`, `5 min`, `24 h` or `3 d`."""
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:g} d"
    if seconds >= 3600:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 60:g} min" if seconds >= 120 else f"{seconds:g} s"
