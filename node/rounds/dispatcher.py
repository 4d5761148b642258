"""Decides what one peer does with the events of one round, without I/O and without a clock.

    dispatcher = RoundDispatcher(machine, me, payloads, effects, node)
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
from typing import Literal, TypeAlias

from gossamer.node.rounds.decisions import linger_seconds
from gossamer.node.rounds.effects import (
    Effects,
    LinkFullError,
    LinkTarget,
    Observer,
    OuterStepOrder,
    OutgoingLink,
)
from gossamer.protocol.codecs.payloads import Payloads, SumPayloads
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
    Publish,
    Removed,
    Send,
    Unsettled,
)
from gossamer.protocol.rounds.commit import members_of
from gossamer.protocol.rounds.inventory import NO_DIGEST, ArrivedSum, Average, Inventory, Payload
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.rounds.ring_signatures import FoundStep, SignedSteps
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.statements import Ready, Signed, Statement

TICK_SECONDS = 0.1
"""Upper bound on how late the machine learns that time passed; its own waits are seconds."""

HELLO_SECONDS = 10.0
"""Time for which a predecessor that began a ring waits until this peer follows the same ring."""

SILENT_SECONDS = 6.0
"""A connected successor from which nothing at all came for so long has failed: three signs of life
that a living member gives (`transport.RING_PING_SECONDS`), and less than the 12 s after which a
round has to continue."""

ChunkUse: TypeAlias = Literal["wanted", "late", "refused"]
"""The use of a chunk that arrives: it is taken; it is dropped, because the round is committed here;
its stream is refused, because another ring is followed here."""

Phase: TypeAlias = Literal["new", "running", "delivering", "delivered", "closed"]
"""The life of a round here. Once it is delivered, nothing more is queued for others."""


class RoundDispatcher:
    """One peer in one round. Attributes may be read; only this class writes them.

    It has more than 15 public methods: each event of a round is one.
    """

    def __init__(
        self, machine: Round, me: PeerId, payloads: Payloads, effects: Effects, node: Observer
    ) -> None:
        self.machine = machine
        self.committed: Committed | None = None
        self.ends_seconds: float | None = None
        """Local time at which the round ends here, delivered or not; None before the commit."""
        self._me = me
        self._payloads = payloads
        self._around: tuple[Effects, Observer] | None = effects, node
        """What is called here; None once the round has ended."""
        self.phase: Phase = "new"
        self._position = 0
        """This peer's position in the ring that is followed."""
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

    def is_wanted(self, order: OuterStepOrder) -> bool:
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
            self.link_failed(now, self._ring.ring_id, peer, "timeout: silent")

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
            self.link_failed(now, self._ring.ring_id, peer, "reset")

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

    # Events: links

    def link_failed(self, now: float, ring_id: Digest, peer: PeerId, reason: str) -> None:
        if self.is_open:
            self.apply(now, self.machine.link_failed(now, ring_id, peer, reason))

    def link_measured(
        self, now: float, ring_id: Digest, peer: PeerId, measure: LinkMeasure
    ) -> None:
        """See `Round.link_measured`."""
        if self.is_running:
            self.apply(now, self.machine.link_measured(now, ring_id, peer, measure))

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

    def has_to_check(self, mask: int, finisher: int | None) -> bool:
        """Returns whether the content of a payload must be checked before it is taken. An average's
        must be, and so must that of a partial sum that travels on without an addition here that
        would find its faults. Sets always are: an addition does not look at the others' records,
        and what is in an average is taken for good by the member that finishes it."""
        if finisher is not None or not isinstance(self._payloads, SumPayloads):
            return True
        return bool(mask >> self._position & 1)

    def partial_sum_received(
        self, now: float, ring_id: Digest, chunk: int, arrived: ArrivedSum
    ) -> None:
        """A partial sum came that is of use, and is checked if it has to be."""
        self.apply(now, self.machine.partial_sum_received(now, ring_id, chunk, arrived))

    def average_received(
        self, now: float, ring_id: Digest, sender: PeerId, chunk: int, average: Average
    ) -> None:
        """An average came that is of use, and was checked, with its signature."""
        self.apply(now, self.machine.average_received(now, ring_id, sender, chunk, average))

    def steps_signed(self, found: Sequence[FoundStep]) -> None:
        """Parts of shared steps came, and their members' signatures were checked."""
        if self._around is None:  # the round ended here meanwhile
            return
        for proof in self._signed_steps.add(found):
            self._node.contradicted(proof)

    # Events: arithmetic that was started is done

    def contributed(
        self,
        now: float,
        ring_id: Digest,
        chunk: int,
        payload: Payload,
        digest: Digest = NO_DIGEST,
    ) -> None:
        """This peer's part is in a partial sum. `digest`: the sum's, where sums are audited."""
        if self.is_open:
            self.apply(now, self.machine.contributed(now, ring_id, chunk, payload, digest))

    def rejected(
        self, now: float, ring_id: Digest, chunk: int, sender: PeerId, error: RemoteProtocolError
    ) -> None:
        """The partial sum to add to was malformed."""
        if self.is_open:
            self._node.offence(sender, error)
            self.apply(now, self.machine.rejected(now, ring_id, chunk, sender))

    def average_finished(
        self, now: float, ring_id: Digest, chunk: int, payload: Payload, digest: Digest
    ) -> None:
        if self.is_open:
            self.apply(now, self.machine.average_finished(now, ring_id, chunk, payload, digest))

    def cannot_finish(self, now: float) -> None:
        """An average cannot be encoded: the ring continues without this peer."""
        if self.is_open:
            self.apply(now, self.machine.leave(now))

    def computed(self, now: float, order: OuterStepOrder, state_digest: Digest) -> None:
        """An outer step was taken."""
        if self.is_open:
            actions = self.machine.computed(now, order.ring_id, order.generation, state_digest)
            self.apply(now, actions)

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
                self._take_outer_step(action)
            case Removed():
                self._node.removed(action)
            case Contested():
                self._node.contested(action)
            case LeftOut():
                self._node.left_out(action)
            case Unsettled():
                self._node.unsettled(action.organiser)
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
        self._position = action.ring.members.index(self._me)
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
            self.link_failed(now, self._ring.ring_id, action.peer, "slow: too much is queued")

    def _take_outer_step(self, action: Compute) -> None:
        ring, contributors = self._ring, self._payloads.contributors
        masks = [contributors(average.payload, average.mask) for average in action.averages]
        order = OuterStepOrder(
            ring.ring_id,
            action.generation,
            self.machine.head,
            action.averages,
            members_of(ring, masks),
        )
        self._wanted_step = order.ring_id, order.generation
        self._do.take_outer_step(order)

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
