"""A node whose process is stopped (SIGSTOP) in virtual time.

Its tasks are woken by what happens meanwhile, and none of them runs. Its connections stay, and what
the others send waits. When the process goes on, it finds all of it at once, and all of its timers
expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trio._core import _run as trio_run

from tests.support.node_world import World


@contextmanager
def stopped(world: World, name: str) -> Iterator[None]:
    """Stops a node for the time of the block."""
    runner = trio_run.GLOBAL_RUN_CONTEXT.runner
    root = world.tasks[name]
    woken: list[trio_run.Task] = []
    reschedule = trio_run.Runner.reschedule

    def hold(self: trio_run.Runner, task: trio_run.Task, *result: object) -> None:
        reschedule(self, task, *result)  # type: ignore[arg-type]
        if _is_of(root, task):
            woken.append(self.runq.pop())

    trio_run.Runner.reschedule = hold  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        trio_run.Runner.reschedule = reschedule  # type: ignore[method-assign]
        runner.runq.extend(woken)


def _is_of(root: object, task: trio_run.Task | None) -> bool:
    """Returns whether a task is this one, or one that it has started."""
    while task is not None and task is not root:
        task = None if task.parent_nursery is None else task.parent_nursery.parent_task
    return task is root
