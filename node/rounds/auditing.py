"""Audits at this node: it measures the work of others, says what it found, and hears the verdicts.

`protocol/policy/audits.py` has the rules. When a round is committed whose head names this node as
an auditor, it keeps the state before the round: 4 bytes a parameter, for one audit at a time. The
data comes in the background. The losses are measured when the device has nothing else to do, as
those of held-out text are. The records of the round, and of the one before, are read from disk
then.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer import Trainer
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.known_rounds import KnownRounds
from gossamer.node.storage.state_blocks import CannotRebuildError
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.audit_data import AuditData
from gossamer.node.training.audited_state import AuditedRound, AuditedState
from gossamer.protocol.accounting.excerpts import Excerpt
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.policy.audits import (
    COST_SHARE,
    MEMORY_ROUNDS,
    PEERS_MAX,
    SCALE,
    SEQUENCES_MIN,
    Audit,
    Verdicts,
    audit_after,
    can_judge,
    falls_short,
    gain_of,
    helps_from_start,
    share_of,
)
from gossamer.protocol.policy.head_choice import HeadChoice
from gossamer.protocol.policy.poor_work import MARKS_MAX
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.rounds.commit_proof import open_ring
from gossamer.protocol.state.chain import credits_of
from gossamer.protocol.wire.audit_messages import GAIN_MAX, AnyVerdict, Verdict

WAIT_ROUNDS = 4
"""Rounds for which an audit waits for its data, or for a device that is free."""

log = structlog.get_logger("node")


class AuditCount(NamedTuple):
    """Verdicts on the work of one peer, since this node's start."""

    good: int = 0
    poor: int = 0


@dataclass
class _Job:
    """An audit that this node owes."""

    audit: Audit
    part: AuditedRound
    declared: tuple[Excerpt, ...]
    """None where the member names too little data: then the held-out ones decide."""
    heldout: tuple[Excerpt, ...]
    sequences: list[tuple[str, int]] | None = None
    """(file, first token) of all sequences, the declared ones first; None: on their way."""


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
        before, stakes = self._rounds.credits_of(parent), self._choice.stakes_at(parent)
        branch_of = self._choice.branch_of
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
        if self._swarm.admission.found_poor(audit.member, audit.round):
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
            self._swarm.admission.poor_work.found_good(audit.member)
        self._swarm.gossip.say(verdict)
        self.heard(self._swarm.me, verdict)


class Auditor:
    """Makes the audits that this node owes."""

    def __init__(
        self,
        auditing: Auditing,
        committed: CommittedState,
        trainer: Trainer,
        data: AuditData,
        run_in_thread: RunInThread,
        me: PeerId,
        outer: OuterConfig,
    ) -> None:
        self._auditing = auditing
        self._committed = committed
        self._trainer = trainer
        self._data = data
        self._state = AuditedState(committed, trainer, run_in_thread)
        self._me = me
        self._outer = outer
        self._job: _Job | None = None
        self._wake = trio.Event()
        self._due_seconds = -math.inf
        """Local time before which this node begins no other audit."""

    async def run(self) -> None:
        """Fetches the data of audits, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            job = self._job
            if job is None:
                continue
            sequences = await self._data.fetch(job.declared, job.heldout)
            if self._job is job:
                job.sequences = sequences
                if sequences is None:
                    self._drop()

    async def note(self, outcome: Committed) -> None:
        """A round is committed, and the present state is still the one before it."""
        number = outcome.proposal.header.round
        if self._job is not None and number > self._job.audit.round + WAIT_ROUNDS:
            self._drop()
        if self._job is not None or not self._trainer.is_up:
            return
        audit = self._auditing.audit_of_commit(outcome)
        is_busy = trio.current_time() < self._due_seconds
        if audit is None or self._me not in audit.auditors or is_busy:
            return
        self._job = job = self._job_of(audit, outcome)
        if max(len(job.declared), len(job.heldout)) < SEQUENCES_MIN:
            self._job = None  # there is next to nothing that anybody could look at
            return
        await self._state.load()
        self._wake.set()

    def _job_of(self, audit: Audit, outcome: Committed) -> _Job:
        # The signatures were checked when the record was made.
        ring = open_ring(
            outcome.commit,
            Digest(outcome.proposal.header.run_id),
            lambda *_: True,
            self._committed.ring_rules,
        )
        position = ring.members.index(audit.member)
        declared = self._data.declared(audit.head, self._me, ring.ready[position])
        heldout = self._data.heldout(audit.head, self._me)
        header, averages = outcome.proposal.header, outcome.proposal.update.averages
        return _Job(audit, AuditedRound(header, averages, position), declared, heldout)

    async def measure(self) -> None:
        """Makes the audit that is due: the device has nothing else to do."""
        job = self._job
        if job is None or job.sequences is None:
            return
        started = trio.current_time()
        try:
            verdict = await self._verdict_on(job, job.sequences)
        except CannotRebuildError as error:
            self._auditing.cannot_tell(job.audit, str(error))
            return
        finally:
            self._drop()
            now = trio.current_time()
            self._due_seconds = now + (now - started) / COST_SHARE
        if verdict is not None:
            self._auditing.say(job.audit, verdict)

    async def _verdict_on(self, job: _Job, sequences: Sequence[tuple[str, int]]) -> Verdict | None:
        """None if the trainer does not answer, or if nothing can be told.

        Raises:
            CannotRebuildError: the disk does not have the round's records any more.
        """
        part = job.part
        all_before = await self._trainer.audit(sequences)
        if all_before is None:
            return None
        # A long question fills whole sequences, in which there is nothing to predict.
        spoken = [number for number, loss in enumerate(all_before) if not math.isnan(loss)]
        sequences, before = [sequences[n] for n in spoken], [all_before[n] for n in spoken]
        num_declared = sum(number < len(job.declared) for number in spoken)
        declared, heldout = slice(num_declared), slice(num_declared, None)
        enough = [each for each in (declared, heldout) if len(before[each]) >= SEQUENCES_MIN]
        if not enough:
            reason = "too little of the data has a token to predict"
            self._auditing.cannot_tell(job.audit, reason)
            return None
        await self._state.add(part, average=-SCALE)
        for judged in enough:
            control = await self._trainer.audit(sequences[judged])
            if control is None:
                return None
            if can_judge(gain_of(before[judged], control)):
                break
        else:
            self._auditing.cannot_tell(job.audit, "the round hardly helped")
            return None
        await self._state.add(part, average=SCALE, own=-SCALE)
        after = await self._trainer.audit(sequences)
        if after is None:
            return None
        tokens = [member.tokens for member in part.header.members]
        share = share_of(tokens, part.position, is_heldout=judged is heldout)
        is_poor = falls_short(before[judged], control, after[judged], share)
        if is_poor and self._goes_ahead(part.header.round):
            helps = await self._helps_from_start(job, sequences[judged])
            if helps is None:
                self._auditing.cannot_tell(job.audit, "it is not known where the work began")
                return None
            is_poor = not helps
        return _verdict_of(job.audit, is_poor, before, after, num_declared)

    def _goes_ahead(self, round_number: int) -> bool:
        """Returns whether members may have trained from other parameters than the state before the
        round."""
        return self._outer.overlap and not self._outer.is_warmup(round_number)

    async def _helps_from_start(
        self, job: _Job, sequences: Sequence[tuple[str, int]]
    ) -> bool | None:
        """Returns whether the member's work lowers the loss from where it began if the state of
        the round before came late: with its own work in the place of the average; None if that
        cannot be told.

        Raises:
            CannotRebuildError: the disk does not have the records of both rounds any more.
        """
        header = self._committed.header(Digest(job.part.header.parent))
        averages = self._committed.averages_of(header)
        earlier = AuditedRound.of(header, averages, job.audit.member)
        if earlier is None:
            return None
        await self._state.add(job.part, own=SCALE)
        await self._state.add(earlier, average=1.0, own=-1.0)
        began = await self._trainer.audit(sequences)
        if began is None:
            return None
        await self._state.add(job.part, own=-1.0)
        ended = await self._trainer.audit(sequences)
        return None if ended is None else helps_from_start(began, ended)

    def _drop(self) -> None:
        self._job = None
        self._trainer.give_back_audited()
        self._data.done()


def _verdict_of(
    audit: Audit,
    is_poor: bool,
    before: Sequence[float],
    after: Sequence[float],
    num_declared: int,
) -> Verdict:
    declared = gain_of(before[:num_declared], after[:num_declared])
    heldout = gain_of(before[num_declared:], after[num_declared:])
    bounded = [min(max(each.mean, -GAIN_MAX), GAIN_MAX) for each in (declared, heldout)]
    return Verdict(audit.round, audit.head, is_poor, *bounded)
