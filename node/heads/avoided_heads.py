"""Heads that could not be reached, and signers whose heads fail again and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gossamer.protocol.ids import Digest, PeerId

AVOID_SECONDS = 20.0
"""A head that could not be reached is avoided this long."""

UNASKED_SECONDS = 2.0
"""A head is avoided this long if no peer that holds it could be asked: a connection to one may
come at any moment, and until then no more than this is asked of the others. The time doubles with
each failure, and ends when there is such a peer. All that hold a head may be gone for good, and
each try ends this node's training."""

FAILURES_MAX = 4
"""Heads in a row of a peer with standing that could not be reached, before all its heads are
avoided. Where rounds are quick, the blocks of the first ones may be gone before they are fetched.
Of other peers one is enough."""

SIGNER_AVOID_SECONDS_MAX = 300.0
"""Longest time for which the heads of a signer are avoided, or a head that nobody can be asked for.
It begins with `AVOID_SECONDS`, or with `UNASKED_SECONDS`, and doubles with each failure."""

SIGNERS_KEPT = 1024
"""Signers whose failures are remembered; with more, all are forgotten."""

BLAME_SECONDS = 60.0
"""A peer at heads that cannot be reached is blamed once in this time. That is twice as long as one
such offence counts (`bans.FORGIVE_SECONDS`), so nobody is banned for this alone: an honest peer
serves no blocks while its line is metered, and its disk may have lost them."""


@dataclass
class _Failures:
    """A signer's heads that could not be reached."""

    number: int = 0
    """Since the last one that could be reached."""
    until_seconds: float = -math.inf
    """Local time until which its heads are avoided."""


class AvoidedHeads:
    """The heads that a node does not try for a while. Times are of the local clock."""

    def __init__(self, has_standing: Callable[[PeerId], bool]) -> None:
        """`has_standing`: whether a peer has stake at this node's head."""
        self._has_standing = has_standing
        self._heads: dict[Digest, float] = {}
        """Local time until which each is avoided."""
        self._unasked: dict[Digest, int] = {}
        """How often in a row there was no peer to ask for a head."""
        self._failures: dict[PeerId, _Failures] = {}
        self._blamed: dict[PeerId, float] = {}
        """Local time until which each peer is not blamed again; of connected peers only, so it is
        bounded as these are."""

    def is_avoided(
        self, now: float, head: Digest, signers: Collection[PeerId], has_source: Callable[[], bool]
    ) -> bool:
        """Returns whether a head is avoided now: for itself, or because all its signers are.

        Args:
            has_source: whether a peer can be asked that signed the head or says that it is there.
        """
        if self._heads.get(head, -math.inf) > now:
            return head not in self._unasked or not has_source()
        failures = [self._failures.get(peer) for peer in signers]
        return bool(failures) and all(
            each is not None and each.until_seconds > now for each in failures
        )

    def failed(
        self, now: float, head: Digest, signers: Collection[PeerId], *, was_asked: bool = True
    ) -> None:
        """A head could not be reached.

        Args:
            signers: those of its signers that could be asked for it.
            was_asked: whether a peer could be asked that signed the head or says that it is there.
        """
        self._heads = {each: until for each, until in self._heads.items() if until > now}
        self._heads[head] = now + (AVOID_SECONDS if was_asked else self._unasked_seconds(head))
        if was_asked:
            self._unasked.pop(head, None)
        if len(self._failures) >= SIGNERS_KEPT:
            self._failures.clear()
        for peer in sorted(signers):
            failures = self._failures.setdefault(peer, _Failures())
            failures.number += 1
            free = FAILURES_MAX if self._has_standing(peer) else 1
            if failures.number >= free:
                failures.until_seconds = now + _doubled(AVOID_SECONDS, failures.number - free)

    def _unasked_seconds(self, head: Digest) -> float:
        if len(self._unasked) >= SIGNERS_KEPT:
            self._unasked.clear()
        number = self._unasked.get(head, 0)
        self._unasked[head] = number + 1
        return _doubled(UNASKED_SECONDS, number)

    def reached(self, signers: Collection[PeerId]) -> None:
        """A head of these signers could be reached."""
        for peer in signers:
            self._failures.pop(peer, None)

    def may_blame(self, now: float, peer: PeerId) -> bool:
        """Returns whether a connected peer is blamed now for a head that could not be reached."""
        self._blamed = {each: until for each, until in self._blamed.items() if until > now}
        if peer in self._blamed:
            return False
        self._blamed[peer] = now + BLAME_SECONDS
        return True


def _doubled(seconds: float, times: int) -> float:
    return min(math.ldexp(seconds, min(times, 10)), SIGNER_AVOID_SECONDS_MAX)
