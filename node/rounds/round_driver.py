"""Runs one round: the decisions of a `RoundDispatcher` become streams, threads and gossip.

The dispatcher decides, this module does the I/O. Everything runs in one nursery that ends with the
round, so nothing of a round outlives it, except the links to members that may still need averages
to commit: they get `linger_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.heads.branches import RingAtWork
from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.network.transport import Transport, TransportError
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.rounds.dispatcher import (
    HELLO_SECONDS,
    TICK_SECONDS,
    LinkTarget,
    Observer,
    OutgoingLink,
    RoundDispatcher,
)
from gossamer.node.rounds.ring_chunks import OwnPart, Receiver, RingChunks, RingReceiver
from gossamer.node.rounds.ring_link import LinkFailed, RingLink
from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import (
    Committed,
    Compute,
    Computed,
    Contribute,
    FinishAverage,
    LinkBroken,
    LinkMeasured,
)
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.rounds.round_view import RoundState
from gossamer.protocol.state.chain import Commit, Member
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.envelopes import ring_id_of
from gossamer.protocol.wire.statements import Ready, Signed, Statement

if TYPE_CHECKING:
    from trio_typing import TaskStatus

HEARING_SECONDS = 1.0
"""Time for which a process that was stopped reads what came meanwhile before a wait of the round is
over. Rosters and votes of the others are small, but behind them chunks may have come."""

log = structlog.get_logger("round")


class RoundHost(Observer, Protocol):
    """The node around one round, which its driver asks."""

    def contribution_to(self, ring: Ring) -> Contribution:
        """A ring begins: this peer's part in it."""

    def outer_step(
        self,
        parent: Digest,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
        is_wanted: Callable[[], bool],
    ) -> Digest | None:
        """The state that follows a parent; None for a step that was dropped. Runs in a thread. The
        state takes one step at a time.

        Args:
            averages: of all chunks.
            masks: of each average, by ring position.
            is_wanted: whether the step is still the newest one.
        """

    def awaited(self) -> Awaited:
        """Living peers for which the round waits."""

    async def reach(self, peer: PeerId) -> None:
        """Returns when there is a connection to a peer. Raises TransportError."""

    def transferred(self, num_bytes: int, seconds: float) -> None:
        """A link was busy for that time and transferred so many bytes."""

    def upload_limit(self) -> float:
        """The owner's present limit of all that this node sends, in bytes per second; inf for
        none."""

    def changed(self) -> None:
        """The machine of the round may have changed."""


class RoundDriver:
    """One peer in one round.

    It has more than 15 public methods: those of `Effects`, and what a turn asks and does. It has
    more than 12 attributes: the parts that it acts with, and what is under way.
    """

    def __init__(
        self,
        machine: Round,
        *,
        transport: Transport,
        gossip: Gossip,
        plan: ChunkPlan,
        payloads: Payloads,
        run_in_thread: RunInThread,
        host: RoundHost,
    ) -> None:
        self.machine = machine
        self.dispatcher = RoundDispatcher(machine, self, host)
        self._transport = transport
        self._gossip = gossip
        self._chunks = RingChunks(plan, payloads, run_in_thread)
        self._host: RoundHost | None = host
        self._nursery: trio.Nursery | None = None
        self._own_part = OwnPart(self.dispatcher, self._chunks)
        self.finished = trio.Event()
        """Set when the round is committed here."""
        self._gathering_reason = ""
        """The reason that the log has."""
        self._changed = trio.Event()
        self._may_tick = trio.Event()
        """Set when a tick may find something that a chunk alone does not bring about."""
        self._ticked_seconds = 0.0
        """Local time of the newest tick."""
        self._state: RoundState = machine.state
        """The machine's state at the newest change."""
        self._end_listening: Callable[[], None] = lambda: None
        """Ends that the members of the newest ring are asked for signs of life often."""

    # Life

    async def run(self, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Drives the machine until the round is committed here, and then by all other members.

        `finished` is set at the commit; the rest takes at most `linger_seconds`.

        Cancellation: every task of the round ends; links are reset.

        Args:
            task_status: is started when the round has begun.
        """
        dispatcher = self.dispatcher
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if dispatcher.phase == "closed":
                    task_status.started()
                    return
                self._ticked_seconds = trio.current_time()
                dispatcher.begin(self._ticked_seconds, self._gossip.statement_store.statements())
                task_status.started()
                while dispatcher.committed is None:
                    self.tick()
                    self._may_tick = trio.Event()
                    with trio.move_on_after(TICK_SECONDS):
                        await self._may_tick.wait()
                self.finished.set()
                assert dispatcher.ends_seconds is not None
                nursery.cancel_scope.deadline = dispatcher.ends_seconds
                while dispatcher.phase != "delivered":
                    await self._changed.wait()
        finally:
            self._nursery = None
            dispatcher.close()
            self._listen(())
            # The host refers to its turn. Without this cycle the vectors of a round are freed when
            # the round is forgotten, not when the garbage collector runs.
            self._host = None

    def leave(self) -> None:
        """Tells the others that the ring continues without this peer, and ends the round here."""
        self.dispatcher.leave(trio.current_time())
        self.cancel()

    def cancel(self) -> None:
        """The round is not waited for any more: all its tasks end."""
        self.dispatcher.close()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def close_work(self) -> None:
        """See `OwnPart.close`."""
        await self._own_part.close()

    @property
    def contribution(self) -> Contribution | None:
        """This peer's part of the newest ring; None before there is a ring."""
        return self._own_part.contribution

    @property
    def is_spoilt(self) -> bool:
        """Whether this peer's own work cannot be encoded, so that it left the ring."""
        return self._own_part.is_spoilt

    @property
    def changed(self) -> trio.Event:
        """Is set when the machine may have changed; then a new one takes its place."""
        return self._changed

    @property
    def committed(self) -> Committed | None:
        return self.dispatcher.committed

    @property
    def ring_id(self) -> Digest | None:
        """Identifier of the ring that is or was followed."""
        return self.dispatcher.ring_id

    @property
    def ring_at_work(self) -> RingAtWork | None:
        """The ring that is or was followed, with what this node voted for."""
        ring_id = self.ring_id
        return None if ring_id is None else RingAtWork(ring_id, self.machine.proposed_head)

    @property
    def is_running(self) -> bool:
        """Returns whether the round is on its way to a commit here."""
        return self.dispatcher.is_running

    # Events

    def ready(self, ready: Ready) -> None:
        """This peer's own work is done."""
        log.debug("ready", round=ready.round, tokens=ready.tokens, steps=ready.steps)
        self.dispatcher.ready(trio.current_time(), ready)

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A checked statement came by gossip or anti-entropy."""
        self.dispatcher.heard(trio.current_time(), signed, statement)

    def tick(self) -> None:
        """Time passed, or the set of living peers changed."""
        now = trio.current_time()
        if self.is_running and self._has_heard(now):
            self._ticked_seconds = now
            self.dispatcher.tick(now, self._node.awaited())

    def _has_heard(self, now: float) -> bool:
        """Returns whether this node may go by the waits of the round. A process that was stopped
        finds them over before it has read what came meanwhile, and would go on without the others.
        """
        awake_seconds = self._node.awake_since(self._ticked_seconds)
        was_stopped = now - self._ticked_seconds - awake_seconds > TICK_SECONDS
        return not was_stopped or awake_seconds >= HEARING_SECONDS

    def disconnected(self, peer: PeerId) -> None:
        """The connection to a peer broke."""
        self.dispatcher.disconnected(trio.current_time(), peer)

    def commit_received(self, commit: Commit) -> bool:
        """A checked commit record came; says whether this round is committed now."""
        return self.dispatcher.commit_received(trio.current_time(), commit)

    async def greeted(self, roster: Signed, statement: Statement) -> Receiver | None:
        """A predecessor began to send for a ring; None refuses it.

        Waits up to `HELLO_SECONDS` until this peer follows that ring.
        """
        self.heard(roster, statement)
        ring_id = ring_id_of(roster)
        with trio.move_on_after(HELLO_SECONDS):
            while (answer := self.dispatcher.greeting(ring_id)) == "later":
                await self._changed.wait()
            if answer != "refused":
                return RingReceiver(self.dispatcher, ring_id, self._chunks)
        return None

    # Effects of the dispatcher

    def publish(self, signed: Signed, statement: Statement) -> None:
        """See `Effects`."""
        self._gossip.publish(signed, statement)

    def begin_ring(self, ring: Ring) -> None:
        """See `Effects`."""
        self._own_part.contribution = self._node.contribution_to(ring)
        self._listen(set(ring.members) - {self._transport.peer_id})
        log.debug(
            "ring",
            round=self.machine.number,
            ring=short(ring.ring_id),
            members=len(ring.members),
            attempt=ring.roster.attempt,
        )

    def _listen(self, members: Collection[PeerId]) -> None:
        """Hears these members often from now on, and no others: their silence is noticed early."""
        self._end_listening()
        self._end_listening = self._transport.listen(members)

    def open_link(self, target: LinkTarget) -> OutgoingLink:
        """See `Effects`."""
        assert self._nursery is not None
        peer, ring_id = target.peer, target.ring.ring_id
        link = RingLink(
            self._transport,
            target,
            self._chunks,
            self._node.awake_since,
            on_transfer=self._node.transferred,
            on_measured=lambda measure: self._measured(ring_id, peer, measure),
        )
        self._nursery.start_soon(self._run_link, ring_id, peer, link)
        return link

    def _measured(self, ring_id: Digest, peer: PeerId, measure: LinkMeasure) -> None:
        """A slow path through a relay says nothing about the member at its end."""
        path = self._transport.path(peer)
        if self.is_running and path is not None and path.kind != "relayed":
            limit = self._node.upload_limit()
            event = LinkMeasured(peer, measure._replace(limit_bytes_per_second=limit))
            self.dispatcher.ring_event(trio.current_time(), ring_id, event)

    def contribute(self, ring_id: Digest, action: Contribute) -> None:
        """See `Effects`."""
        assert self._nursery is not None
        own_part = self._own_part
        self._nursery.start_soon(own_part.add, ring_id, action, own_part.of_ring())

    def finish_average(self, ring_id: Digest, action: FinishAverage) -> None:
        """See `Effects`."""
        assert self._nursery is not None
        own_part = self._own_part
        self._nursery.start_soon(own_part.finish_average, ring_id, action, own_part.of_ring())

    def take_outer_step(self, order: Compute) -> None:
        """See `Effects`."""
        assert self._nursery is not None
        self._nursery.start_soon(self._take_outer_step, order)

    def heard_seconds(self, peer: PeerId) -> float | None:
        """See `Effects`."""
        return self._transport.heard_seconds(peer)

    def notify_changed(self) -> None:
        """See `Effects`."""
        if self.machine.gathering_reason != self._gathering_reason:
            self._gathering_reason = self.machine.gathering_reason
            log.debug("gathering", round=self.machine.number, reason=self._gathering_reason)
        # What a tick does in a ring whose chunks are on their way depends on the time alone.
        before, self._state = self._state, self.machine.state
        if self._state != "reducing" or self._state != before:
            self._may_tick.set()
        self._changed.set()
        self._changed = trio.Event()
        self._node.changed()

    # Tasks

    async def _run_link(self, ring_id: Digest, peer: PeerId, link: RingLink) -> None:
        failure: str | None = None
        with link.scope:
            try:
                await self._node.reach(peer)
                await link.run()
            except TransportError as error:
                failure = f"reset: {error}"
            except LinkFailed as error:
                failure = str(error)
            if failure is not None:
                event = LinkBroken(peer, failure)
                self.dispatcher.ring_event(trio.current_time(), ring_id, event)

    async def _take_outer_step(self, order: Compute) -> None:
        payloads = [average.payload for average in order.averages]
        masks = [average.mask for average in order.averages]
        outer_step, is_wanted = self._node.outer_step, self.dispatcher.is_wanted
        digest = await self._chunks.run_in_thread(
            lambda: outer_step(
                order.parent, payloads, masks, order.members, lambda: is_wanted(order)
            )
        )
        if digest is None:
            return
        ring, state = short(order.ring_id), short(digest)
        log.debug("state", round=self.machine.number, ring=ring, state=state)
        event = Computed(order.generation, digest)
        self.dispatcher.ring_event(trio.current_time(), order.ring_id, event)

    @property
    def _node(self) -> RoundHost:
        assert self._host is not None, "the round has ended here"
        return self._host
