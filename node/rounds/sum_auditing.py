"""Audits of sums at this node: those that it makes, what it says of them, and what others say.

`protocol/policy/auditing/sum_audits.py` has the rules, `sum_audit` makes one audit, and
`opened_chunks` shows this node's own chunks to other auditors.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.network.transport import Transport
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.opened_chunks import (
    KEPT_ROUNDS,
    LATE_SECONDS,
    OpenedChunks,
    opening_seconds,
)
from gossamer.node.rounds.opening import OpenRound
from gossamer.node.rounds.sum_audit import AuditJob, CannotTell, NotOpened, SumAudit
from gossamer.node.rounds.turn import Audits
from gossamer.node.storage.chain.known_rounds import KnownCommitments, KnownRounds
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.errors import ReplacedSumError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.auditing.audits import MEMORY_ROUNDS
from gossamer.protocol.policy.auditing.sum_audits import (
    AuditSecrets,
    SumVerdicts,
    audited_chunk,
    commitment_to,
    is_auditor,
)
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.rounds.ring.sum_way import ReplacedSum
from gossamer.protocol.state.chain import Header, credits_of, removed_in
from gossamer.protocol.wire.audit_messages import AnyVerdict, SumVerdict

AUDITS_MAX = KEPT_ROUNDS
"""Audits under way at a time: members forget older rounds. Each holds one part and one sum."""

log = structlog.get_logger("node")


class SumAuditing(Audits):
    """One node's audits of sums, and the verdicts that it has heard (a `VerdictListener`).

    It has more than 7 parameters and 12 attributes: an audit reads the chain, asks members, and
    says its verdict to all.
    """

    def __init__(
        self,
        committed: CommittedState,
        rounds: KnownRounds,
        swarm: Swarm,
        transport: Transport,
        metrics: Metrics,
        run_in_thread: RunInThread,
        secrets: AuditSecrets,
        directory: Path,
    ) -> None:
        """
        Args:
            secrets: this node's own.
            directory: where the parts are kept that this node opens for others.
        """
        self._committed = committed
        self._rounds = rounds
        self._commitments = KnownCommitments(committed.chain)
        self._swarm = swarm
        self._transport = transport
        self._metrics = metrics
        self._run_in_thread = run_in_thread
        self._secrets = secrets
        self._verdicts = SumVerdicts(swarm.me)
        self.opened_chunks = OpenedChunks(transport, swarm.offence, run_in_thread, directory)
        self._lines = WeakValueDictionary[PeerId, trio.Lock]()
        self._job: AuditJob | None = None
        """The newest one that is not under way yet."""
        self._wake = trio.Event()
        swarm.verdicts = self

    # Verdicts

    def admits(self, author: PeerId, verdict: AnyVerdict) -> bool:
        """See `VerdictListener`."""
        if not isinstance(verdict, SumVerdict):
            return False
        head, rounds = Digest(verdict.head), self._rounds
        # Of rounds beside the own chain a member makes as many as it wants, alone, until a head
        # makes it an auditor.
        if not rounds.is_newest(head, verdict.round, self._committed.head):
            return False
        credits, secret = rounds.credits_of(head), verdict.secret
        return (
            author in credits
            and verdict.member in {*credits} - {author}
            and is_auditor(head, secret, len(credits))
            and self._commitments.of(head).get(author) == commitment_to(secret)
        )

    def is_kept(self, verdict: AnyVerdict) -> bool:
        """See `VerdictListener`."""
        return verdict.round + MEMORY_ROUNDS > self._committed.entry.round

    def heard(self, author: PeerId, verdict: AnyVerdict) -> None:
        """See `VerdictListener`."""
        if not isinstance(verdict, SumVerdict) or not self.admits(author, verdict):
            return
        if not self._verdicts.heard(author, verdict):
            return
        member, number = PeerId(verdict.member), verdict.round
        fault = "it replaced a sum" if verdict.is_replaced else "it did not open a chunk"
        if member == self._swarm.me:
            log.warning(
                "an auditor found this node at fault: if that was not meant, its memory or its "
                "line may be faulty", fault=fault, auditor=author, round=number,
            )  # fmt: skip
        else:
            log.warning(
                "an auditor found a member at fault", fault=fault, peer=member, auditor=author,
                round=number,
            )  # fmt: skip

    def leave_outs(self) -> frozenset[tuple[PeerId, PeerId]]:
        """See `VerdictListener`."""
        return self._verdicts.leave_outs()

    # The audits of this node

    async def note(self, opened: OpenRound, outcome: Committed) -> None:
        """See `Audits`."""
        header = outcome.proposal.header
        await self.opened_chunks.keep(opened, header)
        machine, averages = opened.driver.machine, outcome.averages
        if machine.ring is None or machine.ring.ring_id != header.ring_id:
            return
        credits, own = credits_of(header), machine.ring.ready_of(self._swarm.me)
        secret = self._secrets.of(own.incarnation, own.sequence)
        if self._swarm.me not in credits or not is_auditor(header.digest, secret, len(credits)):
            return
        chunk = audited_chunk(header.digest, secret, len(averages))
        now = trio.current_time()
        served_seconds = opened.driver.dispatcher.serves_seconds(now)
        self._job = AuditJob(
            header.digest,
            header.round,
            secret,
            chunk,
            opened.sync_set.plan.elements_of(chunk),
            averages[chunk],
            machine.signed_averages,
            machine.removed | removed_in(outcome.commit),
            now + served_seconds,
            opening_seconds(served_seconds),
            max(LATE_SECONDS, served_seconds),
        )
        self._wake.set()

    async def missed(self, opened: OpenRound, header: Header) -> None:
        """See `Audits`."""
        await self.opened_chunks.keep(opened, header)

    async def run(self) -> None:
        """See `Audits`."""
        places = trio.Semaphore(AUDITS_MAX)

        async def audit(job: AuditJob) -> None:
            try:
                await self._audit(job)
            finally:
                places.release()

        async with trio.open_nursery() as nursery:
            while True:
                await self._wake.wait()
                await places.acquire()
                self._wake = trio.Event()
                job, self._job = self._job, None
                assert job is not None, "this task was woken for one"
                nursery.start_soon(audit, job)

    async def _audit(self, job: AuditJob) -> None:
        audit = SumAudit(
            job, self._committed, self._swarm, self._transport, self.opened_chunks,
            self._run_in_thread, self._lines,
        )  # fmt: skip
        try:
            await audit.add_again()
        except ReplacedSum as found:
            self._found(job, found.position, is_replaced=True)
        except NotOpened as found:
            self._found(job, found.position, is_replaced=False)
        except CannotTell as error:
            self._metrics.audits.add("undecided")
            log.info("an audit of a sum cannot tell", reason=str(error), round=job.round)
        else:
            self._metrics.audits.add("good")
            log.debug("a sum was added up again", round=job.round, chunk=job.chunk)

    def _found(self, job: AuditJob, position: int, *, is_replaced: bool) -> None:
        """A member is at fault."""
        member = job.ring.members[position]
        if member == self._swarm.me:
            self._metrics.audits.add("undecided")
            log.error(
                "the sum that this node passed on is not the one that it makes of the same values "
                "again: its memory may be faulty", round=job.round, chunk=job.chunk,
            )  # fmt: skip
            return
        self._metrics.audits.add("poor")
        self._metrics.poor_work.inc()
        log.warning(
            "a member has replaced a sum that it passed on, or an average"
            if is_replaced
            else "a member does not open what it did to a sum",
            peer=member, round=job.round, chunk=job.chunk,
        )  # fmt: skip
        verdict = SumVerdict(job.round, job.head, job.secret, member, is_replaced)
        self._swarm.gossip.say(verdict)
        self._verdicts.heard(self._swarm.me, verdict)
        if is_replaced:
            error = ReplacedSumError(f"another sum of chunk {job.chunk} than its part makes")
            self._swarm.offence(member, error)
        elif self._verdicts.marks(verdict) and self._swarm.admission.partners.found_poor(
            member, job.round
        ):
            self._metrics.poor_members.inc()
            log.warning(
                "a member sits out of the rings that this node organises: this node and another "
                "one found again that it does not open its sums", peer=member, round=job.round,
            )  # fmt: skip
