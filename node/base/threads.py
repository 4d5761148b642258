"""How blocking work leaves the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class RunInThread(Protocol):
    """Runs a blocking call: `trio.to_thread.run_sync`, or in virtual time a plain call."""

    async def __call__(self, function: Callable[[], _T], /) -> _T: ...
