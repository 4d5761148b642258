"""Moments at which the tasks of a node that wait look again, all of them together.

A wake-up of the event loop costs as much as a turn of a task or two. Tasks that each sleep for a
second wake it up at as many moments as there are tasks; here it wakes up once for all of them.
"""

from __future__ import annotations

import math

import trio

TICK_SECONDS = 0.25
"""Interval of the moments. Four wake-ups a second are few, and a look that is this late is no
matter where the interval of the looks is longer."""

DISK_LOOKS = 3
"""Of so many looks, a second apart, one is for a file that a command has left. Each takes a turn of
a thread, and an order may wait for some seconds."""

_EARLY_SECONDS = 1e-6
"""A task that wakes up at a moment goes on to the next one, although times are rounded."""


def tick_after(seconds: float) -> float:
    """Returns the first moment (local clock) from which on that many seconds have passed."""
    until = trio.current_time() + seconds - _EARLY_SECONDS
    return math.ceil(until / TICK_SECONDS) * TICK_SECONDS


async def sleep_to_tick(seconds: float) -> None:
    """Sleeps for that long, and until the next moment."""
    await trio.sleep_until(tick_after(seconds))
