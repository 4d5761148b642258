"""A limit of the bytes that all connections of this node move in one direction."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from gossamer.node.base.limit_periods import Period, parse_limit

BITS = 8
MBIT = 1_000_000

BURST_SECONDS = 0.05
"""Data that an idle line may move at once, as time at the limit: 60 KB at 10 Mbit/s, so that a
video call beside it waits no longer than for one picture."""

PACKET_BYTES = 1448
"""Payload of one TCP segment on Ethernet with timestamps (RFC 7323)."""

HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP headers of one segment: the owner's line carries them too."""

PIECE_SECONDS = 0.02
"""What one caller moves in one turn, as time at the limit: what is small waits no longer for it."""

PIECE_BYTES_MIN = 4 * 1024
"""Smaller pieces would cost more than 2 % in headers and tags of their own."""

PIECE_BYTES_MAX = 64 * 1024
"""One message of the encrypted connection."""

SMALL_BYTES_MAX = 16 * 1024
"""What is not larger goes first: votes, announcements, acknowledgements, lists of some hundred
members. At 1 Mbit/s it takes 0.13 s."""


def minute_of_day() -> int:
    """The present minute of the day, local time."""
    now = time.localtime()
    return 60 * now.tm_hour + now.tm_min


class _Waiting:
    """One caller that waits for its turn."""

    def __init__(self) -> None:
        self.woken = trio.Event()


class RateLimit:
    """Lets bytes through at a limit that may depend on the time of the day.

    Small messages go first: a vote or an announcement does not wait behind megabytes of chunks.
    Within each of the two classes callers are served in the order in which they ask.
    """

    def __init__(
        self,
        periods: Sequence[Period] = (),
        minute: Callable[[], int] = minute_of_day,
        most: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """
        Args:
            periods: the first one that holds decides; none means no limit.
            minute: the present minute of the day.
            most: the limit is no higher than this, in bytes per second.
        """
        self._periods = tuple(periods)
        self._minute = minute
        self._most = most
        self._free_seconds = -math.inf
        """Local time at which everything that was let through has left the line."""
        self._first, self._rest = deque[_Waiting](), deque[_Waiting]()
        """Callers with small messages, and the others."""
        self.moved_bytes = 0
        """All bytes that were let through, headers included, with and without a limit."""

    @property
    def bytes_per_second(self) -> float:
        """The present limit, headers included; inf for none."""
        most = self._most()
        if not self._periods:
            return most
        minute = self._minute()
        holding = (period.mbit for period in self._periods if period.holds(minute))
        return min(next(holding, math.inf) * MBIT / BITS, most)

    @property
    def is_limited(self) -> bool:
        """Returns whether there is a limit now."""
        return self.bytes_per_second != math.inf

    @property
    def piece_bytes(self) -> int:
        """Bytes that one caller may move in one turn."""
        rate = self.bytes_per_second
        if rate == math.inf:
            return PIECE_BYTES_MAX
        return int(min(max(rate * PIECE_SECONDS, PIECE_BYTES_MIN), PIECE_BYTES_MAX))

    def change(self, periods: Sequence[Period]) -> None:
        """Sets another limit, which holds from now on."""
        self._periods = tuple(periods)
        self._free_seconds = min(self._free_seconds, trio.current_time() + PIECE_SECONDS)
        self._wake()

    async def turn(self, *, is_small: bool = False) -> None:
        """Returns when something may go. The caller then calls `charge` before its next await.

        Cancellation: nothing was let through.
        """
        if not self.is_limited:
            return
        line = self._first if is_small else self._rest
        me = _Waiting()
        line.append(me)
        try:
            while self.is_limited:
                if (self._first or self._rest)[0] is not me:
                    await me.woken.wait()
                elif self._free_seconds <= trio.current_time():
                    return
                else:
                    with trio.move_on_at(self._free_seconds):
                        await me.woken.wait()
                me.woken = trio.Event()
        finally:
            line.remove(me)
            self._wake()

    def charge(self, num_bytes: int) -> None:
        """Counts payload bytes that go now, with their packets' headers."""
        whole = num_bytes + HEADER_BYTES * math.ceil(num_bytes / PACKET_BYTES)
        self.moved_bytes += whole
        rate = self.bytes_per_second
        if rate == math.inf:
            return
        now = trio.current_time()
        self._free_seconds = max(self._free_seconds, now - BURST_SECONDS) + whole / rate

    async def take(self, num_bytes: int) -> None:
        """Returns when so many payload bytes may go, and counts them. Cancellation: as `turn`."""
        await self.turn()
        self.charge(num_bytes)

    def _wake(self) -> None:
        for line in (self._first, self._rest):
            if line:
                line[0].woken.set()


def rate_limit_of(
    periods: Sequence[str], most: Callable[[], float] = lambda: math.inf
) -> RateLimit:
    """Returns the limit that a setting such as `up_limit` describes. Raises ValueError.

    Args:
        most: see `RateLimit`.
    """
    return RateLimit([parse_limit(period) for period in periods], most=most)


@dataclass(frozen=True)
class Limits:
    """The limits of both directions."""

    up: RateLimit
    down: RateLimit


NO_LIMIT = RateLimit()
NO_LIMITS = Limits(NO_LIMIT, NO_LIMIT)
