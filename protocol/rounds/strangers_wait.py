"""How long the rounds of one peer wait for strangers.

A *stranger* is a peer of which no round of the newest ones has taken work. A round waits for it on
its word alone (`membership.awaited`), because a newcomer has nothing else. Identities cost nothing,
though, and neither does an announcement at each head. Eight strangers that did no more than that
left 12 to 17 of 86 rounds.

Rules
-----
- Only the time counts in which a round would have gone on without strangers: all others that are
  expected are ready, and this peer is. It counts for all strangers together, because a new identity
  is as free as an old one.
- That time is `WAITS_MAX` times the manifest's `gather_seconds` at once, and `SHARE` of all time.
  While `gather_seconds` of it are left a round waits for strangers as for the others. Other rounds
  do not wait for strangers.
- So some rounds wait as long as ever, and no round waits for a moment only: a newcomer gets in with
  one wait that is long enough.
- A peer that hears a ring of another one does not wait for strangers before it follows it. That
  organiser may have waited already, by its own count.
- A stranger that is ready in time is in the ring, whether the round waits for it or not. It is
  expected, and may organise the ring. So peers that wait and peers that do not agree on all else.
- A peer that does not wait counts the waits of others too, beyond `GOSSIP_SECONDS`. Otherwise the
  members would wait in turn, each for its own share.

A new life of this peer has waited for nobody. No I/O, no clock: times are local, in seconds.
"""

from __future__ import annotations

from typing import NamedTuple

WAITS_MAX = 2
"""Waits of the longest kind that may follow one after the other. A newcomer may miss its first wait
because it fetches the rounds meanwhile."""

SHARE = 1 / 16
"""Share of the time in which rounds wait for strangers in the long run. One in 17 rounds that wait
for no longer than they take costs as much. A newcomer beside strangers that lie gets in within some
16 waits."""

GOSSIP_SECONDS = 0.5
"""Time from a complete gathering to the ring of an organiser that waits for no stranger."""


class StrangersWait(NamedTuple):
    """What a peer has waited for strangers, at one time."""

    spent_seconds: float = 0.0
    """Waits that no time since has made up for."""
    at_seconds: float = 0.0

    def at(self, now: float) -> StrangersWait:
        """Returns the same at a later time, in which no stranger was waited for."""
        since = max(0.0, now - self.at_seconds)
        spent = max(0.0, self.spent_seconds - SHARE * since)
        return StrangersWait(spent, self.at_seconds + since)

    def waits(self, gather_seconds: float) -> bool:
        """Returns whether a round that begins now waits for strangers."""
        return self.spent_seconds <= (WAITS_MAX - 1) * gather_seconds

    def after(self, held_seconds: float, gather_seconds: float) -> StrangersWait:
        """Returns the same after a round that stood still for strangers for so long."""
        if not self.waits(gather_seconds):
            held_seconds = max(0.0, held_seconds - GOSSIP_SECONDS)
        spent = self.spent_seconds + min(held_seconds, gather_seconds)
        return self._replace(spent_seconds=spent)


NO_WAIT = StrangersWait()
"""Nothing has been waited for."""
