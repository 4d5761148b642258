"""Virtual time that jumps as soon as no task can run, and looks at what others do. For tests.

`trio.testing.MockClock(autojump_threshold=0)` jumps as well, with one pass of trio's loop more for
each jump: that pass finds that nothing happens, and the next one runs the tasks whose time has
come. A swarm in memory jumps ten thousand times in a minute.

A test that waits for a condition of a swarm looks every few milliseconds. Most looks come when no
task has run since the last one, and would see the same. `until` leaves these out under a
`JumpingClock`. All others are at the same times as with `trio.sleep` between two looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT


class JumpingClock(trio.abc.Clock):
    """Stands still while a task can run, then jumps to the next deadline or look. Begins at 0."""

    def __init__(self) -> None:
        self._now = 0.0
        self._looks: dict[trio.lowlevel.Task, tuple[float, float]] = {}
        """Tasks that look at what others do: the time of the next look, and between two looks."""
        self._looking: list[trio.lowlevel.Task] = []
        """Tasks that the newest jump let look, if it let nothing else happen."""
        self._seen: set[trio.lowlevel.Task] = set()
        """Tasks that have looked at all that has happened."""
        self._has_acted = True
        """Whether a task that looks may have done something else."""

    def start_clock(self) -> None:
        """See `trio.abc.Clock`."""

    def current_time(self) -> float:
        """See `trio.abc.Clock`."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jumps to the deadline, or to a look before it: trio asks only if no task can run.

        Tasks in `trio.testing.wait_all_tasks_blocked` come first. The time stands still for them.
        """
        if GLOBAL_RUN_CONTEXT.runner.waiting_for_idle:
            return math.inf
        if self._looking and not self._has_acted and self._looks.keys() >= set(self._looking):
            self._seen.update(self._looking)
            self._leave_out_looks_before(deadline)
        else:
            self._seen.clear()
        self._has_acted = False
        time = min(deadline, *(look for look, _ in self._looks.values()), math.inf)
        if time == math.inf:
            return math.inf
        self._now = max(self._now, time)
        looking = [task for task, (look, _) in self._looks.items() if look <= self._now]
        for task in looking:
            del self._looks[task]
            trio.lowlevel.reschedule(task)
        self._looking = looking if self._now < deadline else []
        return 0.0

    def _leave_out_looks_before(self, deadline: float) -> None:
        """Nothing changes before the deadline, or before a look of a task that has not seen all."""
        others = (look for task, (look, _) in self._looks.items() if task not in self._seen)
        until_then = min(deadline, *others, math.inf)
        if until_then == math.inf:
            return
        for task in self._seen & self._looks.keys():
            look, seconds = self._looks[task]
            while look < until_then:
                look += seconds  # as sleeps between the looks would add up
            self._looks[task] = look, seconds

    async def look_after(self, seconds: float, *, has_acted: bool) -> None:
        """Waits for the time of the next look at what others do.

        Args:
            has_acted: whether the task may have done something else since its last look.
        """
        self._has_acted = self._has_acted or has_acted
        task = trio.lowlevel.current_task()
        self._looks[task] = self._now + seconds, seconds

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self._looks[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


async def until(condition: Callable[[], bool], look_seconds: float) -> None:
    """Looks now and every `look_seconds` until a condition of what other tasks do holds.

    A condition of the time alone can be seen late under a `JumpingClock`.
    """
    clock, has_acted = trio.lowlevel.current_clock(), True
    while not condition():
        if isinstance(clock, JumpingClock):
            await clock.look_after(look_seconds, has_acted=has_acted)
        else:
            await trio.sleep(look_seconds)
        has_acted = False
