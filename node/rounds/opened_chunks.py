"""The chunks that this node opens for auditors (`policy.auditing.sum_audits`).

An auditor chooses its chunk in secret, and asks when it has committed the round. So this node keeps
its parts of all chunks for `KEPT_ROUNDS` rounds, because the commit changes the work
(`storage.work.kept_parts`). It shows each auditor the chunk that its secret picked, and others
nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.modes.sync_mode import OpensChunks
from gossamer.node.network.frames import answering, receive_message, send_frame
from gossamer.node.network.transport import OffenceHandler, Stream, Transport
from gossamer.node.rounds.decisions import LINGER_SECONDS_MAX
from gossamer.node.rounds.opening import OpenRound
from gossamer.node.storage.work.kept_parts import KeptParts
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.auditing.sum_audits import audited_chunk, commitment_to, is_auditor
from gossamer.protocol.rounds.inventory import SumStep
from gossamer.protocol.rounds.ring.sum_way import encode_step
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import Header, credits_of
from gossamer.protocol.wire.opening_messages import (
    OPENING_MESSAGE_BYTES_MAX,
    OPENING_PROTOCOL,
    Closed,
    Open,
    Opened,
    decode_question,
)

KEPT_ROUNDS = 4
"""Newest rounds whose chunks this node can open: an auditor asks as soon as it has the round."""

LATE_SECONDS = 20.0
"""Time for which an auditor waits until a member has committed the round as well: twice as long as
a member serves those that have not (`decisions.LINGER_SECONDS`)."""

OPENING_SECONDS = 60.0
"""Longest time of a question with its answer where the ring was short: a part of 4 MiB takes 34 s
on a line of 1 Mbit/s, and the member may be late. Otherwise it is the time that the ring took, up
to `LINGER_SECONDS_MAX`. A line that is slow, or that serves newcomers as well, sent many chunks in
that time."""

STREAMS_PER_PEER_MAX = 2
"""An auditor asks one question at a time, and one may still be ending."""

log = structlog.get_logger("node")


class Opening(NamedTuple):
    """The record that a member shows of a chunk."""

    steps: tuple[SumStep, ...]
    part: bytes
    path: bytes


class KeptRound(NamedTuple):
    """The chunks that this node can show of one round."""

    head: Digest
    ring: Ring
    credited: frozenset[PeerId]
    """Members of which the round took tokens."""
    steps: tuple[tuple[SumStep, ...], ...]
    """What this node did to the sums of each chunk."""
    parts: KeptParts
    path_to: Callable[[int], bytes]
    seconds: float
    """Longest time for which it shows them."""

    def chunk_for(self, peer: PeerId, secret: bytes) -> int | None:
        """Returns the chunk that a peer looks at if this is its secret; None: it is no auditor."""
        if peer not in self.credited:
            return None
        said = self.ring.ready_of(peer).commitment
        if commitment_to(secret) != said or not is_auditor(self.head, secret, len(self.credited)):
            return None
        return audited_chunk(self.head, secret, len(self.steps))

    def opening(self, chunk: int, *, with_part: bool = True) -> Opening | None:
        """Returns what this node shows of a chunk; None if its disk does not give it back. Blocks
        for as long as the disk needs."""
        if not with_part:
            return Opening(self.steps[chunk], b"", b"")
        part = self.parts.part(chunk)
        return None if part is None else Opening(self.steps[chunk], part, self.path_to(chunk))


def opening_seconds(served_seconds: float) -> float:
    """Longest time of a question with its answer.

    Args:
        served_seconds: time for which the ring served its members after its commit.
    """
    return max(OPENING_SECONDS, served_seconds)


class OpenedChunks:
    """The chunks that one node shows of its newest rounds."""

    def __init__(
        self,
        transport: Transport,
        on_offence: OffenceHandler,
        run_in_thread: RunInThread,
        directory: Path,
    ) -> None:
        """`directory`: where the parts are kept."""
        self._on_offence = on_offence
        self._run_in_thread = run_in_thread
        self._directory = directory
        self._kept: OrderedDict[Digest, KeptRound] = OrderedDict()
        self._has_more = trio.Event()
        """Set when there is one more round in `_kept`; then a new event takes its place."""
        transport.handle(OPENING_PROTOCOL, self._serve, streams_per_peer_max=STREAMS_PER_PEER_MAX)

    async def own(self, head: Digest, chunk: int) -> Opening | None:
        """Returns what this node shows of a chunk of a round; None: it has not kept it."""
        kept = self._kept.get(head)
        return None if kept is None else await self._run_in_thread(partial(kept.opening, chunk))

    async def keep(self, opened: OpenRound, header: Header) -> None:
        """Keeps what this node can open of a round that is committed, here or by the others of its
        ring."""
        machine, contribution = opened.driver.machine, opened.driver.contribution
        credited = frozenset(credits_of(header))
        if (
            len(credited) < 2
            or machine.ring is None
            or machine.ring.ring_id != header.ring_id
            or not isinstance(contribution, OpensChunks)
        ):
            return
        mine = contribution.opened()
        if mine is None:
            log.error("this node's work is not that which it signed: it cannot be audited")
            return
        seconds = opening_seconds(opened.driver.dispatcher.serves_seconds(trio.current_time()))
        steps = tuple(map(machine.steps_of, range(opened.sync_set.plan.num_chunks)))
        parts = await self._run_in_thread(partial(KeptParts, self._directory, mine.parts))
        if parts.are_in_memory:  # of one round alone: they may be as large as the model
            for head in [head for head, kept in self._kept.items() if kept.parts.are_in_memory]:
                del self._kept[head]
        self._kept[header.digest] = KeptRound(
            header.digest, machine.ring, credited, steps, parts, mine.path_to, seconds
        )
        if len(self._kept) > KEPT_ROUNDS:
            self._kept.popitem(last=False)
        self._has_more.set()
        self._has_more = trio.Event()

    async def _serve(self, stream: Stream) -> None:
        async with answering(stream, OPENING_SECONDS + LINGER_SECONDS_MAX, self._on_offence):
            with trio.fail_after(OPENING_SECONDS):
                question = decode_question(await receive_message(stream, OPENING_MESSAGE_BYTES_MAX))
                kept = await self._kept_for(Digest(question.head))
            with trio.fail_after(OPENING_SECONDS if kept is None else kept.seconds):
                await self._answer(stream, kept, question)

    async def _answer(self, stream: Stream, kept: KeptRound | None, question: Open) -> None:
        chunk = None if kept is None else kept.chunk_for(stream.peer_id, question.secret)
        opening = None
        if kept is not None and chunk is not None:
            opening = await self._run_in_thread(
                partial(kept.opening, chunk, with_part=question.with_part)
            )
        if kept is None or opening is None:
            await send_frame(stream, to_msgpack(Closed()))
            return
        steps = tuple(encode_step(step, kept.ring.members) for step in opening.steps)
        answer = to_msgpack(Opened(steps, opening.path))
        if question.with_part:
            await send_frame(stream, answer, opening.part)
        else:
            await send_frame(stream, answer)

    async def _kept_for(self, head: Digest) -> KeptRound | None:
        """What this node can show of a round. It may be asked before it has committed the round."""
        with trio.move_on_after(LATE_SECONDS):
            while head not in self._kept:
                await self._has_more.wait()
        return self._kept.get(head)
