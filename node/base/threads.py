"""Runs blocking work in threads, outside the event loop."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

import trio

_T = TypeVar("_T")


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


class RunInThread(Protocol):
    """Runs a blocking call: `trio.to_thread.run_sync`, or in virtual time a plain call."""

    async def __call__(self, function: Callable[[], _T], /) -> _T: ...
