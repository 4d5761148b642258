"""What a node's `RoundDriver` does with threads and streams, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from gossamer.node.modes.sync_mode import Contribution
from gossamer.node.network.transport import RING_PING_SECONDS
from gossamer.node.rounds.dispatcher import TICK_SECONDS, LinkTarget, RoundDispatcher
from gossamer.node.rounds.ring_chunks import CommittedRing
from gossamer.node.rounds.ring_link import WATCH_SECONDS
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import (
    AverageArrived,
    AverageFinished,
    Committed,
    Compute,
    Computed,
    Contested,
    Contribute,
    Contributed,
    FinishAverage,
    LeftOut,
    LinkBroken,
    LinkMeasured,
    Observation,
    Removed,
    Send,
    SumArrived,
    Unsettled,
)
from gossamer.protocol.rounds.inventory import NO_DIGEST, ArrivedSum, Average, Inventory
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import (
    Accusation,
    Equivocation,
    LinkRate,
    Ready,
    Roster,
    Signed,
    Statement,
    Vote,
)
from tests.sim.simulator import arithmetic
from tests.sim.simulator.arithmetic import Sum
from tests.sim.simulator.links import Link

if TYPE_CHECKING:
    from tests.sim.simulator.peer import Peer


class Driver:
    """One peer in one round: the effects of its dispatcher."""

    def __init__(
        self, peer: Peer, machine: Round, on_committed: Callable[[Committed], None]
    ) -> None:
        self.peer = peer
        self.machine = machine
        self._world = peer.world
        self.dispatcher = RoundDispatcher(machine, self, self)
        self._on_committed = on_committed
        self.averages: list[Average] = []
        """The newest averages of the ring, once all are there."""
        self.contribution: Contribution | None = None
        self._links: list[Link] = []
        self.ring_began_seconds = 0.0
        self._num_computed = 0
        self._is_committed = False

    # Life

    def begin(self) -> None:
        self.dispatcher.begin(self.peer.now, self.peer.statement_store.statements())
        self._tick()

    def leave(self) -> None:
        self.dispatcher.leave(self.peer.now)

    def die(self) -> None:
        """The process is killed."""
        self.dispatcher.close()

    @property
    def is_running(self) -> bool:
        return self.dispatcher.is_running

    @property
    def ring(self) -> Ring | None:
        """The ring that is followed."""
        return self.machine.ring

    # Events

    def _tick(self) -> None:
        if self.is_running:
            self.peer.later(TICK_SECONDS, self._tick)
            self.expect(self.peer.expected_now)

    def expect(self, awaited: Awaited) -> None:
        self.dispatcher.tick(self.peer.now, awaited)

    def ready(self, ready: Ready) -> None:
        self.dispatcher.ready(self.peer.now, ready)

    def heard(self, signed: Signed, statement: Statement) -> None:
        self.dispatcher.heard(self.peer.now, signed, statement)

    def commit_received(self, commit: Commit) -> bool:
        return self.dispatcher.commit_received(self.peer.now, commit)

    def disconnected(self, peer: PeerId) -> None:
        self.dispatcher.disconnected(self.peer.now, peer)

    def accuse_successor(self) -> None:
        """A wrong suspicion: the link is given up although nothing is wrong with it."""
        successor, ring = self.machine.successor, self.ring
        if self.is_running and ring is not None and successor is not None:
            self.dispatcher.ring_event(
                self.peer.now, ring.ring_id, LinkBroken(successor, "mistaken")
            )

    def link_failed(self, link: Link, reason: str) -> None:
        """A link of mine broke."""
        dispatcher, ring_id = self.dispatcher, link.ring.ring_id
        if dispatcher.is_open and dispatcher.ring_id == ring_id:
            self._world.count("link failed after the commit", not self.is_running)
        dispatcher.ring_event(self.peer.now, ring_id, LinkBroken(link.target.peer_id, reason))

    # Streams of predecessors

    def answer_greeting(self, link: Link) -> bool:
        """Answers a predecessor of a ring of this round, if it can be said now."""
        answer = self.dispatcher.greeting(link.ring.ring_id)
        if isinstance(answer, Inventory):
            link.accept(answer, self)
        elif answer == "refused":
            link.refuse("refused")
        return answer != "later"

    def answer_late_greeting(self, link: Link) -> None:
        """That round is over here; an answer shows the sender that this peer lives."""
        if self._world.checks.has_other_ring(link.ring, self.peer.heads.head):
            link.refuse("refused")
            return
        num_chunks, num_members = self._world.scenario.num_chunks, len(link.ring.members)
        link.accept(CommittedRing(num_chunks, num_members).inventory(), None)

    def frame_received(self, link: Link, frame: Send) -> str | None:
        """A frame of a ring; returns why the link is refused, or None."""
        ring_id, source = link.ring.ring_id, link.source.peer_id
        dispatcher, now = self.dispatcher, self.peer.now
        use = dispatcher.use_of(ring_id)
        if use != "wanted":
            return "refused" if use == "refused" else None
        chunk, mask, payload = frame.chunk, frame.mask, frame.payload
        assert isinstance(payload, Sum)
        if self.machine.has_to_check(mask, frame.finisher):
            is_average = frame.finisher is not None
            self._world.mode.check(payload, mask, chunk, link.ring, is_average=is_average)
        signed, signature = self.machine.signed_averages, frame.signature
        if frame.finisher is None:
            arrived = ArrivedSum(source, mask, payload, self._audited(payload), signature)
            signed.check_sum(chunk, arrived)
            dispatcher.ring_event(now, ring_id, SumArrived(chunk, arrived))
        else:
            average = Average(mask, payload.digest, frame.finisher, payload, signature)
            signed.check(chunk, average)
            dispatcher.ring_event(now, ring_id, AverageArrived(source, chunk, average))
        return None

    # Effects

    def publish(self, signed: Signed, statement: Statement) -> None:
        """See `Effects`."""
        peer, world = self.peer, self._world
        match statement:
            case Accusation() if signed.author == peer.peer_id:
                world.checks.note_accusation(peer, statement)
                world.count("gathered again", self.machine.state == "gathering")
            case Vote():
                world.note(f"{peer.name} votes {statement.header_digest.hex()[:6]}")
            case LinkRate():
                world.count("pace said")
                world.count("pace said again", statement.sequence > 1)
            case Roster():
                world.note(f"{peer.name} organises attempt {statement.attempt}")
                peer.point("roster made")
                world.faults.cut_short(peer, signed, statement)
        peer.gossip(signed, statement)
        if isinstance(statement, Roster):
            peer.point("roster out")

    def begin_ring(self, ring: Ring) -> None:
        """See `Effects`."""
        world, peer = self._world, self.peer
        world.count("ring switched", self.contribution is not None)
        self._links = []
        self.averages = []
        position = ring.members.index(peer.peer_id)
        pending = peer.work.offered_vector(self.machine.number)
        self.contribution = world.mode.contribution(pending, ring, peer.peer_id)
        world.checks.note_offer(ring, position, pending)
        peer.heads.rings.add(ring.ring_id)
        self._num_computed = 0
        self.ring_began_seconds = world.now
        names = [world.name(member) for member in ring.members]
        world.note(f"{peer.name} follows {ring.ring_id.hex()[:6]} of {names}")
        self._watch(ring)

    def open_link(self, target: LinkTarget) -> Link:
        """See `Effects`."""
        world = self._world
        link = world.links.open(self, world.peers[target.peer], target)
        self._links.append(link)
        if target.peer not in self.peer.connections:
            link.dial()
        return link

    def contribute(self, ring_id: Digest, action: Contribute) -> None:
        """See `Effects`."""
        payload, chunk, ring = action.payload, action.chunk, self.ring
        assert payload is None or isinstance(payload, Sum)
        assert self.contribution is not None
        assert ring is not None
        work = self.peer.work.offered(self.machine.number, chunk)
        encoded = self.contribution.add(
            chunk, None if payload is None else payload.encoded, action.mask
        )
        position = ring.members.index(self.peer.peer_id)
        total = arithmetic.add(payload, position, work, bytes(encoded))
        event = Contributed(chunk, total, self._audited(total))  # type: ignore[arg-type]
        self._answer(lambda: self.dispatcher.ring_event(self.peer.now, ring_id, event))

    def _audited(self, payload: Sum) -> Digest:
        """The digest of a partial sum, where sums are audited."""
        return payload.digest if self._world.mode.payloads.are_audited else NO_DIGEST

    def finish_average(self, ring_id: Digest, action: FinishAverage) -> None:
        """See `Effects`."""
        payload, chunk = action.payload, action.chunk
        assert isinstance(payload, Sum)
        arithmetic.check(payload, action.mask, chunk)
        assert self.contribution is not None
        encoded = self.contribution.finish_average(chunk, payload.encoded, action.mask)
        average = Sum(payload.parts, bytes(encoded))
        event = AverageFinished(chunk, average, average.digest)  # type: ignore[arg-type]
        self._answer(lambda: self.dispatcher.ring_event(self.peer.now, ring_id, event))

    def take_outer_step(self, order: Compute) -> None:
        """See `Effects`."""
        self.averages = order.averages
        self._num_computed += 1
        self._world.count("computed again", self._num_computed > 1)
        tokens = [member.tokens for member in order.members]

        def answer() -> None:
            if self.dispatcher.is_wanted(order):
                state = self._world.checks.state_after(order.parent, order.averages, tokens)
                event = Computed(order.generation, state.digest)
                self.dispatcher.ring_event(self.peer.now, order.ring_id, event)

        self._answer(answer, not_before_seconds=self._world.scenario.hold_seconds)

    def heard_seconds(self, peer: PeerId) -> float | None:
        """See `Effects`: a member that is heard gives a sign of life every `RING_PING_SECONDS`."""
        if peer not in self.peer.connections:
            return None
        world, other = self._world, self._world.peers[peer]
        quiet_since = world.network.quiet_since(self.peer, other)
        until_seconds = world.now if quiet_since is None else quiet_since
        signs = math.floor((until_seconds - other.ping_phase_seconds) / RING_PING_SECONDS)
        heard_seconds = other.ping_phase_seconds + signs * RING_PING_SECONDS
        return heard_seconds + self.peer.machine.clock_ahead_seconds

    def awake_since(self, seconds: float) -> float:
        """See `Observer`."""
        return self.peer.awake_since(seconds)

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """See `Observer`: all traffic is honest."""
        raise error

    def observed(self, observation: Observation) -> None:
        """See `Observer`: all members are honest."""
        world = self._world
        match observation:
            case Removed(peer, reason, detail):
                world.note(f"{self.peer.name} holds {world.name(peer)} out: {reason}, {detail}")
            case Contested():
                world.count("exclusions contested")
            case LeftOut():
                world.count("rosters that leave out ready peers")
                world.count("rosters that leave out peers mended", observation.is_mended)
            case Unsettled(organiser):
                raise AssertionError(f"{organiser} replaced its own rings again and again")

    def contradicted(self, proof: Equivocation) -> None:
        """See `Observer`: all members are honest."""
        raise AssertionError(f"{proof.first.author} has signed two averages of one chunk")

    def notify_changed(self) -> None:
        """See `Effects`."""
        dispatcher, delivering = self.dispatcher, self.peer.delivering
        if not dispatcher.is_open and self in delivering:
            delivering.remove(self)
        if dispatcher.committed is not None and not self._is_committed:
            self._is_committed = True
            assert dispatcher.ends_seconds is not None
            if dispatcher.is_open:
                delivering.append(self)
            self.peer.later(dispatcher.ends_seconds - self.peer.now, self._end)
            self._on_committed(dispatcher.committed)
        self.peer.answer_greetings()

    # Time

    def _end(self) -> None:
        if self.dispatcher.is_open:
            self.peer.delivering.remove(self)
        self.dispatcher.close()

    def _answer(self, event: Callable[[], None], *, not_before_seconds: float = 0.0) -> None:
        """Arithmetic takes its time, and its answer may be out of date by then."""
        delay_seconds = self._world.uniform(self._world.scenario.arithmetic_seconds)
        self.peer.at(max(self._world.now + delay_seconds, not_before_seconds), event)

    def _watch(self, ring: Ring) -> None:
        """Reports the rates of links, as each `RingLink` does."""
        if not self.is_running or self.ring is not ring:
            return
        self.peer.later(WATCH_SECONDS, lambda: self._watch(ring))
        for link in self._links:
            measured = link.measured()
            if link.is_open and measured is not None:
                target = link.target.peer_id
                self.dispatcher.ring_event(
                    self.peer.now, ring.ring_id, LinkMeasured(target, measured)
                )
