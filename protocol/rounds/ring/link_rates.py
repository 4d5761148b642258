"""Members far slower than the rest of a ring, so that one slow line does not slow the ring.

Rules
-----
- The rate of a link is measured over the newest seconds in which it had something to send. The
  window is `WINDOW_FRACTION` of the round so far, within `WINDOW_SECONDS_MIN` and
  `WINDOW_SECONDS_MAX`. So a line that becomes slow in the middle of a ring shows soon.
- Every member says the rate of the link to its successor (`LinkRate`) `SAMPLE_SECONDS` after its
  ring began, and the highest rate at which chunks came to it. It says both again when one of them
  has changed by `CHANGE_FACTOR`, at most `limits.LINK_RATES_MAX` times in all.
- A link counts as no faster than the highest rate at which its receiver says that chunks came. So
  one false word makes no link fast: its other end contradicts it. With shared steps the line pauses
  between chunks, so what arrives says little of it, and the sender's word counts as it is.
- A link that waits for its input has almost nothing to send, and its rate is that of the links
  before it or of its round trip. So a link is judged, and said to have become slower, only when the
  bytes that wait for it would take `LAG_SECONDS` at its rate. At the beginning of a ring every
  member sends chunks that it starts itself.
- A link is slow if it is `SLOW_FACTOR` times slower than the upper median of what the other living
  members said. A member that said nothing counts as one with the rate zero, so that one member that
  speaks first, and of a rate that it does not have, finds no link slow.
- In a ring of three the word of the predecessor alone counts. The successor's word would be a
  verdict in its own favour.
- With shared steps each chunk waits for the one before, so the round waits for a busy link. A link
  is judged when it was busy over `PATIENCE_FRACTION` of the other time.
- A link that moves no bytes is silent, not slow: the driver ends it. A link is judged by at least
  the last `STEPS_MIN` moves of bytes. In a gap between two looks this process did not run.
- A link is worth giving up if it is slow and its remaining bytes would take longer, at its rate,
  than both `PATIENCE_SECONDS_MIN` and `PATIENCE_FRACTION` of the round so far.
- Then the successor is the slow one, unless the predecessor's link to this peer is slow as well:
  then this peer is. When a second successor looks slow, this peer's own line is slow too. A peer
  found slow in the ring before, this one or its successor, is the slow one at once.
- Before the predecessor's rate is known, the verdict waits `PREDECESSOR_SECONDS` for it. If input
  has become as slow as output, it waits `WORD_SECONDS` for the predecessor's next rate.
- With shared steps this peer is the slow one, unless its successor says within `STEPS_WORD_SECONDS`
  that its own link is slow as well. One slow line keeps all others idle, so the sender on that line
  sees no other slow link (home lines are slower up than down), and would blame a neighbour. If a
  member between this peer and the successor left for the same reason, then two members found this
  successor slow, and the successor goes.
- A link may carry its first chunk to the end, within that patience. If a slow member were removed
  at once, all its work would become stale.
- In a ring of two there is no third member to compare with.
- A member whose owner limits its upload knows why its link is slow, and blames no neighbour: at
  `LIMIT_SHARE` of the limit or more the link is as fast as it may be. The ring waits for it as long
  as it lasts no longer than the round so far (`LIMIT_PATIENCE_FRACTION`); else this peer leaves.

The slow member is removed from this ring. Its finished parts count; the rest is carried. Times
are seconds of the local clock.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.measured_link import (
    PATIENCE_FRACTION,
    LinkMeasure,
    Mark,
    MeasuredLink,
)
from gossamer.protocol.wire.statements import LinkRate

SAMPLE_SECONDS = 1.0
"""Shortest time over which a rate is measured. It is long against a round trip over an ocean and a
scheduling delay, and short against a ring that a slow line delays."""

VERDICT_SECONDS = 1.5
"""Busy time that a link needs before it is called slow."""

WINDOW_SECONDS_MIN = VERDICT_SECONDS
WINDOW_SECONDS_MAX = 10.0
"""Longest window; it is longer than the silence after which a member is given up."""

WINDOW_FRACTION = 0.1
"""Window as a part of the round so far, so that a line that hesitates for seconds stays in a round
that takes minutes. With `PATIENCE_FRACTION` it stays below the half that a slow member may add."""

CHANGE_FACTOR = 2.0
"""Change of a rate that is announced. It is small against `SLOW_FACTOR`: when all lines become slow
together, each member hears so before it judges."""

PATIENCE_SECONDS_MIN = 2.0
"""A slow link that is done this soon is waited for, however short the round was."""

PREDECESSOR_SECONDS = 3.0
"""Time for the predecessor to say its rate; see `SAMPLE_SECONDS`."""

WORD_SECONDS = 3.0
"""A member that saw the same line become slow at the same time has said so by then. It measures at
most a second later, and its statement travels over that line behind the bytes queued there."""

STEPS_WORD_SECONDS = VERDICT_SECONDS / PATIENCE_FRACTION
"""A slow link of shared steps may be busy for little more than that part of the time, and is judged
when that was `VERDICT_SECONDS`. Both links of a slow line are, one after the other."""

SLOW_FACTOR = 8.0
"""Factor below the others' rates at which a link is slow. Home lines differ by a factor of five (10
to 50 Mbit/s up) and may well be in one ring."""

LIMIT_SHARE = 0.25
"""Part of its owner's limit that a link uses at least when the limit is what makes it slow. The
rest is for other members that fetch the state, and for announcements."""

LIMIT_PATIENCE_FRACTION = 1.0
"""Part of the time that the round took until its ring began for which the ring may wait for a
member with a limit. The owner chose it, so it does not pass by itself: with less patience the
member would never be in a round, and with this one a round is at most twice as long."""

BUSY_SECONDS_MIN = 0.25
"""Busy time that a rate needs unless a whole chunk was received. A shorter time says more about
round trips than about the line."""


class Verdict(NamedTuple):
    """The member that the ring goes on without (None: no member), and why."""

    member: PeerId | None
    reason: str


class _Word(NamedTuple):
    """The newest rates that a member said."""

    sequence: int
    bytes_per_second: float
    """Of the link to its successor."""
    arrived_bytes_per_second: float
    """The highest one at which chunks came to it."""


class RingLinkRates:
    """One member's view of the link rates of one ring.

    It has more than 7 parameters: each is a fact of the ring that the rule for slow links needs. It
    has more than 12 attributes: the sizes of the ring, and what was measured, said and found.
    """

    def __init__(
        self,
        members: Sequence[PeerId],
        me: PeerId,
        *,
        began_seconds: float,
        chunk_bytes: int,
        num_chunks: int,
        round_seconds: float,
        was_slow: frozenset[PeerId] = frozenset(),
        is_in_steps: bool = False,
    ) -> None:
        """
        Args:
            chunk_bytes: size of an encoded chunk.
            round_seconds: time from the beginning of the round to the beginning of its ring.
            was_slow: `found_slow` of the ring before.
            is_in_steps: whether each chunk waits for the one before.
        """
        self._members = tuple(members)
        self._me = me
        self._began_seconds = began_seconds
        self._chunk_bytes = chunk_bytes
        num_members = len(self._members)
        # Every chunk passes as partial sum and as average, except at its end.
        self._bytes_to_send = 2 * (num_members - 1) * num_chunks * chunk_bytes // num_members
        self._round_seconds = round_seconds
        self._is_in_steps = is_in_steps
        self._patience_seconds = max(PATIENCE_SECONDS_MIN, PATIENCE_FRACTION * round_seconds)
        self._limit_patience_seconds = max(
            self._patience_seconds, LIMIT_PATIENCE_FRACTION * round_seconds
        )
        self._limit_bytes_per_second = math.inf
        """The owner's present limit of all that this peer sends."""
        self._words: dict[PeerId, _Word] = {}
        self._links: dict[PeerId, MeasuredLink] = {}
        self._arrivals: deque[float] = deque(maxlen=2 * num_chunks)
        """Times at which the newest chunks came to this peer."""
        self._num_arrived = 0
        self._arrived_bytes_per_second = 0.0
        """Highest rate at which chunks came to this peer, from the beginning of the ring on."""
        self._num_said = 0
        self._said = self._said_arrived = 0.0
        """The rates that this peer said last."""
        self._was_slow = was_slow
        self._found: dict[PeerId, PeerId] = {}
        """The member whose line is slow to the member that found it, which may be itself."""

    def said(self, author: PeerId, word: LinkRate) -> None:
        """Another member said its link rate. The highest sequence is the newest."""
        if author not in self._members or author == self._me:
            return
        known = self._words.get(author)
        if known is None or word.sequence > known.sequence:
            arrived = word.arrived_bytes_per_second
            self._words[author] = _Word(word.sequence, word.bytes_per_second, arrived)

    def put_out(self, author: PeerId, accused: PeerId) -> None:
        """A member excluded another with a slow line, or left because its own line is slow."""
        if author == accused:  # the members that it blamed before are not slow
            cleared = {peer for peer, finder in self._found.items() if finder == author}
        else:
            cleared = self._left_between(author, accused)
        self._found = {peer: by for peer, by in self._found.items() if peer not in cleared}
        self._found[accused] = author

    @property
    def found_slow(self) -> frozenset[PeerId]:
        """Members whose lines are far slower than the others', this peer among them if so."""
        return frozenset(self._found)

    def received(self, now: float) -> None:
        """A chunk arrived here."""
        self._arrivals.append(now)
        self._num_arrived += 1
        seconds = max(now - self._began_seconds, BUSY_SECONDS_MIN)
        rate = self._num_arrived * self._chunk_bytes / seconds
        self._arrived_bytes_per_second = max(self._arrived_bytes_per_second, rate)

    def measured(self, now: float, peer: PeerId, measure: LinkMeasure) -> None:
        """The totals of the link to a member."""
        self._limit_bytes_per_second = measure.limit_bytes_per_second
        if peer not in self._links:
            marks = deque([Mark(now - measure.busy_seconds, 0.0, 0)])
            self._links[peer] = MeasuredLink(now, marks, self._is_in_steps)
        link = self._links[peer]
        link.look(now, measure, self._window_seconds(now))

    def to_say(self, now: float, successor: PeerId) -> tuple[int, float, float] | None:
        """Sequence, rate of the link and highest rate of arrival in bytes per second, if they have
        to be said now; else None."""
        link = self._links.get(successor)
        if link is None or self._num_said == limits.LINK_RATES_MAX:
            return None
        link_rate = link.bytes_per_second
        if self._num_said and not self._is_news(link, link_rate):
            return None
        if not self._num_said and not self._is_sampled(now, link):
            return None
        self._num_said += 1
        self._said, self._said_arrived = link_rate, self._arrived_bytes_per_second
        return self._num_said, link_rate, self._said_arrived

    def _is_sampled(self, now: float, link: MeasuredLink) -> bool:
        if now < self._began_seconds + SAMPLE_SECONDS:
            return False
        return link.busy_seconds >= BUSY_SECONDS_MIN or link.acked_bytes >= self._chunk_bytes

    def _is_news(self, link: MeasuredLink, link_rate: float) -> bool:
        if self._arrived_bytes_per_second > CHANGE_FACTOR * self._said_arrived:
            return True
        if link.window_seconds < SAMPLE_SECONDS or not link.goes_on:
            return False
        if link_rate < self._said:
            return CHANGE_FACTOR * link_rate <= self._said and link.lags
        return link_rate > 0 and link_rate >= CHANGE_FACTOR * self._said

    def too_slow(self, now: float, living: Sequence[PeerId], successor: PeerId) -> Verdict:
        """Returns the verdict that follows from the link rates: this peer's successor is out, this
        peer is out, or no member is.

        Args:
            living: members that are believed living, in ring order, with this peer.
        """
        link = self._links.get(successor)
        if link is None or not link.goes_on:
            return Verdict(None, "the link is not measured, or it pauses")
        threshold = self._threshold(living)
        if threshold is None:
            return Verdict(None, "too few members said a link rate")
        if not self._is_slow(link, threshold):
            link.slow_since_seconds = None
            return Verdict(None, "the link is not slow")
        if link.bytes_per_second >= LIMIT_SHARE * self._limit_bytes_per_second:
            if self._is_done_within(link, self._limit_patience_seconds):
                return Verdict(None, "the owner's limit makes the link slow, and the ring waits")
            return Verdict(self._me, "the owner's limit of the upload is too low for this ring")
        if link.slow_since_seconds is None:
            link.slow_since_seconds = now
        link_rate_to_me = self._link_rate_to_me(living)
        if link_rate_to_me is None and now < self._began_seconds + PREDECESSOR_SECONDS:
            return Verdict(None, "the predecessor may yet say its link rate")
        if link_rate_to_me is not None and link_rate_to_me < threshold:
            return Verdict(self._me, "the predecessor's link to this peer is slow as well")
        if self._me in self._found.values():
            return Verdict(self._me, "a second successor looks slow")
        if self._me in self._was_slow:
            return Verdict(self._me, "this peer was slow in the ring before")
        if successor in self._was_slow:
            return Verdict(successor, "the successor was slow in the ring before")
        if self._left_between(self._me, successor):
            return Verdict(successor, "two members found this successor slow")
        return self._after_words(now, link.slow_since_seconds, threshold, successor)

    def _after_words(
        self, now: float, slow_since_seconds: float, threshold: float, successor: PeerId
    ) -> Verdict:
        """The verdict on a slow link, once a neighbour had the time to say its own link rate."""
        if self._is_in_steps:
            word = self._words.get(successor)
            if word is not None and word.bytes_per_second < threshold:
                return Verdict(successor, "the successor's own link is slow as well")
            if now < slow_since_seconds + STEPS_WORD_SECONDS:
                return Verdict(None, "the successor may yet say that its own link is slow")
            return Verdict(self._me, "the successor did not say that its own link is slow")
        is_fed = self._arriving_bytes_per_second(now) >= threshold
        if not is_fed and now < slow_since_seconds + WORD_SECONDS:
            return Verdict(None, "the predecessor may yet say that its link became slow")
        rate = self._links[successor].bytes_per_second
        rates = f"{rate / 1e6:.2f} MB/s, and less than {threshold / 1e6:.2f} is slow"
        return Verdict(successor, f"only the link to the successor is slow: {rates}")

    def _left_between(self, author: PeerId, accused: PeerId) -> set[PeerId]:
        """Members that left a ring of shared steps because the link to the accused looked slow."""
        if not self._is_in_steps:
            return set()
        first = self._members.index(author) + 1
        after = self._members[first:] + self._members[:first]
        between = after[: after.index(accused)]
        return {peer for peer in between if self._found.get(peer) == peer}

    def _window_seconds(self, now: float) -> float:
        so_far_seconds = self._round_seconds + now - self._began_seconds
        return min(max(WINDOW_SECONDS_MIN, WINDOW_FRACTION * so_far_seconds), WINDOW_SECONDS_MAX)

    def _arriving_bytes_per_second(self, now: float) -> float:
        # The window of a link does not fit: chunks from before the line became slow would count
        # for a while and hide that no chunk arrives any more.
        num_chunks = sum(seconds > now - SAMPLE_SECONDS for seconds in self._arrivals)
        # One of them was under way when that second began.
        return max(0, num_chunks - 1) * self._chunk_bytes / SAMPLE_SECONDS

    def _threshold(self, living: Sequence[PeerId]) -> float | None:
        """The rate below which a link is slow; None: too few members have said a rate."""
        if not self._words:
            return None
        others = [peer for peer in living if peer != self._me]
        if len(others) < 2:
            return None
        if len(others) == 2:
            others = [living[living.index(self._me) - 1]]
        usual = statistics.median_high(self._checked_rate(peer, living) for peer in others)
        return usual / SLOW_FACTOR if usual > 0 else None

    def _checked_rate(self, sender: PeerId, living: Sequence[PeerId]) -> float:
        """The rate that a member said of its link, as far as its receiver saw it; 0: the member
        said nothing."""
        word = self._words.get(sender)
        if word is None:
            return 0.0
        receiver = living[(living.index(sender) + 1) % len(living)]
        if receiver == self._me:
            seen: float | None = self._arrived_bytes_per_second
        else:
            theirs = self._words.get(receiver)
            seen = None if theirs is None else theirs.arrived_bytes_per_second
        if seen is None or self._is_in_steps:
            return word.bytes_per_second
        return min(word.bytes_per_second, seen)

    def _is_slow(self, link: MeasuredLink, threshold: float) -> bool:
        """Returns whether a link is worth giving up."""
        if link.window_seconds < VERDICT_SECONDS:
            return False
        if link.acked_bytes < self._chunk_bytes and link.busy_seconds < self._patience_seconds:
            return False
        if link.bytes_per_second >= threshold or not link.lags:
            return False
        return not self._is_done_within(link, self._patience_seconds)

    def _link_rate_to_me(self, living: Sequence[PeerId]) -> float | None:
        """The rate that the living predecessor said of its link to this peer; None: unknown."""
        predecessor = self._members[self._members.index(self._me) - 1]
        word = self._words.get(predecessor) if predecessor in living else None
        return None if word is None else word.bytes_per_second

    def _is_done_within(self, link: MeasuredLink, seconds: float) -> bool:
        sent_bytes = sum(each.acked_bytes for each in self._links.values())
        left_bytes = max(link.waiting_bytes, self._bytes_to_send - sent_bytes)
        return left_bytes <= link.bytes_per_second * seconds
