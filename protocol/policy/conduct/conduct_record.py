"""The things that a peer remembers of another one's conduct in rings (`ring_conduct`)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.sit_out import SitOut

MARKS_MAX = 4
"""Marks of one accuser may be the fault of the line between the two, so more are needed."""

WRONG_MAX = 2
UNFAIR_MAX = 2
"""Rounds in which an organiser left out others, or a peer was left out. One is what late gossip
does now and then; a mended ring costs a start, so nothing is lost where it does so twice."""


class Mark(NamedTuple):
    round: int
    accuser: PeerId
    lost_seconds: float = 0.0
    """Time in which the ring stood still because the peer kept sums."""


class Verdict(NamedTuple):
    """A mark that made a peer sit out or suspected, and what was held against that peer before."""

    round: int
    accuser: PeerId
    sit_out: SitOut
    suspected_until: int
    marks: tuple[Mark, ...]
    """Those that went away because it sits out."""
    accusers: frozenset[PeerId] = frozenset()


@dataclass
class Record:
    """The record of a peer: the things that are held against it.

    It has more than 12 attributes: each is one thing that is held against a peer, or how long it
    counts.
    """

    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS_MAX))
    slow: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS_MAX))
    """Neighbours that put it out as slow."""
    wrong: deque[int] = field(default_factory=lambda: deque(maxlen=WRONG_MAX))
    """Rounds of its accusations of members that are not its neighbours, and of rings that it
    replaced again and again."""
    contested: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS_MAX))
    """Its accusations of members that were at work all the same, with these as accusers."""
    avoided_until: int = 0
    """The last round for which it is no neighbour of this peer, which it accused."""
    found_until: int = 0
    """The last round for which it is no neighbour of this peer, which accused it."""
    left_out: deque[int] = field(default_factory=lambda: deque(maxlen=UNFAIR_MAX))
    """Rounds in which it left out others from its ring."""
    unfair_until: int = 0
    """The last round in which this peer mends its rosters."""
    missed: deque[int] = field(default_factory=lambda: deque(maxlen=UNFAIR_MAX))
    """Rounds in which others left it out of their rings."""
    wronged_until: int = 0
    """The last round in which this peer mends rosters without it."""
    suspected_until: int = 0
    """The last round in which it is suspected to keep sums."""
    sit_out: SitOut = field(default_factory=SitOut)
    accusers: set[PeerId] = field(default_factory=set)
    """The members whose marks made it sit out, until that is forgotten."""
    verdict: Verdict | None = None
    """The newest mark that made it sit out or suspected."""

    def before(self, round_number: int, accuser: PeerId) -> Verdict:
        """Returns what is held against the peer before this accuser's marks of a round: there is
        one in each ring of the round."""
        verdict = self.verdict
        if verdict is not None and verdict[:2] == (round_number, accuser):
            return verdict._replace(marks=(*verdict.marks, *self.marks))
        sit_out, marks = replace(self.sit_out), tuple(self.marks)
        accusers = frozenset(self.accusers)
        return Verdict(round_number, accuser, sit_out, self.suspected_until, marks, accusers)

    def discredit(self, accuser: PeerId, round_number: int) -> None:
        """What an accuser said of the peer counts no more, nor what followed from it this round."""
        verdict = self.verdict
        if verdict is not None and verdict[:2] == (round_number, accuser):
            self.sit_out, self.suspected_until = verdict.sit_out, verdict.suspected_until
            self.verdict = None
            self.marks.extend(verdict.marks)
            self.accusers = {*verdict.accusers}
        for marks in (self.marks, self.slow):
            kept = [mark for mark in marks if mark.accuser != accuser]
            marks.clear()
            marks.extend(kept)

    def rounds_back(self, num_rounds: int) -> None:
        """The numbers of rounds go back by so many."""
        self.verdict = None
        for marks in (self.marks, self.slow, self.contested):
            for index, mark in enumerate(marks):
                marks[index] = mark._replace(round=mark.round - num_rounds)
        for numbers in (self.wrong, self.left_out, self.missed):
            for index, number in enumerate(numbers):
                numbers[index] = number - num_rounds
        self.avoided_until -= num_rounds
        self.found_until -= num_rounds
        self.unfair_until -= num_rounds
        self.wronged_until -= num_rounds
        self.suspected_until -= num_rounds
        self.sit_out.rounds_back(num_rounds)
