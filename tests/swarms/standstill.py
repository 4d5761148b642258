"""SIGSTOP for one of several nodes that run in one process: its tasks are not scheduled."""

from __future__ import annotations

from collections import deque
from typing import Any

from trio.lowlevel import Task


class Standstill(deque[Task]):
    """trio's queue of tasks that are to run, which holds those of a stopped node back.

    Whatever a held task waited for has happened to it by then: a timer that ran out while its node
    stood still has run out when it goes on, before anything that arrived meanwhile is read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[Task, list[Task]] = {}
        """Of each node that stands still, by its first task."""

    @classmethod
    def install(cls) -> Standstill:
        """In the present run."""
        queue = cls()
        from trio._core import _run

        # Not `Task` to mypy: the stubs of trio's public names do not know of this module.
        runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
        queue.extend(runner.runq)
        runner.runq = queue
        return queue

    def stop(self, node: Task) -> None:
        """`node`: the task that all others of the node descend from."""
        self._held[node] = []
        waiting = list(self)
        self.clear()
        for task in waiting:
            self.append(task)

    def go_on(self, node: Task) -> None:
        """What was held runs. Nothing happens if it was not stopped."""
        for task in self._held.pop(node, []):
            self.append(task)

    def append(self, task: Task) -> None:
        held = self._held_with(task) if self._held else None
        if held is None:
            super().append(task)
        else:
            held.append(task)

    def _held_with(self, task: Task) -> list[Task] | None:
        ancestor: Task | None = task
        while ancestor is not None:
            if ancestor in self._held:
                return self._held[ancestor]
            nursery = ancestor.parent_nursery
            ancestor = None if nursery is None else nursery.parent_task
        return None
