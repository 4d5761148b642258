"""One audit of a sum at this node: it adds up a chunk again, and finds which member is at fault.

It first asks the members for the way of the sum, and then for their parts, one at a time: so it
never holds more than one part and one sum. Members forget what they did after some rounds. So an
auditor that another member keeps waiting for so long says nothing of those that it asks later, and
names the one that kept it waiting.

A member that is not connected, or has fallen silent, is asked when it is back, if it lives as in
its `Ready` and the others cannot have forgotten the round. Otherwise it would escape by ending its
connection for some seconds. Where the connection ends during each of several questions, it has not
opened the chunk. This node waits for it beside other audits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import MutableMapping
from functools import partial
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
from gossamer.node.rounds.opened_chunks import KEPT_ROUNDS, OpenedChunks, Opening
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.codecs.payloads import AuditedPayloads
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.record_tree import PATH_BYTES, root_over
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.inventory import Average, SumStep
from gossamer.protocol.rounds.ring.ring_signatures import SignedAverages
from gossamer.protocol.rounds.ring.sum_way import AddedAgain, SumWay, decode_step, opened_bytes_max
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.wire.opening_messages import (
    OPENING_MESSAGE_BYTES_MAX,
    OPENING_PROTOCOL,
    Open,
    Opened,
    decode_answer,
)

ASKED_TIMES = 2
"""Questions that a member may leave without an answer before it has not opened the chunk, while it
is connected. It is asked more often where a member may take longer until it has committed the round
as well."""

RETRY_SECONDS = 5.0
"""Time between them: a connection that breaks is noticed in this time, or opened anew."""

AWAY_SECONDS_MAX = 600.0
"""Longest time for which an auditor waits for a member that is not connected: as long as the
longest ring serves its members. It may be the last round of a run, and nobody forgets that."""

ENDED_TIMES = 4
"""Questions during which the connection of a member may end before it has not opened the chunk,
while this node keeps those of most others. A line that fails so often in so short a time, and
always in the moment of a question, brings no member through a ring."""

ASKED_ROUNDS = KEPT_ROUNDS - 2
"""Rounds after an audited one from which on a member that does not open it is not blamed. It may be
two rounds ahead of this node, and then it has forgotten the round just now."""

log = structlog.get_logger("node")


class AuditJob(NamedTuple):
    """An audit that this node owes."""

    head: Digest
    round: int
    secret: Digest
    """It says that this node is an auditor of the round, and of which chunk."""
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


class NotOpened(Exception):
    """A member is at fault: it does not open the chunk."""

    def __init__(self, position: int) -> None:
        super().__init__(f"member {position} did not open the chunk")
        self.position = position


class CannotTell(Exception):
    """Nothing can be told of a sum; the text says why."""


class SumAudit:
    """One audit under way."""

    def __init__(
        self,
        job: AuditJob,
        committed: CommittedState,
        swarm: Swarm,
        transport: Transport,
        opened_chunks: OpenedChunks,
        run_in_thread: RunInThread,
        lines: MutableMapping[PeerId, trio.Lock],
    ) -> None:
        """
        Args:
            opened_chunks: this node's own.
            lines: held while a member is asked. All audits of this node share them.
        """
        assert not isinstance(committed.payloads, RecordPayloads)
        self._payloads: AuditedPayloads = committed.payloads
        self._path_bytes = 0 if self._payloads.are_steps else PATH_BYTES
        """Length of the path that a part comes with: before a ring of shared steps there is no work
        over which a member could sign a root."""
        self._job = job
        self._committed = committed
        self._swarm = swarm
        self._transport = transport
        self._opened_chunks = opened_chunks
        self._run_in_thread = run_in_thread
        self._lines = lines
        self._waited_seconds = defaultdict[int, float](float)
        """Time that the answers of each member took, by ring position."""

    async def add_again(self) -> None:
        """Adds up the chunk again.

        Raises:
            ReplacedSum, NotOpened: a member is at fault.
            CannotTell: a member has gone.
        """
        average, run_in_thread = self._job.average, self._run_in_thread
        way = SumWay(self._job.signed, self._job.chunk, average.finisher, average.mask)
        said: dict[int, tuple[SumStep, ...]] = {}
        while (position := way.asked) is not None:
            if position not in said:
                said[position] = (await self._opened(position, with_part=False)).steps
            if not await run_in_thread(partial(way.said, said[position])):
                raise self._not_opened(position)
        tokens = [self._job.ring.weights[member] for member in self._job.ring.members]
        again = AddedAgain(self._payloads, tokens, self._job.num_elements)
        for hop in way.hops:
            if not hop.is_copy:
                part = await self._part(hop.position)
                try:
                    await run_in_thread(partial(again.add, hop, part))
                except MalformedError:
                    raise self._not_opened(hop.position) from None
        await run_in_thread(partial(again.finish, average.finisher, average.mask, average.digest))

    async def _part(self, position: int) -> bytes:
        opening = await self._opened(position, with_part=True)

        def is_signed() -> bool:
            root = root_over(self._job.chunk, opening.part, opening.path)
            return root == self._job.ring.ready[position].root

        # Without a root the digests that the members signed tell a member's record from another.
        if self._path_bytes and not await self._run_in_thread(is_signed):
            raise self._not_opened(position)
        return opening.part

    def _not_opened(self, position: int) -> NotOpened:
        """A member has shown nothing that fits.

        Raises:
            CannotTell: that may be no fault of its own.
        """
        if self._job.ring.members[position] == self._swarm.me:
            raise CannotTell("this node has not kept its own part")
        self._require_present(position)
        return NotOpened(position)

    async def _opened(self, position: int, *, with_part: bool) -> Opening:
        peer, problem = self._job.ring.members[position], ""
        if peer == self._swarm.me:
            own = await self._opened_chunks.own(self._job.head, self._job.chunk)
            if own is None:
                raise CannotTell("this node has not kept its own part")
            return own
        late_until, num_asked, num_ended, is_due = self._job.late_until, 0, 0, False
        away_until = trio.current_time() + AWAY_SECONDS_MAX
        line = self._lines.setdefault(peer, trio.Lock())
        while True:
            try:
                # A member gets one question at a time, whichever audits ask it.
                async with line:
                    asked_seconds = trio.current_time()
                    forgotten_from = self._job.round + KEPT_ROUNDS
                    if not is_due and self._committed.entry.round >= forgotten_from:
                        raise self._forgotten()
                    was_here, is_in_time = self._swarm.is_connected(peer), not self._is_long_ago()
                    is_due = is_due or (is_in_time and was_here)
                    if not was_here:  # or is a stranger now, because it was put out of the run
                        raise TransportError("the member is not connected")
                    return await self._answer(position, with_part=with_part)
            except ORDINARY_ENDS as error:
                if isinstance(error, RemoteProtocolError):
                    self._swarm.offence(peer, error)
                problem = reason_of(error)
            is_heard = self._is_heard_since(peer, asked_seconds)
            if not is_in_time:
                if is_due and not is_heard:
                    raise CannotTell("a member has gone")
                break
            num_asked += 1
            if not is_heard:
                num_ended += was_here and self._has_most_others(peer)
                await self._until_back(position, away_until)
                if num_ended >= ENDED_TIMES:
                    raise self._not_opened(position)
                # The questions so far may not have reached it. It has as long as any member for
                # bringing the round late.
                late_until = trio.current_time() + self._job.slow_seconds
                num_asked, is_due = 0, False
                continue
            if num_asked >= ASKED_TIMES:
                self._require_present(position)
                if trio.current_time() >= late_until:
                    break
            await trio.sleep(RETRY_SECONDS)
        if not is_due:
            raise self._forgotten()
        log.debug("a chunk was not opened", peer=peer, problem=problem, round=self._job.round)
        raise self._not_opened(position)

    async def _until_back(self, position: int, until: float) -> None:
        """Returns when a member is connected to this node again, and a sign of life has come.

        Raises:
            CannotTell: it lives anew, or is away until `until`, or until others may have forgotten
                the round.
        """
        since = trio.current_time()
        while True:
            await trio.sleep(RETRY_SECONDS)
            self._require_same(position)
            if self._is_heard_since(self._job.ring.members[position], since):
                return
            if trio.current_time() >= until or self._is_long_ago():
                raise CannotTell("a member has gone")

    def _is_heard_since(self, peer: PeerId, seconds: float) -> bool:
        """Returns whether a member is connected, and anything has come from it since a local time.
        One that lives shows that when a stream is opened to it. A machine that froze, or whose line
        was cut, keeps its connections for a while, and has refused nothing."""
        if not self._swarm.is_connected(peer):
            return False
        heard_seconds = self._transport.heard_seconds(peer)
        return heard_seconds is not None and heard_seconds >= seconds

    def _has_most_others(self, lost: PeerId) -> bool:
        """Returns whether this node is connected to more than half of the ring's members beside
        itself and one that it has just lost. Otherwise its own line may have failed."""
        mine = {self._swarm.me, lost}
        others = [each for each in self._job.ring.members if each not in mine]
        return 2 * sum(map(self._swarm.is_connected, others)) > len(others)

    async def _answer(self, position: int, *, with_part: bool) -> Opening:
        """Asks a member once, and notes how long its answer took."""
        began_seconds = trio.current_time()
        opening = await self._ask(self._job.ring.members[position], with_part=with_part)
        self._waited_seconds[position] += trio.current_time() - began_seconds
        return opening

    def _forgotten(self) -> CannotTell | NotOpened:
        """The round is so long ago that its members may have forgotten it. A member that answered
        more slowly than one that has yet to commit the round, or has a slow line, has kept this
        node waiting until then, and has not opened the chunk.

        Raises:
            CannotTell: such a member has gone.
        """
        for position, seconds in self._waited_seconds.items():
            if seconds > self._job.slow_seconds:
                return self._not_opened(position)
        return CannotTell("the round is so long ago that its members may have forgotten it")

    def _is_long_ago(self) -> bool:
        """Returns whether the members may have forgotten the round by now. Where this node was cut
        off, or its machine asleep, they are ahead of it, and say so. More than half of the others
        have to say it, with heads that this node does not know: one alone would say so whenever it
        is asked."""
        forgotten_from = self._job.round + ASKED_ROUNDS
        if self._committed.entry.round >= forgotten_from:
            return True
        swarm, chain = self._swarm, self._committed.chain
        known = swarm.membership.known()
        others = (each for each in self._job.ring.members if each != swarm.me)
        here = [each for each in others if swarm.is_connected(each)]
        ahead = [
            said is not None and said.round >= forgotten_from and Digest(said.head) not in chain
            for said in map(known.get, here)
        ]
        return 2 * sum(ahead) > len(ahead)

    def _require_present(self, position: int) -> None:
        """Raises CannotTell if a member is not connected to this node, or cannot open the chunk any
        more."""
        self._require_same(position)
        if not self._swarm.is_connected(self._job.ring.members[position]):
            raise CannotTell("a member has gone")

    def _require_same(self, position: int) -> None:
        """Raises CannotTell if a member lives anew, or was out of the ring at its commit. What it
        says later changes nothing."""
        peer = self._job.ring.members[position]
        said = self._swarm.membership.known().get(peer)
        own = self._job.ring.ready[position]
        is_same = said is not None and said.incarnation == own.incarnation
        if not is_same or peer in self._job.out:
            raise CannotTell("a member has gone")

    async def _ask(self, peer: PeerId, *, with_part: bool) -> Opening:
        question = to_msgpack(Open(self._job.head, self._job.secret, with_part))
        part_bytes = 0
        if with_part:
            part_bytes = opened_bytes_max(self._payloads, self._job.chunk, self._job.num_elements)
        with trio.fail_after(self._job.answer_seconds):
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
        steps = tuple(decode_step(step, self._job.ring.members) for step in answer.steps)
        return Opening(steps, bytes(part), answer.path)
