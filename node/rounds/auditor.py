"""The audits that this node owes: it measures the work of others, and says what it found.

`protocol/policy/auditing/audits.py` has the rules. When a round is committed whose head names this
node as an auditor, it keeps the state before the round: 4 bytes a parameter, for one audit at a
time. The data comes in the background. The losses are measured when the device has nothing else to
do, as those of held-out text are. The records of the round, and of the one before, are read from
disk then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer import Trainer
from gossamer.node.rounds.auditing import AuditCount, Auditing
from gossamer.node.rounds.opening import OpenRound
from gossamer.node.rounds.turn import Audits
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.node.training.audit_data import AuditData, AuditSequences
from gossamer.node.training.audited_state import AuditedRound, AuditedState
from gossamer.protocol.accounting.excerpts import Excerpt
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.policy.auditing.audits import (
    COST_SHARE,
    SCALE,
    SEQUENCES_MIN,
    Audit,
    can_judge,
    falls_short,
    gain_of,
    helps_from_start,
    least_from_start,
    share_of,
)
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.rounds.commit_proof import open_ring
from gossamer.protocol.wire.audit_messages import GAIN_MAX, Verdict

WAIT_ROUNDS = 4
"""Rounds for which an audit waits for its data, or for a device that is free."""

DATA_ROUNDS = 2
"""Rounds for which it waits for the data that the member names. Then held-out text decides: the
member may have named what nobody has, or what comes slowly."""


@dataclass
class _Job:
    """An audit that this node owes."""

    audit: Audit
    part: AuditedRound
    declared: tuple[Excerpt, ...]
    """None where the member names too little data: then the held-out ones decide."""
    heldout: tuple[Excerpt, ...]
    sequences: AuditSequences | None = None
    """None: on their way."""
    fetching: trio.CancelScope = field(default_factory=trio.CancelScope)
    patience: trio.CancelScope = field(default_factory=trio.CancelScope)
    """With the data that the member names."""


class Auditor(Audits):
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
        self.auditing = auditing
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
        """See `Audits`: fetches their data."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            job = self._job
            if job is None:
                continue
            with job.fetching:
                sequences = await self._data.fetch(job.declared, job.heldout, job.patience)
                if self._job is not job:
                    continue
                num_others = len(sequences.places) - sequences.num_declared
                if max(sequences.num_declared, num_others) >= SEQUENCES_MIN:
                    job.sequences = sequences
                else:
                    self.auditing.cannot_tell(job.audit, "no data for it can be had")
                    self._drop()

    async def note(self, opened: OpenRound, outcome: Committed) -> None:
        """See `Audits`."""
        number = outcome.proposal.header.round
        if self._job is not None and number > self._job.audit.round + DATA_ROUNDS:
            self._job.patience.cancel()
        if self._job is not None and number > self._job.audit.round + WAIT_ROUNDS:
            self._drop()
        if self._job is not None or not self._trainer.is_up:
            return
        audit = self.auditing.audit_of_commit(outcome)
        is_busy = trio.current_time() < self._due_seconds
        if audit is None or self._me not in audit.auditors or is_busy:
            return
        job = self._job_of(audit, outcome)
        if max(len(job.declared), len(job.heldout)) < SEQUENCES_MIN:
            return  # there is next to nothing that anybody could look at
        await self._state.load()
        self._job = job  # at once with the event: `run` begins each job once
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

    def count_of(self, peer: PeerId) -> AuditCount:
        """See `Audits`."""
        return self.auditing.count_of(peer)

    async def measure(self) -> None:
        """See `Audits`."""
        job = self._job
        if job is None or job.sequences is None:
            return
        started = trio.current_time()
        try:
            verdict = await self._verdict_on(job, job.sequences)
        except CannotRebuildError as error:
            self.auditing.cannot_tell(job.audit, str(error))
            return
        finally:
            self._drop()
            now = trio.current_time()
            self._due_seconds = now + (now - started) / COST_SHARE
        if verdict is not None:
            self.auditing.say(job.audit, verdict)

    async def _verdict_on(self, job: _Job, found: AuditSequences) -> Verdict | None:
        """None if the trainer does not answer, or if nothing can be told.

        Raises:
            CannotRebuildError: the disk does not have the round's records any more.
        """
        part = job.part
        all_before = await self._trainer.audit(found.places)
        if all_before is None:
            return None
        # A long question fills whole sequences, in which there is nothing to predict.
        spoken = [number for number, loss in enumerate(all_before) if not math.isnan(loss)]
        sequences, before = [found.places[n] for n in spoken], [all_before[n] for n in spoken]
        num_declared = sum(number < found.num_declared for number in spoken)
        declared, heldout = slice(num_declared), slice(num_declared, None)
        enough = [each for each in (declared, heldout) if len(before[each]) >= SEQUENCES_MIN]
        if not enough:
            reason = "too little of the data has a token to predict"
            self.auditing.cannot_tell(job.audit, reason)
            return None
        await self._state.add(part, average=-SCALE)
        for judged in enough:
            control = await self._trainer.audit(sequences[judged])
            if control is None:
                return None
            if can_judge(gain_of(before[judged], control)):
                break
        else:
            self.auditing.cannot_tell(job.audit, "the round hardly helped")
            return None
        await self._state.add(part, average=SCALE, own=-SCALE)
        after = await self._trainer.audit(sequences)
        if after is None:
            return None
        tokens = [member.tokens for member in part.header.members]
        share = share_of(
            tokens,
            part.position,
            is_heldout=judged is heldout,
            missed=job.audit.missed,
        )
        is_poor = falls_short(before[judged], control, after[judged], share)
        if is_poor and (job.audit.missed or self._goes_ahead(part.header.round)):
            least = least_from_start(gain_of(before[judged], control), share)
            helps = await self._helps_from_start(job, sequences[judged], least)
            if helps is None:
                self.auditing.cannot_tell(job.audit, "it is not known where the work began")
                return None
            is_poor = not helps
        return _verdict_of(job.audit, is_poor, before, after, num_declared)

    def _goes_ahead(self, round_number: int) -> bool:
        """Returns whether members may have trained from other parameters than the state before the
        round."""
        return self._outer.overlap and not self._outer.is_warmup(round_number)

    async def _helps_from_start(
        self, job: _Job, sequences: Sequence[tuple[str, int]], least: float
    ) -> bool | None:
        """Returns whether the member's work gains `least` from where it may have begun; None if
        that cannot be told.

        It may have begun at the state before the rounds that the member missed. With overlap it may
        have begun before that one came, with the member's own work in the place of the average.

        Raises:
            CannotRebuildError: the disk does not have the records of all these rounds any more.
        """
        await self._state.add(job.part, own=SCALE)
        blocks, head = self._committed.blocks, Digest(job.part.header.parent)
        for _ in range(job.audit.missed):
            header = blocks.header(head)
            missed = AuditedRound(header, blocks.update_index(header).averages, position=0)
            await self._state.add(missed, average=1.0)
            head = Digest(header.parent)
        if job.audit.missed:
            told = await self._helps_from_here(job, sequences, least)
            if told is None or told:
                return told
        if self._goes_ahead(job.part.header.round):
            header = blocks.header(head)
            averages = blocks.update_index(header).averages
            earlier = AuditedRound.of(header, averages, job.audit.member)
            if earlier is None:
                return None
            await self._state.add(earlier, average=1.0, own=-1.0)
            return await self._helps_from_here(job, sequences, least)
        return False

    async def _helps_from_here(
        self, job: _Job, sequences: Sequence[tuple[str, int]], least: float
    ) -> bool | None:
        """Returns whether the member's whole work gains `least` (nats a token); None if the trainer
        does not answer."""
        began = await self._trainer.audit(sequences)
        if began is None:
            return None
        await self._state.add(job.part, own=-1.0)
        ended = await self._trainer.audit(sequences)
        await self._state.add(job.part, own=1.0)
        return None if ended is None else helps_from_start(began, ended, least)

    def _drop(self) -> None:
        if self._job is not None:
            self._job.fetching.cancel()
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
