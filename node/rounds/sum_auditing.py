"""Audits of sums at this node: it adds up chunks again, says what it found, and hears the verdicts
of others.

`protocol/policy/sum_audits.py` has the rules, and `opened_chunks` shows this node's own chunks to
other auditors. If this node is the auditor of a round, it first asks the members for the way of the
sum, and then for their parts, one at a time: so it never holds more than one part and one sum.
Members forget what they did after some rounds. So an auditor that another member keeps waiting for
so long says nothing of those that it asks later, and names the one that kept it waiting.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import count
from typing import NamedTuple

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.network.frames import asked, receive_frame
from gossamer.node.network.transport import (
    ORDINARY_ENDS,
    Transport,
    TransportError,
    reason_of,
)
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.opened_chunks import (
    KEPT_ROUNDS,
    LATE_SECONDS,
    OpenedChunks,
    Opening,
    opening_seconds,
)
from gossamer.node.rounds.opening import OpenRound
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.known_rounds import KnownRounds
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.codecs.payloads import AuditedPayloads
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import PATH_BYTES, root_over
from gossamer.protocol.errors import MalformedError, RemoteProtocolError, ReplacedSumError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.audits import MEMORY_ROUNDS
from gossamer.protocol.policy.sum_audits import SumVerdicts, audited_chunk, auditor_after
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.rounds.inventory import Average, SumStep
from gossamer.protocol.rounds.ring_signatures import SignedAverages
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.sum_way import (
    AddedAgain,
    ReplacedSum,
    SumWay,
    decode_step,
    opened_bytes_max,
)
from gossamer.protocol.state.chain import credits_of, removed_in
from gossamer.protocol.wire.audit_messages import AnyVerdict, SumVerdict
from gossamer.protocol.wire.opening_messages import (
    OPENING_MESSAGE_BYTES_MAX,
    OPENING_PROTOCOL,
    Open,
    Opened,
    decode_answer,
    encode_opening_message,
)

ASKED_TIMES = 2
"""Questions that a member may leave without an answer before it has not opened the chunk. It is
asked more often where a member may take longer until it has committed the round as well."""

RETRY_SECONDS = 5.0
"""Time between them: a connection that breaks is noticed in this time, or opened anew."""

ASKED_ROUNDS = KEPT_ROUNDS - 2
"""Rounds after an audited one from which on a member that does not open it is not blamed. It may be
two rounds ahead of this node, and then it has forgotten the round just now."""

log = structlog.get_logger("node")


class _Job(NamedTuple):
    """An audit that this node owes."""

    head: Digest
    round: int
    chunk: int
    num_elements: int
    average: Average
    signed: SignedAverages
    out: frozenset[PeerId]
    """Members that were out of the ring at its commit. What they did until then may be gone."""
    late_until: float
    """Local time until which the others serve members that have not committed the round."""
    answer_seconds: float
    """Longest time of a question with its answer."""
    slow_seconds: float
    """Time of a member's answers beyond which it has kept this node waiting. In the time of the
    ring its line carried far more."""

    @property
    def ring(self) -> Ring:
        return self.signed.ring


class _NotOpened(Exception):
    def __init__(self, position: int) -> None:
        super().__init__(f"member {position} did not open the chunk")
        self.position = position


class _CannotTell(Exception):
    pass


class SumAuditing:
    """One node's audits of sums, and the verdicts that it has heard (a `VerdictListener`)."""

    def __init__(
        self,
        committed: CommittedState,
        rounds: KnownRounds,
        swarm: Swarm,
        transport: Transport,
        metrics: Metrics,
        run_in_thread: RunInThread,
    ) -> None:
        assert not isinstance(committed.payloads, RecordPayloads)
        self._payloads: AuditedPayloads = committed.payloads
        self._path_bytes = 0 if self._payloads.are_steps else PATH_BYTES
        """Length of the path that a part comes with: before a ring of shared steps there is no work
        over which a member could sign a root."""
        self._committed = committed
        self._rounds = rounds
        self._swarm = swarm
        self._transport = transport
        self._metrics = metrics
        self._run_in_thread = run_in_thread
        self._verdicts = SumVerdicts(swarm.me)
        self.opened_chunks = OpenedChunks(transport, swarm.offence, run_in_thread)
        self._job: _Job | None = None
        self._waited_seconds = defaultdict[int, float](float)
        """Time that the answers of each member took in the audit under way, by ring position."""
        self._wake = trio.Event()
        swarm.verdicts = self

    # Verdicts

    def admits(self, author: PeerId, verdict: AnyVerdict) -> bool:
        """See `VerdictListener`."""
        if not isinstance(verdict, SumVerdict):
            return False
        head, rounds = Digest(verdict.head), self._rounds
        # Of rounds beside the own chain a member makes as many as it wants, alone, until a head
        # picks it as the auditor.
        if not rounds.is_newest(head, verdict.round, self._committed.head):
            return False
        credits = rounds.credits_of(head)
        return author == auditor_after(head, credits) and verdict.member in {*credits} - {author}

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
        """A round is committed, and this node's work is still that which it signed."""
        header = outcome.proposal.header
        await self.opened_chunks.keep(opened, header)
        machine, averages = opened.driver.machine, outcome.averages
        if machine.ring is None or machine.ring.ring_id != header.ring_id:
            return
        if auditor_after(header.digest, credits_of(header)) != self._swarm.me:
            return
        chunk = audited_chunk(header.digest, len(averages))
        now = trio.current_time()
        served_seconds = opened.driver.dispatcher.serves_seconds(now)
        self._job = _Job(
            header.digest,
            header.round,
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

    async def run(self) -> None:
        """Makes the audits that are due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            job, self._job = self._job, None
            if job is not None:
                await self._audit(job)

    async def _audit(self, job: _Job) -> None:
        self._waited_seconds.clear()
        try:
            await self._add_again(job)
        except ReplacedSum as found:
            self._found(job, found.position, is_replaced=True)
        except _NotOpened as found:
            self._found(job, found.position, is_replaced=False)
        except _CannotTell as error:
            self._metrics.audits.add("undecided")
            log.info("an audit of a sum cannot tell", reason=str(error), round=job.round)
        else:
            self._metrics.audits.add("good")
            log.debug("a sum was added up again", round=job.round, chunk=job.chunk)

    async def _add_again(self, job: _Job) -> None:
        """
        Raises:
            ReplacedSum, _NotOpened: a member is at fault.
            _CannotTell: a member has gone.
        """
        average, run_in_thread = job.average, self._run_in_thread
        way = SumWay(job.signed, job.chunk, average.finisher, average.mask)
        said: dict[int, tuple[SumStep, ...]] = {}
        while (position := way.asked) is not None:
            if position not in said:
                said[position] = (await self._opened(job, position, with_part=False)).steps
            if not await run_in_thread(partial(way.said, said[position])):
                raise self._not_opened(job, position)
        tokens = [job.ring.weights[member] for member in job.ring.members]
        again = AddedAgain(self._payloads, tokens, job.num_elements)
        for hop in way.hops:
            if not hop.is_copy:
                part = await self._part(job, hop.position)
                try:
                    await run_in_thread(partial(again.add, hop, part))
                except MalformedError:
                    raise self._not_opened(job, hop.position) from None
        await run_in_thread(partial(again.finish, average.finisher, average.mask, average.digest))

    async def _part(self, job: _Job, position: int) -> bytes:
        opening = await self._opened(job, position, with_part=True)

        def is_signed() -> bool:
            root = root_over(job.chunk, opening.part, opening.path)
            return root == job.ring.ready[position].root

        # Without a root the digests that the members signed tell a member's record from another.
        if self._path_bytes and not await self._run_in_thread(is_signed):
            raise self._not_opened(job, position)
        return opening.part

    def _not_opened(self, job: _Job, position: int) -> _NotOpened:
        """A member has shown nothing that fits.

        Raises:
            _CannotTell: that may be no fault of its own.
        """
        if job.ring.members[position] == self._swarm.me:
            raise _CannotTell("this node has not kept its own part")
        self._require_present(job, position)
        return _NotOpened(position)

    async def _opened(self, job: _Job, position: int, *, with_part: bool) -> Opening:
        peer, problem = job.ring.members[position], ""
        if peer == self._swarm.me:
            own = self.opened_chunks.own(job.head)
            if own is None:
                raise _CannotTell("this node has not kept its own part")
            return own
        if self._committed.entry.round >= job.round + KEPT_ROUNDS:
            raise self._forgotten(job)
        is_due = False
        for number in count():
            is_in_time = not self._is_long_ago(job)
            is_due = is_due or is_in_time
            began_seconds = trio.current_time()
            try:
                opening = await self._ask(job, peer, with_part=with_part)
            except ORDINARY_ENDS as error:
                if isinstance(error, RemoteProtocolError):
                    self._swarm.offence(peer, error)
                problem = reason_of(error)
            else:
                self._waited_seconds[position] += trio.current_time() - began_seconds
                return opening
            if not is_in_time:
                break
            if number + 1 >= ASKED_TIMES:
                self._require_present(job, position)
                if trio.current_time() >= job.late_until:
                    break
            await trio.sleep(RETRY_SECONDS)
        if not is_due:
            raise self._forgotten(job)
        log.debug("a chunk was not opened", peer=peer, problem=problem, round=job.round)
        raise self._not_opened(job, position)

    def _forgotten(self, job: _Job) -> _CannotTell | _NotOpened:
        """The round is so long ago that its members may have forgotten it. A member that answered
        more slowly than one that has yet to commit the round, or has a slow line, has kept this
        node waiting until then, and has not opened the chunk.

        Raises:
            _CannotTell: such a member has gone.
        """
        for position, seconds in self._waited_seconds.items():
            if seconds > job.slow_seconds:
                return self._not_opened(job, position)
        return _CannotTell("the round is so long ago that its members may have forgotten it")

    def _is_long_ago(self, job: _Job) -> bool:
        """Returns whether the members may have forgotten the round by now. Where this node was cut
        off, or its machine asleep, they are ahead of it, and say so. More than half of the others
        have to say it, with heads that this node does not know: one alone would say so whenever it
        is asked."""
        forgotten_from = job.round + ASKED_ROUNDS
        if self._committed.entry.round >= forgotten_from:
            return True
        swarm, chain = self._swarm, self._committed.chain
        known = swarm.membership.known()
        here = [each for each in job.ring.members if each != swarm.me and swarm.is_connected(each)]
        ahead = [
            said is not None and said.round >= forgotten_from and Digest(said.head) not in chain
            for said in map(known.get, here)
        ]
        return 2 * sum(ahead) > len(ahead)

    def _require_present(self, job: _Job, position: int) -> None:
        """Raises _CannotTell if a member is not connected to this node any more, lives anew, or was
        out of the ring at its commit. What it says later changes nothing."""
        peer = job.ring.members[position]
        said = self._swarm.membership.known().get(peer)
        is_same = said is not None and said.incarnation == job.ring.ready[position].incarnation
        if not is_same or peer in job.out or not self._swarm.is_connected(peer):
            raise _CannotTell("a member has gone")

    async def _ask(self, job: _Job, peer: PeerId, *, with_part: bool) -> Opening:
        question = encode_opening_message(Open(job.head, with_part))
        part_bytes = 0
        if with_part:
            part_bytes = opened_bytes_max(self._payloads, job.chunk, job.num_elements)
        with trio.fail_after(job.answer_seconds):
            async with asked(self._transport, peer, OPENING_PROTOCOL, question) as stream:
                message, part = await receive_frame(
                    stream,
                    message_bytes_max=OPENING_MESSAGE_BYTES_MAX,
                    payload_bytes_max=part_bytes,
                )
        answer = decode_answer(message)
        if not isinstance(answer, Opened):
            raise TransportError("it has nothing to open")
        if len(answer.path) != (self._path_bytes if with_part else 0):
            raise MalformedError("an opened chunk with a part that nobody asked for, or without it")
        steps = tuple(decode_step(step, job.ring.members) for step in answer.steps)
        return Opening(steps, bytes(part), answer.path)

    def _found(self, job: _Job, position: int, *, is_replaced: bool) -> None:
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
        verdict = SumVerdict(job.round, job.head, member, is_replaced)
        self._swarm.gossip.say(verdict)
        self._verdicts.heard(self._swarm.me, verdict)
        if is_replaced:
            error = ReplacedSumError(f"another sum of chunk {job.chunk} than its part makes")
            self._swarm.offence(member, error)
        elif self._verdicts.marks(verdict) and self._swarm.admission.found_poor(member, job.round):
            self._metrics.poor_members.inc()
            log.warning(
                "a member sits out of the rings that this node organises: this node and another "
                "one found again that it does not open its sums", peer=member, round=job.round,
            )  # fmt: skip
