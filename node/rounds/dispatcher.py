"""Decides what one peer does with the events of one round, without I/O and without a clock.

    dispatcher = RoundDispatcher(machine, effects, node)
    dispatcher.begin(now, statements)          # the statements that came before the round
    dispatcher.tick(now, awaited)              # every TICK_SECONDS while `is_running`
    dispatcher.heard(now, signed, statement)   # and the other events, as they come
    dispatcher.close()                         # nothing of the round happens any more

The state machine of a round (`protocol/rounds/round.py`) says what has to happen. The dispatcher
turns that into calls of `Effects`: which links exist, what is still of use, which outer step is
still wanted, who is silent, and when the round has ended for the others too. `RoundDriver`
implements `Effects` with streams and threads. The simulator implements `Effects` with virtual time,
so its seeds test this module. What a round says of other peers goes to an `Observer`, the node.

Every event takes the local time in seconds, from a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from gossamer.node.rounds.decisions import linger_seconds
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import (
    Action,
    BeginRing,
    Committed,
    Compute,
    Contested,
    Contradicted,
    Contribute,
    FinishAverage,
    LeftOut,
    LinkBroken,
    Observation,
    Publish,
    Rejected,
    Removed,
    RingEvent,
    Send,
    Unsettled,
)
from gossamer.protocol.rounds.inventory import Inventory
from gossamer.protocol.rounds.ring.ring_signatures import FoundStep, SignedSteps
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import Equivocation, Ready, Signed, Statement

TICK_SECONDS = 0.1
"""Upper bound on how late the machine learns that time passed; its own waits are seconds."""

HELLO_SECONDS = 10.0
"""Time for which a predecessor that began a ring waits until this peer follows the same ring."""

SILENT_SECONDS = 6.0
"""A connected successor from which nothing at all came for so long has failed: three signs of life
that a living member gives (`transport.RING_PING_SECONDS`), and less than the 12 s after which a
round has to continue."""

SENDS_PER_CHUNK_MAX = 4
"""A chunk is sent to one member at most as partial sum, as average, and once more of each when the
ring changes or votes differ. A link holds no more than that of each chunk."""

ChunkUse: TypeAlias = Literal["wanted", "late", "refused"]
"""The use of a chunk that arrives: it is taken; it is dropped, because the round is committed here;
its stream is refused, because another ring is followed here."""

Phase: TypeAlias = Literal["new", "running", "delivering", "delivered", "closed"]
"""The life of a round here. Once it is delivered, nothing more is queued for others."""


class LinkFullError(Exception):
    """A link has more queued than one ring can ever need."""


class OutgoingLink(Protocol):
    """The stream to one member of one ring."""

    def send(self, frame: Send) -> None:
        """Queues a chunk. Raises LinkFullError."""

    def finish(self) -> None:
        """Nothing more will be queued; what is queued is still delivered."""

    def close(self) -> None:
        """Ends the stream now."""


@dataclass(frozen=True)
class LinkTarget:
    """The member and the ring for which a link is opened. Its stream begins with the roster."""

    peer: PeerId
    ring: Ring
    waits_for_inventory: bool
    """Whether the member may hold chunks already. In a ring without removed members a member holds
    nothing that its predecessor did not send."""


class Observer(Protocol):
    """The node, as a dispatcher asks and tells it of the peers of a round."""

    def awake_since(self, seconds: float) -> float:
        """Seconds for which this process has run since a local time. A stop of this process is no
        silence of others."""

    def offence(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """A peer broke the protocol."""

    def observed(self, observation: Observation) -> None:
        """The round shows something of other peers."""

    def contradicted(self, proof: Equivocation) -> None:
        """A member has signed two averages of one chunk, or two parts of one step."""


class Effects(Protocol):
    """The effects of a dispatcher. No method waits."""

    def publish(self, signed: Signed, statement: Statement) -> None:
        """Gossips a statement of this peer."""

    def begin_ring(self, ring: Ring) -> None:
        """This ring is followed from now on. Links of an earlier ring are closed already."""

    def open_link(self, target: LinkTarget) -> OutgoingLink:
        """Starts a stream to a member. The event of its failure is `LinkBroken`."""

    def contribute(self, ring_id: Digest, action: Contribute) -> None:
        """Starts to add this peer's part. The answer is `Contributed` or `Rejected`."""

    def finish_average(self, ring_id: Digest, action: FinishAverage) -> None:
        """Starts to finish an average. The answer is `AverageFinished`, or `cannot_finish`."""

    def take_outer_step(self, order: Compute) -> None:
        """Starts an outer step. The answer is `Computed`, unless `is_wanted` became false."""

    def heard_seconds(self, peer: PeerId) -> float | None:
        """Local time at which something last came from a peer; None without a connection."""

    def notify_changed(self) -> None:
        """The machine may have changed: the round may be committed here, or delivered to all."""


class RoundDispatcher:
    """One peer in one round. Attributes may be read; only this class writes them.

    It has more than 15 public methods: each event of a round is one.
    """

    def __init__(self, machine: Round, effects: Effects, node: Observer) -> None:
        self.machine = machine
        self.committed: Committed | None = None
        self.ends_seconds: float | None = None
        """Local time at which the round ends here, delivered or not; None before the commit."""
        self._around: tuple[Effects, Observer] | None = effects, node
        """What is called here; None once the round has ended."""
        self.phase: Phase = "new"
        self._links: dict[PeerId, OutgoingLink] = {}
        self._began_seconds = 0.0
        """Local time at which the round or its newest ring began. Silence before counts for no
        member."""
        self._wanted_step: tuple[Digest, int] | None = None
        """Ring and generation of the newest outer step. Threads read it."""
        self._signed_steps = SignedSteps()

    # Life

    def begin(self, now: float, statements: Iterable[tuple[Signed, Statement]]) -> None:
        """The round begins here; faster peers may have spoken of it before."""
        if self.phase != "new":
            return
        self.phase = "running"
        self._began_seconds = now
        for signed, statement in statements:
            self.heard(now, signed, statement)

    def leave(self, now: float) -> None:
        """Tells the others that the ring continues without this peer, and ends the round here."""
        if self.is_running:
            self.apply(now, self.machine.leave(now))
        self.close()

    def close(self) -> None:
        """Ends the round here. No effect is called any more."""
        self.phase = "closed"
        self._wanted_step = None
        self._close_links()
        # Effects hold the dispatcher as well. Without this cycle the vectors of a round are freed
        # when the round is forgotten, not when the garbage collector runs.
        self._around = None

    @property
    def is_running(self) -> bool:
        """Returns whether the round is on its way to a commit here."""
        return self.phase == "running"

    @property
    def is_open(self) -> bool:
        """Returns whether the round runs here, or other members may need something for their
        commit."""
        return self.phase in ("running", "delivering")

    @property
    def ring_id(self) -> Digest | None:
        """Identifier of the ring that is or was followed."""
        return None if self.machine.ring is None else self.machine.ring.ring_id

    def is_wanted(self, order: Compute) -> bool:
        """Returns whether an outer step is still the newest one of a round that runs. Threads call
        this: an older step must not overwrite a newer state, in whichever order their threads
        begin."""
        return self._wanted_step == (order.ring_id, order.generation)

    # Events: time and membership

    def tick(self, now: float, awaited: Awaited) -> None:
        """Time passed, or the set of living peers changed."""
        if not self.is_running:
            return
        self.apply(now, self.machine.expect(now, *awaited))
        while self.is_running and (peer := self.machine.successor) and self._is_silent(peer):
            self._break_link(now, peer, "timeout: silent")

    def _is_silent(self, peer: PeerId) -> bool:
        """A machine that froze, or whose line was cut, does not close its connections. Without a
        connection the link shows the failure."""
        heard_seconds = self._do.heard_seconds(peer)
        if heard_seconds is None:
            return False
        return self._node.awake_since(max(heard_seconds, self._began_seconds)) >= SILENT_SECONDS

    def disconnected(self, now: float, peer: PeerId) -> None:
        """The connection to a peer broke: as successor it has failed."""
        if peer == self.machine.successor:
            self._break_link(now, peer, "reset")

    # Events: statements

    def ready(self, now: float, ready: Ready) -> None:
        """This peer's own work is done."""
        assert self.phase != "new", "the round has not begun"
        self.apply(now, self.machine.ready(now, ready))

    def heard(self, now: float, signed: Signed, statement: Statement) -> None:
        """A checked statement came."""
        if not self.is_open:
            return
        try:
            self.apply(now, self.machine.statement(now, signed, statement))
        except RemoteProtocolError as error:
            self._node.offence(PeerId(signed.author), error)

    def commit_received(self, now: float, commit: Commit) -> bool:
        """A checked commit record came; says whether this round is committed now."""
        self.apply(now, self.machine.commit_received(commit))
        return self.committed is not None

    # Events: the ring

    def ring_event(self, now: float, ring_id: Digest, event: RingEvent) -> None:
        """Something happened in a ring."""
        if self.is_open:
            self.apply(now, self.machine.ring_event(now, ring_id, event))

    def rejected(
        self, now: float, ring_id: Digest, event: Rejected, error: RemoteProtocolError
    ) -> None:
        """The partial sum to add to was malformed, and its sender is to blame."""
        if self.is_open:
            self._node.offence(event.sender, error)
            self.ring_event(now, ring_id, event)

    def cannot_finish(self, now: float) -> None:
        """An average cannot be encoded: the ring continues without this peer."""
        if self.is_open:
            self.apply(now, self.machine.leave(now))

    # Events: chunks that arrive

    def greeting(self, ring_id: Digest) -> Inventory | Literal["later", "refused"]:
        """The answer to a predecessor that begins to send for a ring: what this peer holds of its
        chunks; "later" as long as this peer does not follow that ring."""
        if not self.is_running:
            return "refused"
        if self.ring_id != ring_id:
            return "later"
        inventory = self.machine.inventory(ring_id)
        return "refused" if inventory is None else inventory

    def use_of(self, ring_id: Digest) -> ChunkUse:
        """Returns whether a chunk of a ring is taken, dropped or refused."""
        if self.committed is not None:
            return "late"
        # An acknowledgement would make the sender wait for a chunk that never returns.
        return "wanted" if self.is_running and self.ring_id == ring_id else "refused"

    def steps_signed(self, found: Sequence[FoundStep]) -> None:
        """Parts of shared steps came, and their members' signatures were checked."""
        if self._around is None:  # the round ended here meanwhile
            return
        for proof in self._signed_steps.add(found):
            self._node.contradicted(proof)

    # Actions

    def apply(self, now: float, actions: list[Action]) -> None:
        """Executes actions of the machine in order, and what follows from its new state."""
        for action in actions:
            if not self.is_open:
                return
            self._execute(now, action)
        if not self.is_open:
            return
        successor = self.machine.successor
        if successor is not None:
            # Whether or not there is something to send: only a link shows that its end died.
            self._link_to(successor)
        if self.phase == "delivering" and self.machine.is_over:
            self.phase = "delivered"
            for peer in sorted(self._links):
                self._links[peer].finish()
        self._do.notify_changed()

    def _execute(self, now: float, action: Action) -> None:
        match action:
            case Publish():
                self._do.publish(action.signed, action.statement)
            case BeginRing():
                self._begin_ring(now, action)
            case Contribute():
                self._do.contribute(self._ring.ring_id, action)
            case FinishAverage():
                self._do.finish_average(self._ring.ring_id, action)
            case Send():
                self._send(now, action)
            case Compute():
                self._wanted_step = action.ring_id, action.generation
                self._do.take_outer_step(action)
            case Removed() | Contested() | LeftOut() | Unsettled():
                self._node.observed(action)
            case Contradicted():
                self._node.contradicted(self.machine.signed_averages.proof(action))
            case Committed():
                self.phase, self.committed, self._wanted_step = "delivering", action, None
                self.ends_seconds = now + self.serves_seconds(now)

    def serves_seconds(self, now: float) -> float:
        """Time for which a ring that is committed now serves members that have not voted yet."""
        return linger_seconds(now - self._began_seconds)

    def _begin_ring(self, now: float, action: BeginRing) -> None:
        self._close_links()
        self._wanted_step = None
        self._began_seconds = now
        self._do.begin_ring(action.ring)

    def _close_links(self) -> None:
        links, self._links = self._links, {}
        for peer in sorted(links):
            links[peer].close()

    def _link_to(self, peer: PeerId) -> OutgoingLink:
        if peer not in self._links:
            target = LinkTarget(peer, self._ring, bool(self.machine.removed))
            self._links[peer] = self._do.open_link(target)
        return self._links[peer]

    def _send(self, now: float, action: Send) -> None:
        try:
            self._link_to(action.peer).send(action)
        except LinkFullError:
            self._break_link(now, action.peer, "slow: too much is queued")

    def _break_link(self, now: float, peer: PeerId, reason: str) -> None:
        self.ring_event(now, self._ring.ring_id, LinkBroken(peer, reason))

    @property
    def _do(self) -> Effects:
        assert self._around is not None, "the round has ended here"
        return self._around[0]

    @property
    def _node(self) -> Observer:
        assert self._around is not None, "the round has ended here"
        return self._around[1]

    @property
    def _ring(self) -> Ring:
        assert self.machine.ring is not None, "there is no ring yet"
        return self.machine.ring
