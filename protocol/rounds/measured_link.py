"""The link to one member of a ring: its totals, looked at several times a second."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

LAG_SECONDS = 1.0
"""Time that the waiting bytes of a full line take at least. It is longer than a round trip, which
is what waits behind a line that is not full (Little's law)."""

STEPS_MIN = 2
"""Marks that a window needs beyond its first one before its rate is meaningful. The first bytes
after a pause show the length of the pause, and nothing of the line."""

GAP_SECONDS = 1.0
"""Time between two looks after which the window begins anew; links are looked at several times a
second."""

PATIENCE_FRACTION = 0.25
"""Part of the time that the round took until its ring began: with the time to notice it, a slow
member makes a round take at most half as long again as without it."""


class LinkMeasure(NamedTuple):
    """The totals of a link so far."""

    acked_bytes: int
    """All bytes that the member has received."""
    busy_seconds: float
    """All seconds in which something was on its way."""
    waiting_bytes: int
    """Bytes that were queued and not received."""
    limit_bytes_per_second: float = math.inf
    """The owner's limit of all that this peer sends; inf for none."""


class Mark(NamedTuple):
    """The totals of a link at the moment at which more bytes were received."""

    seconds: float
    """Local clock."""
    busy_seconds: float
    acked_bytes: int


@dataclass
class MeasuredLink:
    """The link to one successor in this ring."""

    looked_seconds: float
    """Local time of the last look."""
    marks: deque[Mark]
    """The marks of the window, which begins with the first."""
    is_waited_for: bool
    """Whether the round waits for this link whenever it is busy."""
    busy_seconds: float = 0.0
    acked_bytes: int = 0
    waiting_bytes: int = 0
    has_moved: bool = False
    """Whether bytes were received since the look before."""
    slow_since_seconds: float | None = None
    """Local time at which the link was first found slow; None: it is not slow."""

    def look(self, now: float, measure: LinkMeasure, window_seconds: float) -> None:
        """Takes the totals of the link so far. The window ends here."""
        self.acked_bytes, self.busy_seconds = measure.acked_bytes, measure.busy_seconds
        self.waiting_bytes = measure.waiting_bytes
        marks, mark = self.marks, Mark(now, measure.busy_seconds, measure.acked_bytes)
        self.has_moved = measure.acked_bytes > marks[-1].acked_bytes
        if now > self.looked_seconds + GAP_SECONDS:
            marks.clear()
            marks.append(mark)
        elif self.has_moved:
            marks.append(mark)
        self.looked_seconds = now
        begin_seconds = measure.busy_seconds - window_seconds
        while len(marks) > STEPS_MIN + 1 and marks[1].busy_seconds <= begin_seconds:
            marks.popleft()

    @property
    def window_seconds(self) -> float:
        """Busy seconds in the window."""
        return self.busy_seconds - self.marks[0].busy_seconds

    @property
    def bytes_per_second(self) -> float:
        seconds = self.window_seconds
        return (self.acked_bytes - self.marks[0].acked_bytes) / seconds if seconds > 0 else 0.0

    @property
    def goes_on(self) -> bool:
        """Returns whether the rate is meaningful: the link does not pause, or it is at its
        beginning."""
        return self.marks[0].acked_bytes == 0 or (self.has_moved and len(self.marks) > STEPS_MIN)

    @property
    def lags(self) -> bool:
        """Returns whether more bytes wait for this link than for a line that is not full."""
        if self.is_waited_for:
            others_seconds = self.looked_seconds - self.marks[0].seconds - self.window_seconds
            return self.window_seconds > PATIENCE_FRACTION * others_seconds
        return self.waiting_bytes > LAG_SECONDS * self.bytes_per_second
