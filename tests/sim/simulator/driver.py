"""What executes the actions of a peer's `Round`, as its docstrings say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gossamer.node.modes.contribution import Contribution
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.attempt import (
    Action,
    BeginRing,
    Committed,
    Compute,
    Publish,
    Removed,
)
from gossamer.protocol.rounds.inventory import Held, Inventory
from gossamer.protocol.rounds.proposal import members_of
from gossamer.protocol.rounds.ring import Average, Contribute, FinishAverage, Send
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import (
    Accusation,
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

HELLO_SECONDS = 10.0
"""How long a predecessor that began a ring waits for me to follow it."""

SILENT_SECONDS = (4.0, 6.0)
"""A successor of whom nothing came for 6 s has failed; its last sign of life came up to 2 s before
it fell silent."""

LINGER_SECONDS = 10.0
"""After the commit, until all the others have voted for it."""

WATCH_SECONDS = 0.25

WAKES_MAX = 50
"""Ticks at one instant after which a machine is taken to ask for itself for ever."""


class Driver:
    """One peer in one round."""

    def __init__(
        self, peer: Peer, machine: Round, on_committed: Callable[[Committed], None]
    ) -> None:
        self.peer = peer
        self.machine = machine
        self.is_running = True
        self.is_open = True
        """Whether it runs, or others may need something of it for their commit."""
        self._on_committed = on_committed
        self._world = peer.world
        self.ring: Ring | None = None
        """That is followed."""
        self.averages: list[Average] = []
        """Of the ring, once all are there; the newest."""
        self._envelope: Signed | None = None
        self._position = 0
        self.contribution: Contribution | None = None
        self._links: dict[PeerId, Link] = {}
        self.ring_began_seconds = 0.0
        self._patience_seconds = 0.0
        self._num_computed = 0
        self._wake_seconds: float | None = None
        self._wakes = (0.0, 0)

    # Life

    def begin(self) -> None:
        """Faster peers may have spoken of this round before this one came to it."""
        for signed, statement in self.peer.statement_store.statements():
            self.heard(signed, statement)

    def leave(self) -> None:
        """Says that the ring has to do without this peer, and ends the round here."""
        if self.is_running:
            self._do(self.machine.leave(self.peer.now))
        self._end()

    def _end(self) -> None:
        self.is_running = self.is_open = False
        self._close_links()

    def _queue_no_more(self) -> None:
        """All the others have committed: what is queued is still delivered."""
        if self.is_open:
            self.is_open = False
            self.peer.delivering.remove(self)

    def _end_after_commit(self) -> None:
        self._queue_no_more()
        self._close_links()

    def die(self) -> None:
        """The process is killed."""
        self.is_running = self.is_open = False

    def _close_links(self) -> None:
        for link in self._links.values():
            link.close()
        self._links = {}

    # Events

    def ready(self, ready: Ready) -> None:
        self._do(self.machine.ready(self.peer.now, ready))

    def expect(self, awaited: Awaited) -> None:
        self._do(self.machine.expect(self.peer.now, *awaited))

    def heard(self, signed: Signed, statement: Statement) -> None:
        if self.is_open:
            self._do(self.machine.statement(self.peer.now, signed, statement))

    def heard_roster(self, link: Link) -> None:
        """A predecessor's stream begins with the roster."""
        if self.machine.head == link.ring.roster.head:
            self.heard(link.envelope, link.ring.roster)

    def commit_received(self, commit: Commit) -> bool:
        """A commit record; says whether it was this round's, as computed here."""
        self._do(self.machine.commit_received(commit))
        return self.machine.state == "committed"

    def disconnected(self, peer: PeerId) -> None:
        """The connection to a peer broke: as successor it has failed."""
        if self.is_open and self.ring is not None and peer == self.machine.successor:
            self._failed(peer, "reset")

    def accuse_successor(self) -> None:
        """A wrong suspicion: the link is given up although nothing is wrong with it."""
        successor = self.machine.successor
        if self.is_running and self.ring is not None and successor is not None:
            self._failed(successor, "mistaken")

    # Actions

    def _do(self, actions: Iterable[Action]) -> None:
        """Executes actions in order, unless the round is over meanwhile."""
        for action in actions:
            if not self.is_open:
                return
            self._execute(action)
        if self.is_open:
            self._follow_successor()
        if self.is_running:
            self._schedule_wake()
            self.peer.consider()
        elif self.machine.is_over:
            self._queue_no_more()

    def _execute(self, action: Action) -> None:
        match action:
            case Publish(signed, statement):
                self._publish(signed, statement)
            case BeginRing(ring, envelope):
                self._begin_ring(ring, envelope)
            case Contribute():
                self._contribute(action)
            case FinishAverage():
                self._finish_average(action)
            case Compute():
                self._compute(action)
            case Send(target):
                self._link_to(target).send(action)
            case Removed(removed, reason):
                self._world.note(f"{self.peer.name} holds {self._name(removed)} out: {reason}")
            case Committed():
                self.is_running = False
                self.peer.delivering.append(self)
                self.peer.later(LINGER_SECONDS, self._end_after_commit)
                self._on_committed(action)

    def _publish(self, signed: Signed, statement: Statement) -> None:
        peer, world = self.peer, self._world
        match statement:
            case Accusation():
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

    def _begin_ring(self, ring: Ring, envelope: Signed) -> None:
        self._world.count("ring switched", self.ring is not None)
        self._close_links()
        self.ring, self._envelope = ring, envelope
        self._position = ring.members.index(self.peer.peer_id)
        self.averages = []
        pending = self.peer.work.offered_vector(self.machine.number)
        self.contribution = self._world.mode.contribution(pending, ring, self.peer.peer_id)
        self._world.checks.note_offer(ring, self._position, pending)
        self._num_computed = 0
        self.ring_began_seconds = self._world.now
        self._patience_seconds = self._world.uniform(SILENT_SECONDS)
        names = [self._name(member) for member in ring.members]
        self._world.note(f"{self.peer.name} follows {ring.ring_id.hex()[:6]} of {names}")
        self._watch(ring)

    # Arithmetic

    def _contribute(self, action: Contribute) -> None:
        payload = action.payload
        assert payload is None or isinstance(payload, Sum)
        assert self.contribution is not None
        chunk = action.chunk
        work = self.peer.work.offered(self.machine.number, chunk)
        encoded = self.contribution.add(chunk, None if payload is None else payload.encoded)
        total = arithmetic.add(payload, self._position, work, bytes(encoded))
        self._answer(
            lambda ring_id: self.machine.contributed(self.peer.now, ring_id, chunk, total)  # type: ignore[arg-type]
        )

    def _finish_average(self, action: FinishAverage) -> None:
        payload, chunk = action.payload, action.chunk
        assert isinstance(payload, Sum)
        arithmetic.check(payload, action.mask, chunk)
        assert self.contribution is not None
        encoded = self.contribution.finish_average(chunk, payload.encoded, action.mask)
        average = Sum(payload.parts, bytes(encoded))
        self._answer(
            lambda ring_id: self.machine.average_finished(
                self.peer.now,
                ring_id,
                chunk,
                average,  # type: ignore[arg-type]
                average.digest,
            )
        )

    def _compute(self, action: Compute) -> None:
        self.averages = action.averages
        self._num_computed += 1
        self._world.count("computed again", self._num_computed > 1)
        assert self.ring is not None
        members = members_of(self.ring, [average.mask for average in action.averages])
        tokens = [member.tokens for member in members]
        state = self._world.checks.state_after(self.machine.head, action.averages, tokens).digest
        self._answer(
            lambda ring_id: self.machine.computed(self.peer.now, ring_id, action.generation, state),
            not_before_seconds=self._world.scenario.hold_seconds,
        )

    def _answer(
        self, event: Callable[[Digest], list[Action]], *, not_before_seconds: float = 0.0
    ) -> None:
        """Arithmetic takes its time, and what it answers may be out of date by then."""
        assert self.ring is not None
        ring_id = self.ring.ring_id

        def answer() -> None:
            if self.is_running:
                self._do(event(ring_id))

        delay_seconds = self._world.uniform(self._world.scenario.arithmetic_seconds)
        self.peer.at(max(self._world.now + delay_seconds, not_before_seconds), answer)

    # Time

    def _schedule_wake(self) -> None:
        wake_seconds = self.machine.wake_seconds(self.peer.now)
        if wake_seconds is None or wake_seconds == self._wake_seconds:
            return
        self._wake_seconds = wake_seconds

        def tick() -> None:
            if not self.is_running or self._wake_seconds != wake_seconds:
                return
            self._wake_seconds = None
            last, count = self._wakes
            self._wakes = (self._world.now, count + 1 if last == self._world.now else 1)
            assert self._wakes[1] < WAKES_MAX, "the machine wakes itself for ever"
            self._do(self.machine.tick(self.peer.now))

        self.peer.later(max(0.0, wake_seconds - self.peer.now), tick)

    def _watch(self, ring: Ring) -> None:
        """Tells the machine the pace of its link, and of a successor that fell silent."""
        if not self.is_running or self.ring is not ring:
            return
        self.peer.later(WATCH_SECONDS, lambda: self._watch(ring))
        for peer, link in list(self._links.items()):
            acked_bytes, busy_seconds, waiting_bytes = link.measured()
            if busy_seconds and self.is_running:
                actions = self.machine.link_measured(
                    self.peer.now, ring.ring_id, peer, acked_bytes, busy_seconds, waiting_bytes
                )
                if actions:
                    self._do(actions)
                else:
                    self.peer.consider()
        while self.is_running:
            successor = self.machine.successor
            if successor is None or not self._is_silent(successor):
                break
            self._failed(successor, "timeout")

    def _is_silent(self, peer_id: PeerId) -> bool:
        """Whether nothing came of a connected peer for long, while this one could listen."""
        peer, world = self.peer, self._world
        quiet_since = world.network.quiet_since(peer, world.peers[peer_id])
        if quiet_since is None or peer_id not in peer.connections:
            return False
        since = max(quiet_since, peer.awake_seconds, self.ring_began_seconds)
        return world.now - since >= self._patience_seconds

    # Links

    def _link_to(self, target: PeerId) -> Link:
        link = self._links.get(target)
        if link is None:
            assert self.ring is not None
            assert self._envelope is not None
            world = self._world
            link = self._links[target] = world.links.open(
                self, world.peers[target], self.ring, self._envelope
            )
            if target not in self.peer.connections:
                link.dial()
        return link

    def _follow_successor(self) -> None:
        """A link to the successor exists as long as the ring does, so that its death shows."""
        if self.ring is not None and self.machine.successor is not None:
            self._link_to(self.machine.successor)

    def link_failed(self, link: Link, reason: str) -> None:
        """A link of mine broke."""
        if self.is_open and self._links.get(link.target.peer_id) is link:
            self._world.count("link failed after the commit", not self.is_running)
            self._failed(link.target.peer_id, reason)

    def _failed(self, peer: PeerId, reason: str) -> None:
        assert self.ring is not None
        self._do(self.machine.link_failed(self.peer.now, self.ring.ring_id, peer, reason))

    def answer_greeting(self, link: Link) -> bool:
        """Accepts a predecessor's link if it can be said now what it is good for."""
        inventory = None
        if self.is_running and self.machine.head == link.ring.roster.head:
            inventory = self.machine.inventory(link.ring.ring_id)
        elif link.ring.roster.round < self.machine.number:
            # That round is over here: greeted all the same, so that nobody thinks that I fail.
            best = ((1 << len(link.ring.members)) - 1, Digest(bytes(DIGEST_BYTES)))
            held = Inventory((Held(average=best),) * self._world.scenario.num_chunks)
            link.accept(held, takes=False)
            return True
        if inventory is None:
            return False
        link.accept(inventory, takes=True)
        return True

    def frame_received(self, link: Link, frame: Send) -> str | None:
        """A frame of a ring; returns why the link is refused, or None."""
        if self.ring is None or self.ring.ring_id != link.ring.ring_id or not self.is_running:
            return "refused"
        now, ring_id, source = self.peer.now, link.ring.ring_id, link.source.peer_id
        chunk, mask, payload = frame.chunk, frame.mask, frame.payload
        assert isinstance(payload, Sum)
        self._world.mode.check(payload, mask)
        if frame.finisher is None:
            actions = self.machine.partial_sum_received(now, ring_id, source, chunk, mask, payload)
        else:
            actions = self.machine.average_received(
                now, ring_id, source, chunk, mask, frame.finisher, payload, payload.digest
            )
        self._do(actions)
        return None

    # For people

    def _name(self, peer: PeerId) -> str:
        return self._world.name(peer)
