"""Schedule of the attempts to dial a lost or unreachable peer again.

Rules
-----
- After a failure the next attempt waits: first `BACK_OFF_SECONDS_MIN`, then twice as long each
  time.
- A peer that went away less than `RECENT_SECONDS` ago waits at most `RECENT_BACK_OFF_SECONDS_MAX`:
  most outages are short, and a peer should be back in the next round. Later the longest wait is
  `BACK_OFF_SECONDS_MAX`.
- A connection that ends within `BRIEF_SECONDS` counts as a failure: a peer that bans this node, or
  has no place for it, takes the dial and closes. It would be dialled at each look otherwise.
- While no peer at all is connected the short limit holds for all: then the fault is local.
- When that fault is over (`hurry`: a first connection, or a stall of this process), all peers are
  due at once: earlier failures say nothing any more.
- A peer that is connected through another one is dialled directly as well, first after
  `RELAYED_BACK_OFF_SECONDS_MIN`: it may have been away, or this node busy, when the circuit came
  about. Two peers of one network cannot always cross the router that they share.
- A peer that is heard again through others after a silence (`heard`) is due at once too.
- Of the peers that are due, those with the fewest failures come first. So no peer waits behind many
  dead ones.

Keys are peer ids, and addresses where the id is not known.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Protocol

BACK_OFF_SECONDS_MIN = 2.0
RECENT_BACK_OFF_SECONDS_MAX = 5.0
"""Longest wait after a recent loss. The cost is a few packets for each peer every five seconds, for
some minutes."""
RECENT_SECONDS = 600.0
BACK_OFF_SECONDS_MAX = 60.0
"""Longest wait between two attempts: a peer that is away for an hour is asked some 160 times, each
a few packets."""
RELAYED_BACK_OFF_SECONDS_MIN, RELAYED_BACK_OFF_SECONDS_MAX = 20.0, 600.0
"""The same waits for a peer that is connected through another one. It can be used meanwhile, and
behind a strict router no dial ever reaches it."""

SILENCE_SECONDS = 30.0
"""Silence after which a peer counts as newly heard: three announcements. Such a peer was cut off,
or its process was stopped."""

BRIEF_SECONDS = 5.0
"""Life of a connection that leads nowhere: a peer that does not want it closes it at once. A line
that dies is noticed later than this, and does not count."""

_JITTER = (0.8, 1.2)


class Randomness(Protocol):
    """The source of jitter, such as `random.Random`. The rules have no randomness of their own."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between `a` and `b`."""
        ...


@dataclass
class _Attempts:
    """The failures of one key that is not connected."""

    patience_seconds: float
    since_seconds: float
    """Local time at which the key was first wanted, or its failures were forgotten."""
    num_failures: int = 0
    failed_seconds: float = 0.0
    jitter: float = 1.0
    is_relayed: bool = False
    """Whether the key is connected through another peer."""

    def back_off_seconds(self, *, is_recent: bool) -> float:
        """Returns the wait after the newest failure."""
        shortest, longest = BACK_OFF_SECONDS_MIN, BACK_OFF_SECONDS_MAX
        if self.is_relayed:
            shortest, longest = RELAYED_BACK_OFF_SECONDS_MIN, RELAYED_BACK_OFF_SECONDS_MAX
        elif is_recent:
            longest = RECENT_BACK_OFF_SECONDS_MAX
        # The exponent is bounded so that weeks of failures do not overflow a float.
        return min(shortest * 2.0 ** min(self.num_failures - 1, 16), longest) * self.jitter


class Redial:
    """Remembers failures. Times are the local clock in seconds."""

    def __init__(self, randomness: Randomness) -> None:
        self._random = randomness
        self._attempts: dict[str, _Attempts] = {}
        self._heard: dict[str, tuple[tuple[int, int], float]] = {}
        self._reached: dict[str, tuple[float, _Attempts]] = {}
        """Local time of the newest connection, and the attempts that led to it, of the keys that
        were reached within `BRIEF_SECONDS`."""

    def want(
        self, now: float, key: str, patience_seconds: float, *, is_relayed: bool = False
    ) -> None:
        """A key is to be connected.

        Args:
            patience_seconds: the wait before the first attempt.
            is_relayed: whether it is connected through another peer: the first attempt waits for
                `RELAYED_BACK_OFF_SECONDS_MIN` more.
        """
        if is_relayed:
            patience_seconds += RELAYED_BACK_OFF_SECONDS_MIN
        known = self._attempts.get(key)
        if known is None or known.is_relayed != is_relayed:
            self._attempts[key] = _Attempts(patience_seconds, now, is_relayed=is_relayed)
            reached_seconds, before = self._reached.get(key, (-math.inf, None))
            if before is not None and now - reached_seconds < BRIEF_SECONDS and not is_relayed:
                self._attempts[key] = replace(before, failed_seconds=now)

    def keep(self, wanted: Container[str], known: Container[str]) -> None:
        """Forgets the failures of keys that are not wanted, and the announcements of keys that are
        not known."""
        self._attempts = {k: attempts for k, attempts in self._attempts.items() if k in wanted}
        self._heard = {key: heard for key, heard in self._heard.items() if key in known}

    def due(self, now: float, *, alone: bool) -> list[str]:
        """The keys to dial now, in this order. `alone`: whether no peer is connected."""
        keys = [
            key for key, attempts in self._attempts.items() if self._is_due(now, attempts, alone)
        ]
        return sorted(keys, key=lambda key: self._attempts[key].num_failures)

    def _is_due(self, now: float, attempts: _Attempts, alone: bool) -> bool:
        if not attempts.num_failures:
            return now >= attempts.since_seconds + attempts.patience_seconds
        is_recent = alone or now - attempts.since_seconds < RECENT_SECONDS
        return now >= attempts.failed_seconds + attempts.back_off_seconds(is_recent=is_recent)

    def failed(self, now: float, key: str) -> None:
        """An attempt failed."""
        if (attempts := self._attempts.get(key)) is not None:
            attempts.num_failures += 1
            attempts.failed_seconds = now
            attempts.jitter = self._random.uniform(*_JITTER)

    def reached(self, now: float, key: str) -> None:
        """An attempt led to a connection. It counts as a failure if that is brief."""
        before = self._attempts.get(key) or self._reached.get(key, (now, _Attempts(0.0, now)))[1]
        self._attempts[key] = before
        self.failed(now, key)
        self._reached = {
            other: each for other, each in self._reached.items() if now - each[0] < BRIEF_SECONDS
        }
        self._reached[key] = now, replace(before, is_relayed=False)

    def heard(self, now: float, key: str, version: tuple[int, int]) -> None:
        """A peer's newest announcement has this version. It may be the first one after a
        silence."""
        known = self._heard.get(key)
        if known is None or version > known[0]:
            if known is not None and now - known[1] > SILENCE_SECONDS:
                self._begin_again(now, key)
            self._heard[key] = (version, now)

    def hurry(self, now: float) -> None:
        """The failures so far had a local cause: all keys are due."""
        for key in self._attempts:
            self._begin_again(now, key)

    def _begin_again(self, now: float, key: str) -> None:
        if (attempts := self._attempts.get(key)) is not None:
            attempts.num_failures = 0
            attempts.since_seconds = now
