"""The operator's orders to the node, and the signal by which a waiting task learns of news."""

from __future__ import annotations

import trio


class Orders:
    """The operator's standing orders. Each change, and all other news, wakes the waiting tasks."""

    def __init__(self) -> None:
        self.pause = False
        self.leave = False
        self._news = trio.Event()

    @property
    def wants_device(self) -> bool:
        """Returns whether the operator wants this node's training to stop."""
        return self.pause or self.leave

    def notify(self) -> None:
        """Wakes all tasks that wait: each looks again at what it waits for."""
        self._news.set()
        self._news = trio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Returns at the next news, or after `seconds` at the latest; None sets no limit."""
        with trio.move_on_after(float("inf") if seconds is None else seconds):
            await self._news.wait()
