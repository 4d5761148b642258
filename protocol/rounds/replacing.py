"""How often, and how late, a peer goes from the ring that it follows to a preferred one.

Honest organisers make several rosters for one head where messages cross each other. All members
hear the preferred one within seconds. A hostile organiser can make any number, with other work of
its own in each, and each is preferred to the one before. A ring that replaces another one begins
anew, and with it all waits for members that keep it up.

Rules
-----
- The ring that a peer followed first is replaced for `REPLACE_SECONDS`, and then no more. A peer
  that is out of its ring may go to another one later.
- A peer follows at most `OF_ONE_MAX` rings of one organiser.
- A ring that is refused counts as one without this peer. It says that it is out of it, but for
  `OF_ONE_MAX` rings of one organiser at most, so that rosters provoke few statements.
- An organiser is *unsettled* if a ring of it is refused after `OF_ONE_MAX` of its rings were
  followed, or after two, of which the first was followed `REPLACE_SECONDS` before. Members remember
  that (`policy.ring_conduct`). A second ring that is refused is no fault: its organiser may have
  mended that of another one, it came over a slow line, or the time ran for the ring of another one.
- When its ring is void and it gathers again, these rules begin anew.
- A peer opens at most `OPENED_OF_ONE_MAX` rosters of one organiser. It does not look at others.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from gossamer.protocol.ids import Digest, PeerId

REPLACE_SECONDS = 10.0
"""As long as a stream of the preferred ring waits for this peer (`dispatcher.HELLO_SECONDS`): the
members that went there have accused one that comes later. Mended rosters come within half of it."""

OF_ONE_MAX = 3
"""The ring of an honest organiser, one that it mended, and one after a restart."""

OPENED_OF_ONE_MAX = 64
"""Rosters of one organiser for one head, of attempts that fail one after the other. To open one of
100 members that list their links takes some 20 ms, and gossip brings 60 a second of one author."""


class Replacing:
    """The rings that one peer followed and refused for one head."""

    def __init__(self) -> None:
        self._since_seconds: float | None = None
        """Local time at which the first ring was followed."""
        self._followed: Counter[PeerId] = Counter()
        self._first_seconds: dict[PeerId, float] = {}
        """Local time at which the first ring of each organiser was followed."""
        self._refused: defaultdict[PeerId, set[Digest]] = defaultdict(set)
        """At most `OF_ONE_MAX` rings of each organiser."""
        self._unsettled: set[PeerId] = set()
        self._opened: Counter[PeerId] = Counter()

    def may_open(self, organiser: PeerId) -> bool:
        """A roster of an organiser came. Returns whether this peer looks at it."""
        self._opened[organiser] += 1
        return self._opened[organiser] <= OPENED_OF_ONE_MAX

    def may_follow(self, now: float, organiser: PeerId, *, is_out: bool) -> bool:
        """Returns whether this peer goes to a ring that it prefers.

        Args:
            is_out: whether it is in no ring, or out of the one that it followed.
        """
        if self._followed[organiser] >= OF_ONE_MAX:
            return False
        since_seconds = self._since_seconds
        return is_out or since_seconds is None or now < since_seconds + REPLACE_SECONDS

    def followed(self, now: float, organiser: PeerId) -> None:
        """This peer follows a ring."""
        self._followed[organiser] += 1
        self._first_seconds.setdefault(organiser, now)
        if self._since_seconds is None:
            self._since_seconds = now

    def refused(self, organiser: PeerId, ring_id: Digest) -> bool:
        """A ring is refused. Returns whether this peer says so."""
        refused = self._refused[organiser]
        if ring_id in refused or len(refused) >= OF_ONE_MAX:
            return False
        refused.add(ring_id)
        return True

    def is_newly_unsettled(self, now: float, organiser: PeerId) -> bool:
        """Returns whether the ring that is refused is the first one for which its organiser counts
        as unsettled."""
        first_seconds = self._first_seconds.get(organiser)
        if first_seconds is None or organiser in self._unsettled:
            return False
        is_early = now < first_seconds + REPLACE_SECONDS
        if self._followed[organiser] < (OF_ONE_MAX if is_early else 2):
            return False
        self._unsettled.add(organiser)
        return True

    def gathers_again(self) -> None:
        """The ring that was followed is void."""
        self._since_seconds = None
        self._followed.clear()
        self._first_seconds.clear()
