"""Who is far slower than the rest of its ring, so that one slow line does not set everybody's pace.

Rules
-----
- Every member measures how fast its link to its successor takes bytes while there is something to
  send, and says so once (`Pace`), `SAMPLE_SECONDS` after its ring began. At first every member
  sends chunks that it starts itself, so a link's pace is its own and not that of the links before.
- A link is *slow* if it is `SLOW_FACTOR` times slower than the upper median of what the other
  living members said; at least half of them must have said something.
- My link is worth giving up if it is slow, and what it still has to carry would take longer than
  `PATIENCE_SECONDS_MIN` and `PATIENCE_FRACTION` of the round so far, at its pace.
- Then my successor is the slow one, unless my predecessor's link to me is slow as well: I am. With
  the second successor that looks slow it is my own line too; and who found that in the ring before
  does not begin by blaming others.
- Before my predecessor's pace is known I wait `PREDECESSOR_SECONDS` for it.
- A link may carry its first chunk to the end, within that patience: so a slow member has a part in
  some chunk of each round, in other ones each time. Put out at once, it would carry all its work
  until that is stale.
- In a ring of two there is no rest to be slower than.

The slow one is removed from this ring: what it added counts, the rest it carries as residual.
Times are seconds of the local clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.protocol.ids import PeerId

SAMPLE_SECONDS = 1.0
"""Long against a round trip over the ocean and a scheduler's hiccup; short against a ring that a
slow line would hold up."""

VERDICT_SECONDS = 1.5
"""A link has to have been busy this long before it is called slow."""

PREDECESSOR_SECONDS = 3.0
"""A predecessor that has not said its pace by then will not; see `SAMPLE_SECONDS`."""

SLOW_FACTOR = 8.0
"""Home lines differ by five (10 to 50 Mbit/s up) and may well be in one ring."""

PATIENCE_SECONDS_MIN = 2.0
"""A slow link that is done this soon is waited for, however short the round was."""

PATIENCE_FRACTION = 0.25
"""Part of the time that the round took until its ring began: with the time to notice it, a slow
member makes a round take at most half as long again as without it."""

BUSY_SECONDS_MIN = 0.25
"""Less, without a whole chunk received, says more about round trips than about the line."""


@dataclass
class _Link:
    """One successor of mine, in this ring."""

    peer: PeerId
    acked_bytes: int = 0
    busy_seconds: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.acked_bytes / self.busy_seconds if self.busy_seconds > 0 else 0.0


class RingPace:
    """One member's view of the paces of one ring."""

    def __init__(
        self,
        members: Sequence[PeerId],
        me: PeerId,
        *,
        began_seconds: float,
        chunk_bytes: int,
        num_chunks: int,
        round_seconds: float,
        line_was_slow: bool,
    ) -> None:
        """
        Args:
            chunk_bytes: size of an encoded chunk.
            round_seconds: what the round took until its ring began.
            line_was_slow: whether I found in the ring before that my own line is the slow one.
        """
        self._members = tuple(members)
        self._me = me
        self._began_seconds = began_seconds
        self._chunk_bytes = chunk_bytes
        num_members = len(self._members)
        # Every chunk comes by as token and as final, except where it ends.
        self._bytes_to_send = 2 * (num_members - 1) * num_chunks * chunk_bytes // num_members
        self._patience_seconds = max(PATIENCE_SECONDS_MIN, PATIENCE_FRACTION * round_seconds)
        self._paces: dict[PeerId, float] = {}
        self._links: dict[PeerId, _Link] = {}
        self._said = False
        self._has_blamed = line_was_slow
        self.line_is_slow = False
        """Whether it is my own line that is far slower than the others'."""

    def said(self, author: PeerId, bytes_per_second: float) -> None:
        """Another member said its pace."""
        if author in self._members and author != self._me:
            self._paces.setdefault(author, bytes_per_second)

    def measured(self, peer: PeerId, acked_bytes: int, busy_seconds: float) -> None:
        """My link to a member: bytes received there, and seconds in which it had some to send."""
        link = self._links.setdefault(peer, _Link(peer))
        link.acked_bytes = acked_bytes
        link.busy_seconds = busy_seconds

    def to_say(self, now: float, successor: PeerId) -> float | None:
        """My pace, once, when it is time to say it."""
        link = self._links.get(successor)
        if self._said or link is None or now < self._began_seconds + SAMPLE_SECONDS:
            return None
        if link.busy_seconds < BUSY_SECONDS_MIN and link.acked_bytes < self._chunk_bytes:
            return None
        self._said = True
        return link.bytes_per_second

    def too_slow(self, now: float, living: Sequence[PeerId], successor: PeerId) -> PeerId | None:
        """The member that the ring goes on without: my successor, or I.

        `living` are the members that I hold to be in, in ring order, and I am one of them.
        """
        link = self._links.get(successor)
        others = [peer for peer in living if peer != self._me]
        paces = [self._paces[peer] for peer in others if peer in self._paces]
        if link is None or link.busy_seconds < VERDICT_SECONDS:
            return None
        if len(others) < 2 or 2 * len(paces) < len(others):
            return None
        if link.acked_bytes < self._chunk_bytes and link.busy_seconds < self._patience_seconds:
            return None
        threshold = statistics.median_high(paces) / SLOW_FACTOR
        if link.bytes_per_second >= threshold or self._is_soon_done(link):
            return None
        pace_to_me = self._pace_to_me(living)
        if pace_to_me is None and now < self._began_seconds + PREDECESSOR_SECONDS:
            return None
        if self._has_blamed or (pace_to_me is not None and pace_to_me < threshold):
            self.line_is_slow = True
            return self._me
        self._has_blamed = True
        return successor

    def _pace_to_me(self, living: Sequence[PeerId]) -> float | None:
        """What my predecessor said, if it said it of its link to me."""
        predecessor = self._members[self._members.index(self._me) - 1]
        return self._paces.get(predecessor) if predecessor in living else None

    def _is_soon_done(self, link: _Link) -> bool:
        sent_bytes = sum(each.acked_bytes for each in self._links.values())
        left_bytes = max(0, self._bytes_to_send - sent_bytes)
        return left_bytes <= link.bytes_per_second * self._patience_seconds
