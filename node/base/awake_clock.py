"""Notices that this process itself did not run: stopped, suspended with its machine, or starved.

    stalls = AwakeClock()
    await nursery.start(stalls.run, on_stall)   # one task, which ticks

    stalls.last()                           # the newest Stall, or None
    stalls.last().ended_seconds             # when it ended, in trio.current_time() terms
    stalls.awake_since(seconds)             # how long we really ran since then
    stalls.awake_seconds()                  # a clock that stands still with us: what others'
                                            # silence may be measured with

Who waits for another's sign of life has to ask, because a stopped process finds all its timers
expired at once when it goes on, before it has read a byte of what the others sent meanwhile. Every
method looks at the clock first, so the answer is right whichever task happens to run first then.

A stall is `STALL_SECONDS_MIN` or more between two looks. A suspended machine stops the monotonic
clock; what passed then is in `Stall.lost_seconds`, but not between two values of
`trio.current_time()`, and `awake_since` does not take it away twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from trio_typing import TaskStatus

TICK_SECONDS = 0.25
"""Four wake-ups a second, beside the ten with which connections are watched."""

STALL_SECONDS_MIN = 1.0
"""An event loop on a crowded machine is late by tenths of a second every minute; no silence is
judged by less than some seconds."""

STALLS_KEPT = 64
"""For `awake_since`: nobody asks about more than the last minutes."""


@dataclass(frozen=True)
class Stall:
    """A time in which this process did not run."""

    began_seconds: float
    """Local clock at the last look before it: it began then or up to `TICK_SECONDS` later."""
    ended_seconds: float
    """Local clock at the first look after it."""
    lost_seconds: float
    """How long it lasted, for the others: with the time for which the machine was suspended."""


def suspended_seconds() -> float:
    """How long this machine was suspended since it started; 0 where the system does not say."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return 0.0
    return time.clock_gettime(boottime) - time.clock_gettime(time.CLOCK_MONOTONIC)


class AwakeClock:
    """Looks at the clock again and again, and remembers when it could not."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = trio.current_time,
        suspended: Callable[[], float] = suspended_seconds,
    ) -> None:
        """The clocks are arguments for tests."""
        self._clock = clock
        self._suspended = suspended
        self._stalls: deque[Stall] = deque(maxlen=STALLS_KEPT)
        self._untold: deque[Stall] = deque(maxlen=STALLS_KEPT)
        self._looked_seconds: float | None = None
        self._suspended_seconds = 0.0
        self._stalled_seconds = 0.0

    async def run(
        self,
        on_stall: Callable[[Stall], None] | None = None,
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Ticks until cancelled, and calls `on_stall` once for each stall.

        No stall is seen before this has begun (`nursery.start` waits for it).
        """
        self._looked_seconds, self._suspended_seconds = self._clock(), self._suspended()
        task_status.started()
        while True:
            self._look()
            while self._untold:
                stall = self._untold.popleft()
                if on_stall is not None:
                    on_stall(stall)
            await trio.sleep(TICK_SECONDS)

    def last(self) -> Stall | None:
        """The newest stall, also if it ended just now."""
        self._look()
        return self._stalls[-1] if self._stalls else None

    def awake_since(self, seconds: float) -> float:
        """Seconds from that local time until now, less those of stalls in between."""
        self._look()
        asleep = sum(
            stall.ended_seconds - max(stall.began_seconds, seconds)
            for stall in self._stalls
            if stall.ended_seconds > seconds
        )
        return max(0.0, self._clock() - seconds - asleep)

    def awake_seconds(self) -> float:
        """The local clock less all stalls so far: it never goes back, and does not jump."""
        self._look()
        return self._clock() - self._stalled_seconds

    def _look(self) -> None:
        if self._looked_seconds is None:
            return
        now, suspended = self._clock(), self._suspended()
        lost = now - self._looked_seconds + max(0.0, suspended - self._suspended_seconds)
        if lost >= STALL_SECONDS_MIN:
            stall = Stall(self._looked_seconds, now, lost)
            self._stalls.append(stall)
            self._untold.append(stall)
            self._stalled_seconds += now - self._looked_seconds
        self._looked_seconds, self._suspended_seconds = now, suspended
