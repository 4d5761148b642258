"""The time in which a ring stands still, and how long a member bears that.

Rules
-----
- Nothing may happen for `KEPT_SECONDS` although the successor has received a sum. Then some member
  keeps a sum and does not pass it on. It is the successor of the member whose copy lacks the fewest
  members. So the member with that copy accuses its successor first, and a member whose copy lacks
  one more does so `KEPT_STEP_SECONDS` later.
- A member whose copy lacks the successor alone needs less patience, `kept_seconds`, as long as all
  is well otherwise: nobody is out, nobody else has voted, and the ring worked for a shorter time
  before. It needs `SUSPECT_SECONDS` less still with a successor that has lately kept a sum, as it
  remembers (`policy.conduct.ring_conduct`). No other member may be earlier than it: that one would
  accuse a member that keeps nothing. In a ring of two nobody has less patience.
- A member may keep averages in the same way. The member whose sum lacks its successor alone cannot
  tell: its successor may have finished the average and passed it on. A vote tells. It comes from a
  member that has all averages, and so has passed them on. So a member that lacks some, and whose
  predecessor has voted, accuses its predecessor `AVERAGES_SECONDS` after the first vote. A
  successor that has voted is accused as late as one whose sum lacks everybody.
- The member before the slowest line votes first, and has up to half of what it sends still to send.
  What waits there may be of use to some members only, and the others see nothing happen meanwhile.
  So no patience is shorter than the time for which the ring has worked (`worked_seconds`), and a
  member that keeps something makes a ring take twice as long at most. Beside votes it is the time
  until the first vote for that member's header. No other vote counts: one that comes before anybody
  can know the header would have an honest member accused. Members that have voted wait a little
  longer for others.
- A member that passes on one sum shortly before each of these times ends makes the ring stand still
  for a moment only, again and again. So a ring is late after `whole_seconds`, which all members
  work out alike. From then on what happens in it prolongs no patience: the member with the fullest
  copy accuses its successor `KEPT_SECONDS` later, and a member whose copy lacks one more does so
  `LATE_STEP_SECONDS` after that. A ring that goes on without a member begins its time anew.
- A member that sees nothing happen for `STALL_SECONDS` accuses itself. In a long ring it waits
  `STALL_MORE_SECONDS` longer than the ring worked.
"""

from __future__ import annotations

import math

from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.commit import VOTE_SECONDS
from gossamer.protocol.rounds.roster import RoundRules

STALL_SECONDS = 120.0
"""Longest time in which nothing arrives and nothing is done. A chunk of 4 MiB on a line of 1 Mbit/s
(34 s), an outer step on a slow CPU, and `commit.DISAGREE_SECONDS` are all shorter."""

KEPT_SECONDS = 30.0
"""Patience with a member that acknowledges chunks but passes none on. A part of some chunk arrives
every few seconds, or a link has failed (`RECEIPT_SECONDS`). Adding takes milliseconds."""

KEPT_SECONDS_MIN = 8.0
"""Least patience of the member before it. A member behind it may have become silent: that one is
out after 6 s (SPEC, section 7), and everybody has heard so a second later."""

SLOW_LINE_BYTES_PER_SECOND = 125_000.0
"""A line of 1 Mbit/s, far below what a volunteer has."""

WORKED_FACTOR = 2.0
"""Least patience as a part of the time in which the ring worked before. A ring on lines that are
slower still brings its first chunks as slowly as the others."""

SUSPECT_SECONDS = 4.0
"""Less patience with a member that has lately kept a sum. A member behind it may be silent all the
same. Then it is out without a fault of its own in this ring."""

KEPT_STEP_SECONDS = 4.0
"""Further patience for each member that the sum lacks. An accusation has reached every member by
then, and its effects are under way."""

AVERAGES_SECONDS = 26.0
"""Least time from the first vote to the accusation of a predecessor that has voted. It ends a
little before others lose patience with members that have not voted (`Patience.vote_seconds`)."""

STALL_MORE_SECONDS = 60.0
"""The others may have gone out one after the other by then, and each time the ring went on."""

LATE_STEP_SECONDS = 12.0
"""`KEPT_STEP_SECONDS` in a ring that is late. Its time runs from where each member began to follow
the ring, and a predecessor waits 10 s for a member to do so (`HELLO_SECONDS` in
`node.rounds.dispatcher`)."""

STILL_SECONDS_MAX = 1.0
"""Longest time between two ticks that counts as time in which nothing happened. Ticks come every
tenth of a second. A process that was stopped longer has yet to read what came meanwhile."""


def kept_seconds(rules: RoundRules, num_members: int) -> float:
    """Patience of a member with a successor that alone is not in its copy of a sum.

    The average comes back to it after as many transfers of a chunk as the ring has members. So
    small chunks, which short rounds have, need little more than the least patience. Where members
    train in their ring, they may wait for a part for a third of `KEPT_SECONDS`.
    """
    if rules.payloads.are_steps:
        return KEPT_SECONDS
    walk_seconds = num_members * rules.chunk_bytes(num_members) / SLOW_LINE_BYTES_PER_SECOND
    return min(KEPT_SECONDS_MIN + walk_seconds, KEPT_SECONDS)


def whole_seconds(rules: RoundRules, num_members: int) -> float:
    """Time after which a ring is late.

    It is what a member sends on a line of 1 Mbit/s, and as long as a round trains: a ring waits so
    long for a member whose owner limits its upload (`link_rates.LIMIT_PATIENCE_FRACTION`). Where
    members train in their ring it is never late.
    """
    if rules.payloads.are_steps:
        return math.inf
    ring_bytes = 2 * (num_members - 1) * rules.num_chunks * rules.chunk_bytes(num_members)
    return rules.round_seconds + ring_bytes / num_members / SLOW_LINE_BYTES_PER_SECOND


class Patience:
    """One member's patience with one ring. Events carry the local clock in seconds."""

    def __init__(self, rules: RoundRules, num_members: int, now: float) -> None:
        self._kept_seconds = kept_seconds(rules, num_members)
        self._whole_seconds = whole_seconds(rules, num_members)
        self._trains_in_ring = rules.payloads.are_steps
        self.progress_seconds = now
        """Local time of the last progress of the ring, or of this peer's removal."""
        self._ticked_seconds = now
        """Local time of the last tick."""
        self._still_seconds = 0.0
        """Time since the last progress, without that in which this process did not run."""
        self._ran_seconds = 0.0
        """Time since the ring began, without that in which this process did not run."""
        self._progress_ran_seconds = 0.0
        """`_ran_seconds` at the last progress."""
        self._anew_seconds = 0.0
        """`_ran_seconds` when a member was last put out."""
        self._votes: dict[PeerId, tuple[bytes, float]] = {}
        """The header that each other member votes for, and `_ran_seconds` at its first vote."""
        self._longest_still_seconds = 0.0
        """The longest such time since a member was put out. What others do without a member may
        arrive before the accusation does."""
        self.lost_seconds = 0.0
        """Time in which the ring stood still, or was late, before members were put out."""

    @property
    def stall_seconds(self) -> float:
        """Local time at which this peer stops waiting for progress."""
        patience = max(STALL_SECONDS, self.worked_seconds + STALL_MORE_SECONDS)
        return self.progress_seconds + patience

    @property
    def worked_seconds(self) -> float:
        """Time for which the ring worked until its last progress, without that in which it stood
        still for members that were put out."""
        return self._worked_until(self._progress_ran_seconds)

    @property
    def may_be_over(self) -> bool:
        """Returns whether the ring has stood still for so long that `is_over` may be true."""
        is_still = self._still_seconds >= self._kept_seconds - SUSPECT_SECONDS
        return is_still or self._late_seconds >= KEPT_SECONDS

    @property
    def _late_seconds(self) -> float:
        """Time for which the ring has been late."""
        return max(0.0, self._ran_seconds - self._anew_seconds - self._whole_seconds)

    def _patience_since(self, ran_seconds: float) -> float:
        """Patience beside votes, of which the first came after so long."""
        return max(AVERAGES_SECONDS, self._worked_until(ran_seconds))

    def _worked_until(self, ran_seconds: float) -> float:
        """Time for which the ring had worked after so long. Where members train in their ring,
        averages come at each step, and no patience grows."""
        return 0.0 if self._trains_in_ring else max(0.0, ran_seconds - self.lost_seconds)

    @property
    def vote_seconds(self) -> float:
        """Patience of a member that votes now with those that have not."""
        return self._patience_since(self._ran_seconds) + VOTE_SECONDS - AVERAGES_SECONDS

    def voted(self, author: PeerId, header_digest: bytes) -> None:
        """Another member voted for a header."""
        if self._votes.get(author, (b"", 0.0))[0] != header_digest:
            self._votes[author] = header_digest, self._ran_seconds

    def is_over_beside_votes(self, predecessor: PeerId) -> bool:
        """Returns whether it is time to accuse the predecessor, which has voted."""
        digest, _ = self._votes[predecessor]
        first = min(ran for each, ran in self._votes.values() if each == digest)
        since_seconds = max(first, self._anew_seconds)
        return self._ran_seconds - since_seconds >= self._patience_since(since_seconds)

    def progressed(self, now: float) -> None:
        """Something happened in the ring."""
        self.progress_seconds, self._progress_ran_seconds = now, self._ran_seconds
        self._longest_still_seconds = max(self._longest_still_seconds, self._still_seconds)
        self._still_seconds = 0.0

    def ticked(self, now: float) -> None:
        """Time passed."""
        since_seconds = max(self._ticked_seconds, self.progress_seconds)
        self._still_seconds += min(now - since_seconds, STILL_SECONDS_MAX)
        self._ran_seconds += min(now - self._ticked_seconds, STILL_SECONDS_MAX)
        self._ticked_seconds = now

    def member_removed(self, now: float) -> float:
        """A member was put out. Returns how long the ring stood still for it, or was late, in
        seconds."""
        self.progressed(now)
        still_seconds = max(self._longest_still_seconds, self._late_seconds)
        self._longest_still_seconds, self._anew_seconds = 0.0, self._ran_seconds
        self.lost_seconds += still_seconds
        return still_seconds

    def is_over(self, missing: int, *, is_well_beside: bool, is_suspect: bool) -> bool:
        """Returns whether it is time to accuse the successor of keeping a sum.

        Args:
            missing: members that this peer's copy of some sum lacks, at least.
            is_well_beside: whether nothing but the successor may be why the ring stands still.
            is_suspect: whether the successor has lately kept a sum.
        """
        if self._late_seconds >= KEPT_SECONDS + LATE_STEP_SECONDS * (missing - 1):
            return True
        longest = max(KEPT_SECONDS, self.worked_seconds)
        if missing != 1 or not is_well_beside:
            return self._still_seconds >= longest + KEPT_STEP_SECONDS * (missing - 1)
        patience = self._kept_seconds - (SUSPECT_SECONDS if is_suspect else 0.0)
        patience = max(patience, WORKED_FACTOR * self.worked_seconds)
        return self._still_seconds >= min(patience, longest)
