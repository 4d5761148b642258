"""Virtual time that jumps as soon as no task can run, and looks at what others do. For tests.

`trio.testing.MockClock(autojump_threshold=0)` jumps as well, with one pass of trio's loop more for
each jump: that pass finds that nothing happens, and the next one runs the tasks whose time has
come. A swarm in memory jumps ten thousand times in a minute.

A test that waits for a condition of a swarm looks every few milliseconds. Most looks come when no
task has run since the last one, and would see the same. `until` leaves these out under a
`JumpingClock`. All others are at the same times as with `trio.sleep` between two looks.

A deadline of trio costs a scope, its cancellation and an exception. A `Sleeper` wakes at the same
times without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
        self._sleepers: dict[trio.lowlevel.Task, float] = {}
        """Tasks that sleep until a time, and those that were woken before it and have not run."""
        self._asleep: set[trio.lowlevel.Task] = set()
        """Those of them that sleep."""

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
        sleepers = self._sleepers
        if sleepers:
            deadline = min(deadline, *sleepers.values())
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
        if sleepers and self._now >= deadline:
            for task in [task for task, seconds in sleepers.items() if seconds <= self._now]:
                del sleepers[task]
                self.wake(task)
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

    async def sleep_until(self, seconds: float) -> None:
        """Waits for a time to come, or for `wake`. A time that has come is one checkpoint."""
        task = trio.lowlevel.current_task()
        if seconds <= self._now:
            await trio.lowlevel.checkpoint()
            return
        self._sleepers[task] = seconds
        self._asleep.add(task)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._asleep.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            has_come = self._sleepers.pop(task, None) is None
        # Not `Task` and `Cancelled` to mypy: the stubs know what is public.
        sleeper: Any = task
        cancelled: Any = trio.Cancelled
        if has_come and sleeper._cancel_status.effectively_cancelled:
            # What came at this very time has cancelled the task. A deadline of trio would end it
            # now, and not at its next wait.
            raise cancelled._create(source="unknown")

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Ends the sleep of a task. One that does not sleep is left alone."""
        if task in self._asleep:
            self._asleep.remove(task)
            trio.lowlevel.reschedule(task)


class Sleeper:
    """A task that sleeps until a time, and that others may wake before."""

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._clock: trio.abc.Clock | None = None
        self._woken = trio.Event()

    async def sleep_until(self, seconds: float) -> None:
        """Waits for a time to come, or for `wake`. Only one task may call this."""
        if self._task is None:
            self._task = trio.lowlevel.current_task()
            self._clock = trio.lowlevel.current_clock()
        if isinstance(self._clock, JumpingClock):
            await self._clock.sleep_until(seconds)
            return
        self._woken = trio.Event()
        with trio.move_on_at(seconds):
            await self._woken.wait()

    def wake(self) -> None:
        """Ends the sleep. Nothing happens if the task does not sleep."""
        if isinstance(self._clock, JumpingClock):
            assert self._task is not None
            self._clock.wake(self._task)
        else:
            self._woken.set()


async def sleep(seconds: float) -> None:
    """`trio.sleep`, which costs less under a `JumpingClock`."""
    clock = trio.lowlevel.current_clock()
    if isinstance(clock, JumpingClock):
        await clock.sleep_until(clock.current_time() + seconds)
    else:
        await trio.sleep(seconds)


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
