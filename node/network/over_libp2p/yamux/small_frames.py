"""Frames that carry next to nothing, which cost their sender less than this node: those beyond a
rate wait, and so does all that their peer sends behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from gossamer.protocol.policy.throttle import Rate, Throttle

SMALL_FRAMES_RATE = Rate(per_second=4000, burst=10_000)
"""Of one connection. A frame takes 3 to 5 us. A line that is full of data has some hundred a
second."""

FRAME_BYTES = 1024
"""So many bytes of a message make up for one of its frames."""

AT_ONCE = 64
"""So many wait for their turn together. A quiet connection has a few in a minute."""


async def _at_once(_num_frames: float) -> None:
    """No turn to wait for."""


class SmallFrames:
    """The small frames of one connection."""

    def __init__(self) -> None:
        self.turn: Callable[[float], Awaitable[None]] = _at_once
        """Returns when more may be read after so many small frames."""
        self._rate = Throttle(SMALL_FRAMES_RATE)
        self._num_waiting = 0.0

    async def came(self, now: float, num_frames: int, num_bytes: int) -> None:
        """Returns when more may be read after a message in which so many frames have begun."""
        # A message without a frame is no cheaper than one with one.
        num_small = max(1, num_frames) - num_bytes / FRAME_BYTES
        if num_small <= 0:
            return
        if seconds := self._rate.take(now, num_small):
            await trio.sleep(seconds)
        self._num_waiting += num_small
        if self._num_waiting >= AT_ONCE:
            num_small, self._num_waiting = self._num_waiting, 0.0
            await self.turn(num_small)
