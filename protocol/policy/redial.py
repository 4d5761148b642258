"""When to dial whom again.

Rules
-----
- After a failure the next attempt waits: first `BACK_OFF_SECONDS_MIN`, then twice as long each.
- A peer that went away less than `RECENT_SECONDS` ago waits at most `RECENT_BACK_OFF_SECONDS_MAX`:
  most outages are short, and whoever was in one is to be back in the next round. Later
  `BACK_OFF_SECONDS_MAX` is the most.
- While nobody at all is connected the short limit holds for everybody: then the trouble is ours.
- When it is over (`hurry`: a first connection, or a stall of this process), everybody is due at
  once: what failed before says nothing any more.
- A peer that is heard again through others after a silence (`heard`) is due at once too.
- Of those that are due, who failed least often comes first, so that nobody waits for a place behind
  many that are dead.

Keys are peer ids, and addresses where the id is not known. Nothing here has I/O or a clock.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

BACK_OFF_SECONDS_MIN = 2.0
RECENT_BACK_OFF_SECONDS_MAX = 5.0
"""Some packets a peer every five seconds, for some minutes."""
RECENT_SECONDS = 600.0
BACK_OFF_SECONDS_MAX = 60.0
"""A peer that is away for an hour is asked some 160 times, each a few packets."""
SILENCE_SECONDS = 12.0
"""Six announcements: whoever is heard after so long was cut off, or stood still."""

_JITTER = (0.8, 1.2)


class Randomness(Protocol):
    """The source of jitter, such as `random.Random`. The rules have no randomness of their own."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between `a` and `b`."""
        ...


@dataclass
class _Attempts:
    """What is known of one key that is not connected."""

    patience_seconds: float
    since_seconds: float
    """When it was wanted first, or had another beginning."""
    num_failures: int = 0
    failed_seconds: float = 0.0
    jitter: float = 1.0


class Redial:
    """Remembers failures. Times are the local clock in seconds."""

    def __init__(self, randomness: Randomness) -> None:
        self._random = randomness
        self._attempts: dict[str, _Attempts] = {}
        self._heard: dict[str, tuple[tuple[int, int], float]] = {}

    def want(self, now: float, key: str, patience_seconds: float) -> None:
        """Somebody is to be connected; `patience_seconds` is the wait before the first attempt."""
        if key not in self._attempts:
            self._attempts[key] = _Attempts(patience_seconds, now)

    def keep(self, wanted: Container[str], known: Container[str]) -> None:
        """Forgets the failures of who is not `wanted` any more, and of who is not even `known`
        when it was heard."""
        self._attempts = {k: attempts for k, attempts in self._attempts.items() if k in wanted}
        self._heard = {key: heard for key, heard in self._heard.items() if key in known}

    def due(self, now: float, *, alone: bool) -> list[str]:
        """Who is to be dialled now, in this order. `alone`: whether nobody is connected."""
        keys = [
            key for key, attempts in self._attempts.items() if self._is_due(now, attempts, alone)
        ]
        return sorted(keys, key=lambda key: self._attempts[key].num_failures)

    def _is_due(self, now: float, attempts: _Attempts, alone: bool) -> bool:
        if not attempts.num_failures:
            return now >= attempts.since_seconds + attempts.patience_seconds
        recent = alone or now - attempts.since_seconds < RECENT_SECONDS
        longest = RECENT_BACK_OFF_SECONDS_MAX if recent else BACK_OFF_SECONDS_MAX
        # The exponent is bounded so that weeks of failures do not overflow a float.
        doublings = min(attempts.num_failures - 1, 16)
        delay = min(BACK_OFF_SECONDS_MIN * 2.0**doublings, longest)
        return now >= attempts.failed_seconds + delay * attempts.jitter

    def failed(self, now: float, key: str) -> None:
        """An attempt failed."""
        if (attempts := self._attempts.get(key)) is not None:
            attempts.num_failures += 1
            attempts.failed_seconds = now
            attempts.jitter = self._random.uniform(*_JITTER)

    def heard(self, now: float, key: str, version: tuple[int, int]) -> None:
        """A peer's newest announcement has this version: is it a sign of life after a silence?"""
        known = self._heard.get(key)
        if known is None or version > known[0]:
            if known is not None and now - known[1] > SILENCE_SECONDS:
                self._begin_again(now, key)
            self._heard[key] = (version, now)

    def hurry(self, now: float) -> None:
        """Failures so far were our own fault: everybody is due."""
        for key in self._attempts:
            self._begin_again(now, key)

    def _begin_again(self, now: float, key: str) -> None:
        if (attempts := self._attempts.get(key)) is not None:
            attempts.num_failures = 0
            attempts.since_seconds = now
