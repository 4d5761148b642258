"""Runs blocking work in threads, outside the event loop."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar, cast

import trio

from gossamer.trainer.ipc.control_groups import ROOT, group_cores

_T = TypeVar("_T")
_Item = TypeVar("_Item")

PIECE_ELEMENTS = 2**18
"""Elements of a vector that one thread works at: some MB in all, near the caches, and milliseconds
between two looks at the interpreter's lock."""

PIECE_THREADS_MAX = 16
"""Threads at one vector. Beyond that the memory's speed limits them, and others want cores."""

_AHEAD_PER_THREAD = 2
"""Results that may wait for each thread: no thread is idle while the newest one is used, and a
vector of results is never in memory."""


class _RunAbandonable(Protocol):
    """`trio.to_thread.run_sync`. The stubs that libp2p brings do not know `abandon_on_cancel`."""

    async def __call__(
        self,
        function: Callable[[], _T],
        /,
        *,
        abandon_on_cancel: bool,
        limiter: trio.CapacityLimiter | None,
    ) -> _T: ...


_run_abandonable = cast(_RunAbandonable, trio.to_thread.run_sync)


async def run_abandonable(
    function: Callable[[], _T], *, limiter: trio.CapacityLimiter | None = None
) -> _T:
    """Runs a blocking call in a thread. A cancelled caller leaves the thread to itself.

    Args:
        limiter: bounds the threads of such calls; None: trio's own does.
    """
    return await _run_abandonable(function, abandon_on_cancel=True, limiter=limiter)


def num_usable_cores(root: Path = ROOT) -> int:
    """Returns the logical cores that this process may use, at least 1: by its affinity, and by the
    quota of its container or job.

    Threads beyond a quota use it up sooner, and then stand still together.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, group_cores(root) or cores)


def num_piece_threads(num_elements: int) -> int:
    """Returns the threads for elementwise work on a vector: one where it is small, because they
    take some 0.1 ms to start."""
    wanted = min(PIECE_THREADS_MAX, num_elements // PIECE_ELEMENTS)
    return min(wanted, num_usable_cores()) if wanted > 1 else 1


def map_pieces(
    function: Callable[[_Item], _T], items: Iterable[_Item], num_threads: int
) -> Iterator[_T]:
    """Yields `function(item)` for all items, in their order, worked out in so many threads.

    The threads live as long as the iterator. A few results at most are worked out ahead. The caller
    waits for it, so this is no way off the event loop. Where the iterator is closed or a call
    fails, calls that have begun are finished, and no further one begins.
    """
    if num_threads <= 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(num_threads, "pieces")
    waiting: deque[Future[_T]] = deque()
    try:
        for item in items:
            if len(waiting) >= _AHEAD_PER_THREAD * num_threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class RunInThread(Protocol):
    """Runs a blocking call: `trio.to_thread.run_sync`, or in virtual time a plain call."""

    async def __call__(self, function: Callable[[], _T], /) -> _T: ...


READ_SECONDS_MAX = 10.0
"""Limit of the wait for what the machine says: a program that is asked has 2 seconds, and a driver
may hang."""


class SlowRead:
    """Asks the machine in a thread, which may hang with a broken driver.

    That costs one thread and no more: nothing is asked before the last answer has come. Each
    question would leave another thread behind, until none is left for the disk.
    """

    def __init__(self, run_in_thread: RunInThread) -> None:
        """`run_in_thread`: leaves a thread to itself when it is cancelled."""
        self._run_in_thread = run_in_thread
        self._is_reading = False
        """Whether a thread reads. Only that thread sets it."""

    async def ask(self, read: Callable[[], _T]) -> _T | None:
        """Returns the answer; None where none comes in time, or where an earlier one is awaited."""

        def reading() -> _T:
            self._is_reading = True
            try:
                return read()
            finally:
                self._is_reading = False

        if self._is_reading:
            return None
        with trio.move_on_after(READ_SECONDS_MAX):
            return await self._run_in_thread(reading)
        return None
