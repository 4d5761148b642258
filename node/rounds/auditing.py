"""What this node hears of audits: who is audited by whom, and the verdicts of all auditors.

`protocol/policy/auditing/audits.py` has the rules, `auditor.py` this node's own audits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import structlog

from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.auditing.audits import (
    MEMORY_ROUNDS,
    MISSED_MAX,
    PEERS_MAX,
    Audit,
    audit_after,
)
from gossamer.protocol.policy.auditing.poor_work import MARKS_MAX
from gossamer.protocol.policy.auditing.verdicts import Verdicts
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.state.chain import credits_of
from gossamer.protocol.wire.audit_messages import AnyVerdict, Verdict

log = structlog.get_logger("node")


class AuditCount(NamedTuple):
    """Verdicts on the work of one peer, since this node's start."""

    good: int = 0
    poor: int = 0


class Auditing:
    """One node's audits, and the verdicts that it has heard (a `VerdictListener`)."""

    def __init__(
        self,
        committed: CommittedState,
        rounds: KnownRounds,
        choice: HeadChoice,
        swarm: Swarm,
        metrics: Metrics,
        every: int,
    ) -> None:
        """`every`: rounds of which one has an audit, see `rounds_between`."""
        self._committed = committed
        self._rounds = rounds
        self._choice = choice
        self._swarm = swarm
        self._metrics = metrics
        self._every = every
        self._verdicts = Verdicts(swarm.me)
        self._counts: OrderedDict[PeerId, AuditCount] = OrderedDict()
        swarm.verdicts = self

    def count_of(self, peer: PeerId) -> AuditCount:
        """Returns the verdicts on the work of a peer that this node has heard, its own included."""
        return self._counts.get(peer, AuditCount())

    # Verdicts

    def admits(self, author: PeerId, verdict: AnyVerdict) -> bool:
        """See `VerdictListener`."""
        audit = self._audit_of(verdict) if isinstance(verdict, Verdict) else None
        return audit is not None and author in audit.auditors

    def is_kept(self, verdict: AnyVerdict) -> bool:
        """See `VerdictListener`."""
        return verdict.round + MEMORY_ROUNDS > self._committed.entry.round

    def heard(self, author: PeerId, verdict: AnyVerdict) -> None:
        """See `VerdictListener`."""
        if not isinstance(verdict, Verdict):
            return
        audit = self._audit_of(verdict)
        if audit is None or author not in audit.auditors:
            return
        finding = self._verdicts.heard(audit, author, verdict)
        if finding.is_new:
            self._note_count(audit.member, verdict)
        if finding.poor is not None:
            self._note_finding(audit)
        if finding.confirmed is not None:
            self._note_confirmed(audit)
        if finding.equivocated is not None:
            log.warning("an auditor has signed two verdicts on one head", peer=author)
        if finding.contradicted is not None:
            log.info(
                "both other auditors disagree with one", peer=finding.contradicted,
                round=audit.round,
            )  # fmt: skip

    def leave_outs(self) -> frozenset[tuple[PeerId, PeerId]]:
        """See `VerdictListener`."""
        return self._verdicts.leave_outs(MARKS_MAX)

    def _audit_of(self, verdict: Verdict) -> Audit | None:
        """The audit that a verdict is about, if it is one of the newest rounds of this node's own
        chain. Of rounds beside it a member makes as many as it wants, alone, until a head picks it
        as the auditor of whom it wants."""
        head = Digest(verdict.head)
        if not self._rounds.is_newest(head, verdict.round, self._committed.head):
            return None
        parent = self._rounds.parent_of(head)
        return self._audit_after(head, verdict.round, parent, self._rounds.credits_of(head))

    def audit_of_commit(self, outcome: Committed) -> Audit | None:
        """The audit that a round asks for, before it is installed."""
        header = outcome.proposal.header
        return self._audit_after(
            header.digest, header.round, Digest(header.parent), credits_of(header)
        )

    def _audit_after(
        self, head: Digest, number: int, parent: Digest, credits: Mapping[PeerId, int]
    ) -> Audit | None:
        newest = islice(self._rounds.newest(parent), MISSED_MAX + 1)
        before = [self._rounds.credits_of(each) for each in newest]
        stakes, branch_of = self._choice.stakes_at(parent), self._choice.branch_of
        return audit_after(head, number, credits, before, stakes, self._every, branch_of)

    def _note_count(self, member: PeerId, verdict: Verdict) -> None:
        count = self.count_of(member)
        poor = count.poor + verdict.is_poor
        self._counts[member] = AuditCount(count.good + (not verdict.is_poor), poor)
        self._counts.move_to_end(member)
        if len(self._counts) > PEERS_MAX:
            self._counts.popitem(last=False)

    def _note_finding(self, audit: Audit) -> None:
        """Tells people."""
        self._metrics.poor_work.inc()
        if audit.member == self._swarm.me:
            log.warning(
                "auditors found that the work of this node does not lower the loss on the data "
                "that it names: the memory or the driver of the training device may be faulty",
                round=audit.round,
            )
        else:
            log.info("auditors found poor work of a member", peer=audit.member, round=audit.round)

    def _note_confirmed(self, audit: Audit) -> None:
        """This node has measured poor work, and another auditor as well."""
        if self._swarm.admission.partners.found_poor(audit.member, audit.round):
            self._metrics.poor_members.inc()
            log.warning(
                "a member sits out of the rings that this node organises: this node and others "
                "measured again and again that its work does not lower the loss",
                peer=audit.member, round=audit.round,
            )  # fmt: skip

    def cannot_tell(self, audit: Audit, reason: str) -> None:
        """An audit of this node has no verdict."""
        self._metrics.audits.add("undecided")
        log.info("an audit cannot tell", reason=reason, round=audit.round)

    def say(self, audit: Audit, verdict: Verdict) -> None:
        """Tells the others what this node has found."""
        self._metrics.audits.add("poor" if verdict.is_poor else "good")
        log.info(
            "audited the work of a member",
            peer=audit.member,
            verdict="poor" if verdict.is_poor else "good",
            round=audit.round,
            gain_declared=round(verdict.gain_declared, 5),
            gain_heldout=round(verdict.gain_other, 5),
        )
        if not verdict.is_poor:
            self._swarm.admission.partners.poor_work.found_good(audit.member)
        self._swarm.gossip.say(verdict)
        self.heard(self._swarm.me, verdict)
