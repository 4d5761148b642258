"""When each peer was ready for a round, and when the wait for the others begins.

Rules
-----
- Peers that still train stop within the wait for the others. A `Ready` costs nothing, so it must
  not begin that wait alone: strangers that said at each head that they were ready cut rounds of
  10 s to a fifth of their work.
- The wait begins with the first `Ready` over at least `WHOLE` of a round's work, of a peer with
  stake. So the fastest peer sets the pace, and a peer that says that it worked has to answer for
  it: its work is in the ring, and is audited.
- Work that a peer carries from earlier rounds is none of this round. A peer may offer it at once,
  without training, and so begins no wait with it.
- The wait also begins when those are ready that have `SHARE` of the stake of this peer and all that
  are expected, and that have trained. In a swarm of four equal peers or fewer that is the first
  peer, also one that leaves early. In a large swarm some peer always leaves early, is paused, or
  has no data. It ends no training there, and its work is carried.
- At the latest each `Ready` begins the wait when a training may last no longer
  (`RoundRules.round_seconds`). So peers with stake that are frozen hold up no round for good.
- A newcomer that is faster than all members waits for them once, since it has no stake. Otherwise
  it would commit alone before they are ready.
- In a run's first round nobody has worked yet. There the first `Ready` begins the wait, and so it
  does where no peer has stake.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from gossamer.protocol.ids import PeerId

SHARE = Fraction(1, 4)
"""Share of the stake that begins the wait without a round's work. With a larger one more machines
are idle for those that are late. With a smaller one a single machine ends the rounds of more
others."""

WHOLE = Fraction(1, 2)
"""Part of a round's work that begins the wait. Where prompts are masked most tokens have no target,
and so do not count. There the wait begins by stake."""

ALL_DONE = Fraction(1)
"""A whole round's work."""


class ReadyTimes:
    """The times of one round at one peer, by its local clock in seconds."""

    def __init__(self, born_seconds: float, longest_seconds: float) -> None:
        """
        Args:
            born_seconds: when the round began.
            longest_seconds: time from then on after which each `Ready` begins the wait.
        """
        self._born_seconds = born_seconds
        self._longest_seconds = longest_seconds
        self._of: dict[PeerId, float] = {}
        """When each peer was ready first, the earliest first."""
        self._worked: dict[PeerId, float] = {}
        """When each of them first said that it did some of the round's work, the earliest first."""
        self._whole: set[PeerId] = set()
        """Those that did at least `WHOLE` of it."""
        self._stakes: Mapping[PeerId, int] | None = None
        """None: it is not known yet."""
        self._counted_seconds: float | None = None
        """When the wait began by work or by stake; None: it did not."""

    def note(self, now: float, peer: PeerId, done: Fraction) -> None:
        """A peer says that it is ready; it may say so again.

        Args:
            done: the part of the round's work that it did.
        """
        self._of.setdefault(peer, now)
        if done:
            self._worked.setdefault(peer, now)
        if done >= WHOLE:
            self._whole.add(peer)
        self._counted_seconds = self._find_counted()

    def expect(self, stakes: Mapping[PeerId, int]) -> None:
        """The stakes of the peers that are expected, and of this one."""
        self._stakes = stakes
        self._counted_seconds = self._find_counted()

    @property
    def wait_began_seconds(self) -> float | None:
        """When the wait for the others begins, which may be still to come; None: no peer is
        ready."""
        if not self._of:
            return None
        latest_seconds = max(self._first_seconds, self._born_seconds + self._longest_seconds)
        counted_seconds = self._counted_seconds
        return latest_seconds if counted_seconds is None else min(counted_seconds, latest_seconds)

    @property
    def last_seconds(self) -> float:
        """When the newest peer was ready; the beginning, if no peer is."""
        return max(self._of.values(), default=self._born_seconds)

    @property
    def late_seconds(self) -> float:
        """Time from the first `Ready` to the newest one."""
        return self.last_seconds - self._first_seconds if self._of else 0.0

    @property
    def _first_seconds(self) -> float:
        return next(iter(self._of.values()))

    def _find_counted(self) -> float | None:
        stakes = self._stakes
        if stakes is None or not self._of:
            return None
        ready, enough = 0, SHARE * sum(stakes.values())
        if not enough:
            return self._first_seconds
        for peer, seconds in self._worked.items():
            stake = stakes.get(peer, 0)
            ready += stake
            if ready >= enough or (stake and peer in self._whole):
                return seconds
        return None
