"""The chunks that this node opens for auditors (`policy.sum_audits`).

When a round is committed, its head names a chunk. This node keeps its part of that chunk for
`KEPT_ROUNDS` rounds, in memory, because the commit changes the work. Where sums travel, that takes
4 bytes an element of one chunk. It shows that to the round's auditor and to nobody else.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.modes.sync_mode import OpensChunks
from gossamer.node.network.frames import answering, receive_message, send_frame
from gossamer.node.network.transport import OffenceHandler, Stream, Transport
from gossamer.node.rounds.decisions import LINGER_SECONDS_MAX
from gossamer.node.rounds.opening import OpenRound
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.sum_audits import audited_chunk, auditor_after
from gossamer.protocol.rounds.inventory import SumStep
from gossamer.protocol.rounds.sum_way import encode_step
from gossamer.protocol.state.chain import Header, credits_of
from gossamer.protocol.wire.opening_messages import (
    OPENING_MESSAGE_BYTES_MAX,
    OPENING_PROTOCOL,
    Closed,
    Opened,
    decode_question,
    encode_opening_message,
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


class _Kept(NamedTuple):
    """The chunks that this node shows of one round."""

    auditor: PeerId
    members: tuple[PeerId, ...]
    opening: Opening
    seconds: float
    """Longest time for which it shows that."""


def opening_seconds(served_seconds: float) -> float:
    """Longest time of a question with its answer.

    Args:
        served_seconds: time for which the ring served its members after its commit.
    """
    return max(OPENING_SECONDS, served_seconds)


class OpenedChunks:
    """The chunks that one node shows of its newest rounds."""

    def __init__(
        self, transport: Transport, on_offence: OffenceHandler, run_in_thread: RunInThread
    ) -> None:
        self._on_offence = on_offence
        self._run_in_thread = run_in_thread
        self._kept: OrderedDict[Digest, _Kept] = OrderedDict()
        self._has_more = trio.Event()
        """Set when there is one more round in `_kept`; then a new event takes its place."""
        transport.handle(OPENING_PROTOCOL, self._serve, streams_per_peer_max=STREAMS_PER_PEER_MAX)

    def own(self, head: Digest) -> Opening | None:
        """Returns the chunks that this node shows of a round; None: it has not kept it."""
        kept = self._kept.get(head)
        return None if kept is None else kept.opening

    async def keep(self, opened: OpenRound, header: Header) -> None:
        """Keeps what this node can open of a round that is committed, here or by the others of its
        ring."""
        machine, contribution = opened.driver.machine, opened.driver.contribution
        auditor = auditor_after(header.digest, credits_of(header))
        if (
            auditor is None
            or machine.ring is None
            or machine.ring.ring_id != header.ring_id
            or not isinstance(contribution, OpensChunks)
        ):
            return
        chunk = audited_chunk(header.digest, opened.sync_set.plan.num_chunks)
        mine = await self._run_in_thread(partial(contribution.opened, chunk))
        if mine is None:
            log.error("this node's work is not that which it signed: it cannot be audited")
            return
        opening = Opening(machine.steps_of(chunk), *mine)
        seconds = opening_seconds(opened.driver.dispatcher.serves_seconds(trio.current_time()))
        self._kept[header.digest] = _Kept(auditor, machine.ring.members, opening, seconds)
        if len(self._kept) > KEPT_ROUNDS:
            self._kept.popitem(last=False)
        self._has_more.set()
        self._has_more = trio.Event()

    async def _serve(self, stream: Stream) -> None:
        async with answering(stream, OPENING_SECONDS + LINGER_SECONDS_MAX, self._on_offence):
            with trio.fail_after(OPENING_SECONDS):
                question = decode_question(await receive_message(stream, OPENING_MESSAGE_BYTES_MAX))
                kept = await self._kept_for(Digest(question.head), stream.peer_id)
            with trio.fail_after(OPENING_SECONDS if kept is None else kept.seconds):
                await self._answer(stream, kept, with_part=question.with_part)

    async def _answer(self, stream: Stream, kept: _Kept | None, *, with_part: bool) -> None:
        if kept is None:
            await send_frame(stream, encode_opening_message(Closed()))
            return
        opening = kept.opening
        steps = tuple(encode_step(step, kept.members) for step in opening.steps)
        if with_part:
            answer = encode_opening_message(Opened(steps, opening.path))
            await send_frame(stream, answer, opening.part)
        else:
            await send_frame(stream, encode_opening_message(Opened(steps, b"")))

    async def _kept_for(self, head: Digest, peer: PeerId) -> _Kept | None:
        """What a peer may see of a round. It may ask before this node has committed the round."""
        with trio.move_on_after(LATE_SECONDS):
            while head not in self._kept:
                await self._has_more.wait()
        kept = self._kept.get(head)
        return kept if kept is not None and kept.auditor == peer else None
