"""Members whose work one peer found poor, again and again, sit out of the rings that it organises.

A verdict is a claim, and auditors may lie together: with three hostile members of eight two liars
are among the three auditors in more than a third of the audits. So a peer draws a conclusion only
from work that it has measured itself (`policy.auditing.audits`), and only if another auditor of the
same work agrees with it. Whatever liars say, no honest peer acts on it alone.

Rules
-----
- A member gets a mark from a peer that audited its work and found it poor, where another auditor
  of that work found it poor as well.
- An audit in which this peer finds the member's work good takes the marks away.
- With `MARKS_MAX` marks within `MEMORY_ROUNDS` rounds the member sits out, as long as one that
  spoils rings does (`policy.conduct.sit_out`).
- A member that sits out is not taken into rings that this peer organises, and this peer waits for
  it in no round. It may organise rings itself, and this peer takes part in them, and in those of
  others that have it: peers that measured different audits remember different members, and a ring
  that some of its members refuse stands still for all of them.

Nothing else follows: neither the weight of work, nor the choice of a head, nor a ban.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.auditing.audits import MEMORY_ROUNDS, PEERS_MAX
from gossamer.protocol.policy.conduct.sit_out import SitOut

MARKS_MAX = 2
"""One mark may be chance: the work of a round may lead away, and two auditors then see it."""


@dataclass
class _Record:
    """The measurement that a peer made of a member's work."""

    marks: deque[int] = field(default_factory=lambda: deque(maxlen=MARKS_MAX))
    """Rounds whose work was found poor, since the last that was found good."""
    sit_out: SitOut = field(default_factory=SitOut)


class PoorWork:
    """One peer's memory of the poor work that it has measured."""

    def __init__(self) -> None:
        self._records: OrderedDict[PeerId, _Record] = OrderedDict()

    def confirmed(self, member: PeerId, round_number: int, now_round: int) -> bool:
        """This peer and another one found a member's work poor. Returns whether it sits out now.

        Args:
            round_number: the round whose work was audited.
            now_round: the round that is under way.
        """
        record = self._records.setdefault(member, _Record())
        self._records.move_to_end(member)
        if len(self._records) > PEERS_MAX:
            self._records.popitem(last=False)
        marked = min(round_number, now_round)  # a round that was taken back has a higher number
        record.marks.append(marked)
        recent = sum(number + MEMORY_ROUNDS > marked for number in record.marks)
        if recent < MARKS_MAX or record.sit_out.holds(now_round):
            return False
        record.sit_out.begin(now_round)
        record.marks.clear()
        return True

    def found_good(self, member: PeerId) -> None:
        """This peer found a member's work good."""
        if (record := self._records.get(member)) is not None:
            record.marks.clear()

    def rounds_back(self, num_rounds: int) -> None:
        """The numbers of rounds go back by so many: nothing lasts longer because of that."""
        for record in self._records.values():
            earlier = [number - num_rounds for number in record.marks]
            record.marks.clear()
            record.marks.extend(earlier)
            record.sit_out.rounds_back(num_rounds)

    def sits_out(self, round_number: int, member: PeerId) -> bool:
        """Returns whether a member sits out of a round's rings that this peer organises."""
        record = self._records.get(member)
        return record is not None and record.sit_out.holds(round_number)
