"""Pings of one connection that wait for their answers. No I/O, no clock of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import trio

PINGS_MAX = 64
"""Pings that wait for their answers. A silent peer is asked once a second for the 20 s after which
its connection ends; the rest is for probes at the same time. Further ones share the newest."""


@dataclass(frozen=True)
class Ping:
    """A ping that was sent and not answered yet."""

    number: int
    """The value that the answer repeats."""
    sent_at: float
    """Local clock in seconds."""
    answered: trio.Event = field(default_factory=trio.Event)


class Pings:
    """Each ping has a value and an event of its own, so probes do not disturb each other."""

    def __init__(self) -> None:
        self._waiting: deque[Ping] = deque()  # oldest first
        self._number = 0
        self.sent_at = 0.0
        """Time at which the newest ping was made (local clock in seconds)."""

    def new(self, now: float) -> tuple[Ping, bool]:
        """Returns (the ping whose answer is waited for, whether it has to be sent)."""
        if len(self._waiting) >= PINGS_MAX:
            return self._waiting[-1], False
        self._number = (self._number + 1) & 0xFFFFFFFF
        self.sent_at = now
        ping = Ping(self._number, now)
        self._waiting.append(ping)
        return ping, True

    def answered(self, number: int, now: float) -> float | None:
        """An answer came: the round trip in seconds, or None for an answer to no ping.

        An answer to a ping answers the earlier ones too: the peer lived after they were sent.
        """
        if not any(ping.number == number for ping in self._waiting):
            return None
        while True:
            ping = self._waiting.popleft()
            ping.answered.set()
            if ping.number == number:
                return now - ping.sent_at
