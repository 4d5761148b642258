"""Runs blocking work in threads, outside the event loop."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar, cast

import trio

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

    async def __call__(self, function: Callable[[], _T], /, *, abandon_on_cancel: bool) -> _T: ...


_run_abandonable = cast(_RunAbandonable, trio.to_thread.run_sync)


async def run_abandonable(function: Callable[[], _T]) -> _T:
    """Runs a blocking call in a thread. A cancelled caller leaves the thread to itself."""
    return await _run_abandonable(function, abandon_on_cancel=True)


def num_usable_cores() -> int:
    """Returns the logical cores that this process may use, by its affinity; at least 1."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_piece_threads(num_elements: int) -> int:
    """Returns the threads for elementwise work on a vector: one where it is small, because they
    take some 0.1 ms to start."""
    return max(1, min(num_usable_cores(), PIECE_THREADS_MAX, num_elements // PIECE_ELEMENTS))


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
