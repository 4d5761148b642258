"""The verdicts of auditors, as one peer hears them: who is found, and which auditors count.

`audits` has the rules.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.auditing.audits import (
    AUDITORS,
    CONTRADICTIONS_MAX,
    MEMORY_ROUNDS,
    PEERS_MAX,
    Audit,
)
from gossamer.protocol.wire.audit_messages import Verdict


class Finding(NamedTuple):
    """What follows from a verdict that was heard."""

    is_new: bool = False
    """Whether it is the first one of this auditor on this head."""
    poor: PeerId | None = None
    """The member that was found to have done poor work."""
    equivocated: PeerId | None = None
    """An auditor that signed two different verdicts."""
    contradicted: PeerId | None = None
    """An auditor that both others disagree with."""
    confirmed: PeerId | None = None
    """The member, if this peer found its work poor and another auditor did as well."""


@dataclass
class _Case:
    audit: Audit
    verdicts: dict[PeerId, Verdict | None] = field(default_factory=dict)
    """By auditor; None for one that signed two."""
    was_poor: bool | None = None
    """What two of three said; None as long as they did not."""
    contradicted: PeerId | None = None
    is_confirmed: bool = False

    @property
    def poor(self) -> set[PeerId]:
        """The auditors that found the work poor."""
        return {
            auditor
            for auditor, verdict in self.verdicts.items()
            if verdict is not None and verdict.is_poor
        }


class Verdicts:
    """The verdicts of the newest rounds, as one peer has heard them, its own among them."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._cases: OrderedDict[Digest, _Case] = OrderedDict()
        self._contradicted: OrderedDict[PeerId, list[int]] = OrderedDict()
        """Rounds in which each auditor was contradicted."""

    def heard(self, audit: Audit, auditor: PeerId, verdict: Verdict) -> Finding:
        """Counts the signed verdict of one of the audit's auditors. It may be repeated."""
        case = self._cases.setdefault(audit.head, _Case(audit))
        while len(self._cases) > MEMORY_ROUNDS:
            self._cases.popitem(last=False)
        if auditor in case.verdicts:
            known = case.verdicts[auditor]
            if known is None or known == verdict:
                return Finding()
            case.verdicts[auditor] = None
            return Finding(equivocated=auditor)
        case.verdicts[auditor] = verdict
        is_found = self._decide(case) and case.was_poor
        return Finding(
            is_new=True,
            poor=audit.member if is_found else None,
            contradicted=self._find_contradicted(case),
            confirmed=audit.member if self._is_confirmed(case) else None,
        )

    def _decide(self, case: _Case) -> bool:
        """Returns whether two of three agree since now."""
        if case.was_poor is not None:
            return False
        words = [
            verdict.is_poor
            for auditor, verdict in case.verdicts.items()
            if verdict is not None and self.counts(auditor, case.audit.round)
        ]
        for word in (True, False):
            if words.count(word) >= AUDITORS - 1:
                case.was_poor = word
        return case.was_poor is not None

    def _is_confirmed(self, case: _Case) -> bool:
        """Returns whether this peer and another auditor agree since now that work is poor."""
        if case.is_confirmed:
            return False
        case.is_confirmed = self._me in case.poor and len(case.poor) > 1
        return case.is_confirmed

    def leave_outs(self, times: int) -> frozenset[tuple[PeerId, PeerId]]:
        """Returns pairs of an organiser and a member that it may let sit out: it found poor work
        of that member so many times, as another auditor did."""
        pairs = Counter(
            (auditor, case.audit.member)
            for case in self._cases.values()
            if len(case.poor) > 1
            for auditor in case.poor
        )
        return frozenset(pair for pair, found in pairs.items() if found >= times)

    def _find_contradicted(self, case: _Case) -> PeerId | None:
        said = {
            auditor: verdict.is_poor
            for auditor, verdict in case.verdicts.items()
            if verdict is not None
        }
        if case.contradicted is not None or len(said) < AUDITORS:
            return None
        for auditor, is_poor in said.items():
            if list(said.values()).count(is_poor) == 1:
                case.contradicted = auditor
                rounds = self._contradicted.setdefault(auditor, [])
                self._contradicted.move_to_end(auditor)
                rounds.append(case.audit.round)
                del rounds[:-CONTRADICTIONS_MAX]
                if len(self._contradicted) > PEERS_MAX:
                    self._contradicted.popitem(last=False)
        return case.contradicted

    def counts(self, auditor: PeerId, round_number: int) -> bool:
        """Returns whether the verdicts of an auditor on the work of a round count."""
        rounds = self._contradicted.get(auditor, [])
        # Where rounds were taken back, their numbers are above those of the rounds that follow.
        recent = sum(abs(round_number - number) < MEMORY_ROUNDS for number in rounds)
        return recent < CONTRADICTIONS_MAX
