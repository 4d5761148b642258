"""The clock that stands still while this process does not run: stopped, suspended or starved.

    awake = AwakeClock()
    await nursery.start(awake.run)     # one task, which ticks

    awake.awake_seconds()              # measures the silence of others
    awake.awake_since(seconds)         # how long this process has run since that local time
    awake.stalls_since(seconds)        # the stalls that have ended since

Code that judges the silence of another process or peer has to ask this clock. A stopped process
finds all its timers expired when it goes on, before it has read a byte of what arrived meanwhile.
Every method looks at the local clock first, so the answer is right whichever task runs first then.

A stall is a time of `STALL_SECONDS_MIN` or more between two looks. The monotonic clock does not
count while the machine is suspended. `Stall.lost_seconds` has that time too. Two values of
`trio.current_time()` do not have it between them, so `awake_since` does not subtract it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from gossamer.node.base.ticks import TICK_SECONDS, sleep_to_tick

if TYPE_CHECKING:
    from trio_typing import TaskStatus

STALL_SECONDS_MIN = 1.0
"""The event loop of a crowded machine is late by tenths of a second every minute. All limits of
silence are some seconds."""

STALLS_KEPT = 64
"""Stalls that are remembered. Callers ask about the last minutes only."""


@dataclass(frozen=True)
class Stall:
    """A time in which this process did not run."""

    began_seconds: float
    """Local clock at the last look before it. The stall began up to `TICK_SECONDS` later."""
    ended_seconds: float
    """Local clock at the first look after it."""
    lost_seconds: float
    """Its duration for the others, including the time for which the machine was suspended."""


def suspended_seconds() -> float:
    """Returns how long this machine was suspended since it started; 0 if the system does not
    say."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return 0.0
    return time.clock_gettime(boottime) - time.clock_gettime(time.CLOCK_MONOTONIC)


class AwakeClock:
    """Looks at the local clock again and again, and remembers when it could not.

    Before `run` has begun the clock sees no stall: it is the local clock.
    """

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
        self._looked_seconds: float | None = None
        self._suspended_seconds = 0.0
        self._stalled_seconds = 0.0

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ticks until cancelled. `nursery.start` returns when stalls are seen."""
        self._looked_seconds, self._suspended_seconds = self._clock(), self._suspended()
        task_status.started()
        while True:
            self._look()
            await sleep_to_tick(TICK_SECONDS)

    def stalls_since(self, seconds: float) -> tuple[Stall, ...]:
        """Returns the stalls that ended after that local time, oldest first, including one that
        ends with this call."""
        self._look()
        return tuple(stall for stall in self._stalls if stall.ended_seconds > seconds)

    def awake_since(self, seconds: float) -> float:
        """Returns the seconds from that local time until now without the stalls in between."""
        asleep = sum(
            stall.ended_seconds - max(stall.began_seconds, seconds)
            for stall in self.stalls_since(seconds)
        )
        return max(0.0, self._clock() - seconds - asleep)

    def awake_seconds(self) -> float:
        """Returns the local clock without all stalls so far. It never goes back or jumps."""
        self._look()
        return self._clock() - self._stalled_seconds

    def _look(self) -> None:
        if self._looked_seconds is None:
            return
        now, suspended = self._clock(), self._suspended()
        lost = now - self._looked_seconds + max(0.0, suspended - self._suspended_seconds)
        if lost >= STALL_SECONDS_MIN:
            self._stalls.append(Stall(self._looked_seconds, now, lost))
            self._stalled_seconds += now - self._looked_seconds
        self._looked_seconds, self._suspended_seconds = now, suspended
