"""The conduct of members in rings: peers that spoil rings again and again sit out.

A ring believes every accusation, because it cannot go on with two members that do not reach each
other (`rounds.ring.ring_members`). So a member that keeps what it should pass on, or one that
accuses others without a reason, costs every round some seconds. This module remembers for one node
who did so. All members of a ring hear the same accusations, so they come to the same conclusion,
give or take a round.

Rules
-----
- Only rings of `MEMBERS_MIN` members or more count: in smaller ones nobody can tell who is at
  fault.
- A member that its neighbour puts out, while chunks go round, gets a mark from its accuser.
  `ACCUSERS_MAX` marks of different accusers within `MEMORY_ROUNDS` rounds, or `MARKS_MAX` marks,
  and it sits out.
- A member that accuses another one which is not its neighbour, while chunks go round, gets a mark
  itself: it cannot know. `WRONG_MAX` of these within `MEMORY_ROUNDS`, and it sits out.
- While members vote, each may put out any other that delays that, neighbour or not. It is a mark
  only if this peer has waited for that vote itself, nearly as long as it would. Nothing else that
  is said then counts: members that have committed the ring hear no more of it, and those that
  remember what others do not would refuse rings in which these take part.
- A member that alone puts out all others of its ring sits out, and its marks count no more: the
  fault is its own, or that of its line. Nor does a member that was cut off itself hold its own
  accusations of that ring against the others.
- A peer that accuses a neighbour, or is accused by one, is not its neighbour for `MEMORY_ROUNDS`
  rounds: each names the other in its `Ready` among those that are neighbours only where nothing
  else is left (`is_avoided`). So an accusation that nobody shares separates the two, and expels
  neither. A neighbour that this peer put out, and to which it has no connection any more, is not
  avoided when it is back: the connection is a new one.
- A slow line is no fault, so a peer that is put out as slow gets no mark. As long as one accuser
  alone found it slow within `MEMORY_ROUNDS`, the two are no neighbours either. A line that is slow
  to the next neighbour as well is in rings again next to everybody.
- A member that a single other one put out, or one of several in the vote, may say that it is at
  work all the same, but not where that one may have waited long enough for its vote. Unless others
  put it out as well within `MEMORY_ROUNDS` rounds, its accuser is doubted for so long: what it says
  against a member counts only if that one does not answer (`rounds.ring.ring_members`). So a peer
  has one such accusation in `MEMORY_ROUNDS` rounds, and none for `FORGET_ROUNDS` after it sat out.
- An answer is a mark for the one that it answers. If the two are not neighbours, it sits out. The
  one that is answered holds nothing against the other one: it spoke first, and would leave that one
  out of its rings otherwise.
- An organiser whose rosters leave out ready peers in `UNFAIR_MAX` of `MEMORY_ROUNDS` rounds is
  unfair for `FORGET_ROUNDS` rounds, and again from each further one on: this peer mends its rosters
  (`rounds.ring_choice`). A peer that was left out as often, by several organisers, is wronged for
  as long: this peer mends all rosters without it. Nothing else follows, because gossip may be late.
- An organiser that replaces its own rings again and again (`rounds.ring_choice`) sits out from its
  second such round within `MEMORY_ROUNDS` on. Its signatures show it, so this counts in all rings.
- A peer sits out for longer each time (`SitOut`). Within `FORGET_ROUNDS` after it is back a single
  accusation of a member that is not its neighbour is enough, or a single mark of a member that had
  no part in that before, or of any member once more than half of the others had. Other marks make
  it sit out as they did the first time, and no longer. So a few that lie together keep nobody out
  for long, while one that spoils rings is found by another neighbour each time.
- A peer that acknowledged sums and kept them costs a ring seconds, however short rounds are. It
  sits out at least `LOST_FACTOR` times the rounds that usually take as long as its rings stood
  still. It is suspected until that is forgotten: the member before it in a ring has less patience
  with it (`rounds.ring.followed_ring`).
- Where rounds are taken back, or another branch with fewer rounds is followed, what is left of all
  these times stays as long as it was (`rounds_back`).

A peer that sits out is in no ring in which this node takes part, and no round waits for it. It may
train on: its work is carried until it is back.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.conduct_record import (
    MARKS_MAX,
    UNFAIR_MAX,
    WRONG_MAX,
    Mark,
    Record,
)
from gossamer.protocol.policy.conduct.sit_out import FORGET_ROUNDS

MEMBERS_MIN = 4
MEMORY_ROUNDS = 16
"""Rounds in which marks count: with rounds of a minute a quarter of an hour."""

ACCUSERS_MAX = 2

LOST_FACTOR = 2.0
"""Rounds that a peer which kept sums sits out, for each that was lost by it. To keep half of the
rounds one would do, but for the waits of other kinds that come with such a peer."""

TOOK_ROUNDS = 16
"""Rounds whose median says how long a round usually takes: as many as marks count in."""

PEERS_MAX = 1024
"""Peers that are remembered; the one that was marked longest ago is forgotten first. Identities are
free, and a forgotten one begins again with a clean sheet as a new one would."""


class VotesSeen(NamedTuple):
    """What this peer sees of a ring's votes when a member is put out."""

    have_begun: bool = False
    """Whether this peer has all averages, or more than half of the members have voted."""
    is_late: bool = False
    """Whether this peer is itself about to accuse that member for its vote."""
    may_be_late: bool = False
    """Whether the accuser voted so long ago that it may accuse any member for its vote."""


NO_VOTES = VotesSeen()


class RingConduct:
    """One peer's memory of how the others behave in rings."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._records: OrderedDict[PeerId, Record] = OrderedDict()
        self._took_seconds: deque[float] = deque(maxlen=TOOK_ROUNDS)

    def round_took(self, seconds: float) -> None:
        """A round was committed, and took so long beside the time that its ring stood still."""
        self._took_seconds.append(seconds)

    def put_out(
        self,
        round_number: int,
        accuser: PeerId,
        accused: PeerId,
        order: Sequence[PeerId],
        votes: VotesSeen = NO_VOTES,
        *,
        is_slow: bool = False,
        is_gone: bool = False,
        is_answer: bool = False,
        is_reply: bool = False,
        alone_of: int = 0,
        lost_seconds: float = 0.0,
        num_members: int = 0,
    ) -> None:
        """A member is newly out of a ring of this round.

        Args:
            order: the members that were in until then, in ring order, the accused among them.
            is_slow: whether its line is said to be far slower than the others'.
            is_gone: whether this peer has no connection to it any more.
            is_answer: whether it had accused its accuser, perhaps as slow, and this peer doubts it.
            is_reply: whether its accuser only says that this peer accused it without a cause.
            alone_of: members of the ring, if the accuser alone has put out all others; else 0.
            lost_seconds: time in which the ring stood still because the accused kept sums.
            num_members: of the whole ring, if some were out by then. Else a few accusers would put
                out others first, and be half of those that are left.
        """
        if alone_of >= MEMBERS_MIN:
            self._discredit(accuser, round_number)
            if accuser != self._me:
                self._sit_out(self._record(accuser), round_number)
            return
        if len(order) < MEMBERS_MIN or accuser == accused:
            return
        are_neighbours = _are_neighbours(order, accuser, accused)
        if is_answer and not are_neighbours:
            if not votes.have_begun:
                self._sit_out(self._record(accused), round_number)
            return
        if is_slow and are_neighbours:
            if not is_answer:
                self._record(accused).slow.append(Mark(round_number, accuser))
            return
        if votes.is_late if votes.have_begun else are_neighbours:
            mark = Mark(round_number, accuser, lost_seconds)
            self._mark(accused, mark, max(num_members, len(order)))
        if votes.is_late or are_neighbours:
            if accused == self._me:
                self._record(accuser).avoided_until = round_number + MEMORY_ROUNDS
            elif accuser == self._me and not is_gone:
                self._record(accused).found_until = round_number + MEMORY_ROUNDS
        elif not votes.have_begun and not is_reply:
            self._did_wrong(accuser, round_number)

    def contested(
        self, round_number: int, accuser: PeerId, accused: PeerId, num_members: int
    ) -> None:
        """A member that only `accuser` put out of a ring of so many members is at work."""
        if num_members >= MEMBERS_MIN:
            self._record(accuser).contested.append(Mark(round_number, accused))

    def left_out(self, round_number: int, organiser: PeerId, peers: Collection[PeerId]) -> None:
        """A roster of a round leaves out peers that are ready."""
        record = self._record(organiser)
        if _is_often(record.left_out, round_number) or round_number <= record.unfair_until:
            record.unfair_until = round_number + FORGET_ROUNDS
        for peer in peers:
            record = self._record(peer)
            if _is_often(record.missed, round_number) or round_number <= record.wronged_until:
                record.wronged_until = round_number + FORGET_ROUNDS

    def unsettled(self, round_number: int, organiser: PeerId) -> None:
        """An organiser replaces its own rings again and again in a round."""
        self._did_wrong(organiser, round_number)

    def unfair(self, round_number: int) -> frozenset[PeerId]:
        """Returns the organisers whose rosters this peer mends in a round."""
        return frozenset(
            peer for peer, record in self._records.items() if round_number <= record.unfair_until
        )

    def wronged(self, round_number: int) -> frozenset[PeerId]:
        """Returns the peers without which this peer mends all rosters of a round."""
        return frozenset(
            peer for peer, record in self._records.items() if round_number <= record.wronged_until
        )

    def suspected(self, round_number: int) -> frozenset[PeerId]:
        """Returns the peers that have lately kept sums, as this peer knows in a round."""
        return frozenset(
            peer for peer, record in self._records.items() if round_number <= record.suspected_until
        )

    def doubted(self, round_number: int) -> frozenset[PeerId]:
        """Returns the peers whose accusations the accused may answer in a round."""
        return frozenset(
            peer
            for peer, record in self._records.items()
            if peer != self._me and self._is_doubted(round_number, peer, record)
        )

    def _is_doubted(self, round_number: int, peer: PeerId, record: Record) -> bool:
        return record.sit_out.was_lately(round_number) or any(
            _counts(mark.round, round_number)
            and not self._is_shared(round_number, peer, mark.accuser)
            for mark in record.contested
        )

    def _is_shared(self, round_number: int, accuser: PeerId, accused: PeerId) -> bool:
        """Returns whether others lately found the same fault as an accuser."""
        record = self._records.get(accused)
        if record is None:
            return False
        return record.sit_out.was_lately(round_number) or any(
            mark.accuser != accuser and _counts(mark.round, round_number)
            for mark in (*record.marks, *record.slow)
        )

    def rounds_back(self, num_rounds: int) -> None:
        """The numbers of rounds go back by so many: nothing lasts longer because of that."""
        for record in self._records.values():
            record.rounds_back(num_rounds)

    def disconnected(self, peer: PeerId) -> None:
        """The connection to a peer ended: what this peer found wrong with it may be gone too."""
        if (record := self._records.get(peer)) is not None:
            record.found_until = 0

    def sits_out(self, round_number: int, peer: PeerId) -> bool:
        """Returns whether a peer sits a round out."""
        record = self._records.get(peer)
        return record is not None and record.sit_out.holds(round_number)

    def is_avoided(self, round_number: int, peer: PeerId) -> bool:
        """Returns whether a peer is to be no neighbour of this peer in a round."""
        record = self._records.get(peer)
        if record is not None and round_number <= max(record.avoided_until, record.found_until):
            return True
        return self._found_slow_by(round_number, peer) == {self._me} or (
            self._found_slow_by(round_number, self._me) == {peer}
        )

    def _found_slow_by(self, round_number: int, peer: PeerId) -> set[PeerId]:
        """The peers that lately put a peer out as slow."""
        record = self._records.get(peer)
        marks = () if record is None else record.slow
        return {each.accuser for each in marks if _counts(each.round, round_number)}

    def _in_rounds(self, seconds: float) -> float:
        """The rounds that usually take so long; 0 before a round was committed here."""
        took_seconds = statistics.median(self._took_seconds) if self._took_seconds else 0.0
        return seconds / took_seconds if took_seconds > 0.0 else 0.0

    def _sit_out(
        self, record: Record, round_number: int, at_least: int = 0, *, is_longer: bool = True
    ) -> None:
        if not record.sit_out.was_lately(round_number):
            record.accusers.clear()
        record.sit_out.begin(round_number, at_least, is_longer=is_longer)
        record.marks.clear()

    def _mark(self, accused: PeerId, mark: Mark, num_members: int) -> None:
        """A member of a ring of so many is at fault, as another one says."""
        record, round_number = self._record(accused), mark.round
        before = record.before(round_number, mark.accuser)
        record.marks.append(mark)
        recent = [each for each in record.marks if _counts(each.round, round_number)]
        accusers = {each.accuser for each in recent}
        has_kept = any(each.lost_seconds > 0.0 for each in recent)
        was_lately = record.sit_out.was_lately(round_number)
        known = record.accusers
        is_known = mark.accuser in known and 2 * len(known) < num_members
        if (
            (was_lately and not is_known)
            or len(accusers) >= ACCUSERS_MAX
            or len(recent) >= MARKS_MAX
        ):
            record.verdict = before
            lost = self._in_rounds(sum(each.lost_seconds for each in recent))
            at_least = math.ceil(LOST_FACTOR * lost)
            self._sit_out(record, round_number, at_least, is_longer=not is_known)
            record.accusers |= accusers
            if has_kept:
                record.suspected_until = record.sit_out.until + FORGET_ROUNDS
        elif has_kept:
            record.verdict = before._replace(marks=())
            record.suspected_until = max(record.suspected_until, round_number + MEMORY_ROUNDS)

    def _did_wrong(self, peer: PeerId, round_number: int) -> None:
        record = self._record(peer)
        record.wrong.append(round_number)
        wrong = sum(_counts(number, round_number) for number in record.wrong)
        if wrong >= WRONG_MAX or record.sit_out.was_lately(round_number):
            self._sit_out(record, round_number)

    def _discredit(self, accuser: PeerId, round_number: int) -> None:
        """What an accuser said of others counts no more, nor what followed from it this round."""
        for record in self._records.values():
            record.discredit(accuser, round_number)
            if accuser == self._me and record.found_until == round_number + MEMORY_ROUNDS:
                record.found_until = 0

    def _record(self, peer: PeerId) -> Record:
        record = self._records.setdefault(peer, Record())
        self._records.move_to_end(peer)
        if len(self._records) > PEERS_MAX:
            self._records.popitem(last=False)
        return record


def _counts(marked: int, now: int) -> bool:
    return now - MEMORY_ROUNDS < marked


def _is_often(rounds: deque[int], round_number: int) -> bool:
    """Notes a round, and returns whether there were `UNFAIR_MAX` within `MEMORY_ROUNDS`."""
    if round_number not in rounds:
        rounds.append(round_number)
    return sum(_counts(number, round_number) for number in rounds) >= UNFAIR_MAX


def _are_neighbours(order: Sequence[PeerId], one: PeerId, other: PeerId) -> bool:
    apart = abs(order.index(one) - order.index(other))
    return apart in (1, len(order) - 1)
