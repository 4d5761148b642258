"""The operator's orders to the node, and the signal by which a waiting task learns of news."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from gossamer.node.base.pausing import PAUSE_REASONS, Hold, UserPause
from gossamer.node.base.ticks import tick_after


class Orders:
    """The operator's standing orders, and what else keeps the node from training. Each change, and
    all other news, wakes the waiting tasks."""

    def __init__(self) -> None:
        self.user_pause: UserPause | None = None
        """The owner's order."""
        self.others: tuple[Hold, ...] = ()
        """What keeps the node from training besides the owner's order."""
        self.leave = False
        self.leaves_after_round = False
        """Whether the node leaves when its present round ends."""
        self.is_in_round = False
        """Whether the node is in a round, which some orders let it finish."""
        self._news = trio.Event()
        self._unless: dict[trio.CancelScope, bool] = {}
        """The blocks of `unless_ordered`, and whether the node might not train at the last news."""

    @property
    def holds(self) -> tuple[Hold, ...]:
        """Everything that keeps the node from training, or will when the present round ends, in the
        order of `PauseReason`."""
        found = [*self.others]
        if self.user_pause is not None:
            after_round = self.user_pause.after_round and self.is_in_round
            found.append(Hold("user", "", self.user_pause.until_unix_seconds, after_round))
        return tuple(sorted(found, key=lambda hold: PAUSE_REASONS.index(hold.reason)))

    @property
    def hold(self) -> Hold | None:
        """The first of the holds; None if the node may train."""
        return next((hold for hold in self.holds if not hold.after_round), None)

    @property
    def pause(self) -> bool:
        """Returns whether the node may not train now."""
        return self.hold is not None

    @property
    def spares_line(self) -> bool:
        """Returns whether this node moves as few bytes as it can: model and corpus stay where they
        are. Signs of life and other small messages go on."""
        return any(hold.reason == "metered" for hold in self.others)

    @property
    def wants_device(self) -> bool:
        """Returns whether the operator wants this node's training to stop."""
        return self.pause or self.leave

    def notify(self) -> None:
        """Wakes all tasks that wait: each looks again at what it waits for."""
        self._news.set()
        self._news = trio.Event()
        is_paused = self.pause
        for scope, was_paused in self._unless.items():
            if self.leave or (is_paused and not was_paused):
                scope.cancel()
            self._unless[scope] = is_paused

    @contextmanager
    def unless_ordered(self) -> Iterator[None]:
        """Cancels its block when the operator orders to leave, or when something begins to keep the
        node from training: what is fetched for hours must not keep either waiting. A block that
        begins while the node may not train goes on."""
        with trio.CancelScope() as scope:
            self._unless[scope] = self.pause
            try:
                yield
            finally:
                del self._unless[scope]

    async def wait(self, seconds: float | None = None) -> None:
        """Returns at the next news, or after `seconds` at the latest; None sets no limit."""
        with trio.move_on_after(float("inf") if seconds is None else seconds):
            await self._news.wait()

    async def wait_to_tick(self, seconds: float) -> None:
        """Returns at the next news, or at the first tick after `seconds`: for looks that may be a
        little late."""
        with trio.move_on_at(tick_after(seconds)):
            await self._news.wait()
