"""When a node compares its statement store with that of another one: often while there is news."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import trio

RECONCILE_SECONDS = 1.0
"""A statement that gossip lost arrives after about this time. One exchange costs some 300 bytes and
8 for each statement held."""

APART_SECONDS = 0.5
"""The same while a living member is not connected to this node: its statements come through others,
and in a large swarm by comparisons alone. The author publishes them to these others
(`Announcer.renew`)."""

QUIET_RECONCILE_SECONDS = 4.0
"""The same while there is no news. Comparisons bring nothing then but announcements that repeat
what was said, and no peer that lives by them compares so seldom (decision 127)."""

NEWS_SECONDS = 15.0
"""News is news for this long. The statements of a round, of which gossip may lose any, follow each
other within this time as a rule, and each of them is news itself."""


class ComparisonPace:
    """The times of the comparisons of one node."""

    def __init__(self, is_apart: Callable[[], bool], randomness: random.Random) -> None:
        """`is_apart`: returns whether a living member is not connected to this node."""
        self._is_apart = is_apart
        self._random = randomness
        self._news_seconds = -math.inf
        """Local time of the newest news."""
        self._has_news = trio.Event()
        """Is set when there is news after a quiet time."""

    def note_news(self) -> None:
        """Something was said that a node may have missed."""
        was_quiet = self._is_quiet()
        self._news_seconds = trio.current_time()
        if was_quiet:
            self._has_news.set()

    async def until_next(self) -> None:
        """Returns when it is time for the next comparison."""
        began, share = trio.current_time(), self._random.uniform(0.8, 1.2)
        while True:
            self._has_news = trio.Event()
            with trio.move_on_at(began + share * self._interval_seconds()) as wait:
                await self._has_news.wait()
            if wait.cancelled_caught:
                return

    def _is_quiet(self) -> bool:
        return trio.current_time() > self._news_seconds + NEWS_SECONDS

    def _interval_seconds(self) -> float:
        if self._is_apart():
            return APART_SECONDS
        return QUIET_RECONCILE_SECONDS if self._is_quiet() else RECONCILE_SECONDS
