"""Finds members of a ring that are silent: a machine that froze, or whose line was cut, does not
close its connections."""

from __future__ import annotations

from collections import deque

SILENT_SECONDS = 6.0
"""A connected peer from which nothing at all came for so long has failed: three signs of life that
a living peer gives (`transport.PING_SECONDS`), and less than the 12 s after which a round has to
continue."""

STALLS_KEPT = 64
"""Upper bound on the remembered stalls of this process. Between two stalls it runs for two ticks
(0.2 s) at least, so 64 stalls span more running time than `SILENT_SECONDS`, and a forgotten one
changes nothing."""


class Silence:
    """Measures how long a peer has said nothing, as far as this process could have heard it.

    Time in which this process did not run counts for no peer's silence, and so does all time before
    the ring began. The time of the last sign of life comes from the caller, so several members that
    fell silent together are all known at once.
    """

    def __init__(self, began_seconds: float) -> None:
        self._began_seconds = began_seconds
        self._ticked_seconds = began_seconds
        self._stalls: deque[tuple[float, float]] = deque(maxlen=STALLS_KEPT)
        """Time at which each stall of this process ended, and the seconds by which it was late."""

    def tick(self, now: float, step_seconds_max: float) -> None:
        """This process runs. More than `step_seconds_max` since the last call was a stall."""
        late_seconds = now - self._ticked_seconds - step_seconds_max
        if late_seconds > 0:
            self._stalls.append((now, late_seconds))
        self._ticked_seconds = now

    def is_over(self, now: float, heard_seconds: float | None) -> bool:
        """Returns whether a peer that was last heard at this time has failed. None means that there
        is no connection: its link shows the failure."""
        if heard_seconds is None:
            return False
        since = max(heard_seconds, self._began_seconds)
        stalled_seconds = sum(late for ended, late in self._stalls if ended > since)
        return now - since - stalled_seconds >= SILENT_SECONDS
