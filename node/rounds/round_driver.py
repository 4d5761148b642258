"""Pumps one `Round` machine: its actions become streams, threads and gossip; news become events.

The machine decides, this module only does. Everything runs in one nursery that ends with the
round, so nothing of a round outlives it, except the links to whoever may still need finals to
commit: they get `LINGER_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.modes.contribution import Contribution
from gossamer.node.network.transport import StreamClosed, Transport, TransportError
from gossamer.node.peers.gossip import Gossip
from gossamer.node.rounds.ring_link import LinkFailed, Receiver, RingLink
from gossamer.node.rounds.silence import Silence
from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of, short
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.attempt import (
    Action,
    BeginRing,
    Committed,
    Compute,
    Publish,
    Removed,
)
from gossamer.protocol.rounds.inventory import Inventory
from gossamer.protocol.rounds.proposal import members_of
from gossamer.protocol.rounds.ring import Contribute, FinishAverage, Payload, Send
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Commit, Member
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.statements import Ready, Signed, Statement

TICK_SECONDS = 0.1
"""How late the machine may learn that time passed; its own waits are seconds."""

HELLO_SECONDS = 10.0
"""How long a predecessor that began a ring waits for me to follow it."""

LINGER_SECONDS = 10.0
"""After the commit, until all the others have voted for it. Who has not by then does not wait for
the ring any more (`heads.OVERTAKEN_SECONDS`): it fetches the round."""

log = structlog.get_logger("round")


OuterStep: TypeAlias = Callable[
    [Digest, Sequence[Payload], Sequence[int], Sequence[Member], Callable[[], bool]], Digest | None
]
"""(parent, finals of all chunks, mask of each, the members, whether the step is still wanted) ->
state digest, or None for a step that was dropped. Runs in a thread; the state takes one at a time.
"""


def _round_is_over(_ring: Ring) -> Contribution:
    raise AssertionError("a ring began after the end of its round")


class RoundDriver:
    """One peer in one round."""

    def __init__(
        self,
        machine: Round,
        *,
        me: PeerId,
        transport: Transport,
        gossip: Gossip,
        plan: ChunkPlan,
        payloads: Payloads,
        new_contribution: Callable[[Ring], Contribution],
        compute: OuterStep,
        run_in_thread: RunInThread,
        on_offence: Callable[[PeerId, RemoteProtocolError], None],
        on_removed: Callable[[PeerId, str], None],
        expected: Callable[[], Awaited],
        reach: Callable[[PeerId], Awaitable[None]],
        on_transfer: Callable[[int, float], None] = lambda _bytes, _seconds: None,
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.machine = machine
        self._me = me
        self._transport = transport
        self._gossip = gossip
        self._plan = plan
        self._compute_state = compute
        self._run_in_thread = run_in_thread
        self._payloads = payloads
        self._new_contribution = new_contribution
        self._on_offence = on_offence
        self._on_removed = on_removed
        self._expected = expected
        self._reach = reach
        self._on_transfer = on_transfer
        self._on_changed = on_changed
        self._position = 0
        """Mine in the ring that is followed."""
        self._ticked_seconds = 0.0
        self._silence = Silence(transport, ())
        """Of the other members of the ring."""
        self._nursery: trio.Nursery | None = None
        self._link_scopes: list[trio.CancelScope] = []
        self._links: dict[PeerId, RingLink] = {}
        self.contribution: Contribution | None = None
        self.committed: Committed | None = None
        self.is_spoilt = False
        """Whether this peer's own work cannot be encoded, so that it left the ring."""
        self._is_cancelled = False
        self._is_delivered = False
        """Whether nothing more of the round will be queued for others."""
        self.finished = trio.Event()
        """Set when the round is committed here."""
        self._envelope: Signed | None = None
        self._wanted_step: tuple[Digest, int] | None = None
        """Ring and generation of the newest outer step. Threads read it: an older step is dropped,
        also one that would begin later. None once the round is given up."""
        self._num_adding = 0
        """Threads that read this peer's work."""
        self._is_work_closed = False
        self._work_closed = trio.Event()
        """Set when no thread reads this peer's work any more."""
        self.changed = trio.Event()
        """Set, and replaced, whenever the machine may have changed."""

    # Life

    async def run(self) -> None:
        """Drives the machine until the round is committed here, and then by all others.

        `finished` is set at the commit; the rest takes at most `LINGER_SECONDS`.

        Cancellation: every task of the round ends; links are reset.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if self._is_cancelled:
                    nursery.cancel_scope.cancel()
                    return
                for signed, statement in self._gossip.statement_store.statements():
                    self.heard(signed, statement)
                while self.committed is None:
                    self.tick()
                    with trio.move_on_after(TICK_SECONDS):
                        await self.changed.wait()
                self.finished.set()
                nursery.cancel_scope.deadline = trio.current_time() + LINGER_SECONDS
                while not self.machine.is_over:
                    await self.changed.wait()
                self._is_delivered = True
                for peer in sorted(self._links):
                    self._links[peer].finish()
        finally:
            self._nursery = None
            # Links call back to this driver, and it to its turn. Without these cycles a round's
            # vectors go when it is forgotten, and not when a garbage collection comes by.
            self._links = {}
            self._link_scopes = []
            self._new_contribution = _round_is_over
            self._on_changed = lambda: None

    def leave(self) -> None:
        """Says that the ring has to do without me, and ends the round here."""
        if self.is_running:
            self._apply(self.machine.leave(trio.current_time()))
        self.cancel()

    def cancel(self) -> None:
        """The round is not to be waited for any more: everything of it ends."""
        self._is_cancelled = True
        self._wanted_step = None
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def close_work(self) -> None:
        """Returns when no thread reads this peer's work any more, and none will: it may change.

        For when the round is committed here or about to be left: nothing more is added to a ring.
        Waits for the chunks that are being added, some milliseconds each.
        """
        self._is_work_closed = True
        if self._num_adding:
            await self._work_closed.wait()

    @property
    def ring_id(self) -> Digest | None:
        """Of the ring that is or was followed."""
        return None if self.machine.ring is None else self.machine.ring.ring_id

    @property
    def is_running(self) -> bool:
        """Whether the round is on its way to a commit here."""
        return self._is_open and self.committed is None

    @property
    def _is_open(self) -> bool:
        """Whether it is, or others may need something of me for theirs."""
        return not (self._nursery is None or self._is_cancelled or self._is_delivered)

    # Events

    def ready(self, ready: Ready) -> None:
        """My own work is done."""
        log.debug("ready", round=ready.round, tokens=ready.tokens, steps=ready.steps)
        self._apply(self.machine.ready(trio.current_time(), ready))

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A checked statement came by gossip or anti-entropy."""
        if not self._is_open:
            return
        try:
            self._apply(self.machine.statement(trio.current_time(), signed, statement))
        except RemoteProtocolError as error:
            self._on_offence(PeerId(signed.author), error)

    def tick(self) -> None:
        self._apply(self.machine.expect(trio.current_time(), *self._expected()))
        self._watch_silence()

    def disconnected(self, peer: PeerId) -> None:
        """The connection to a peer broke: as successor it has failed."""
        if peer == self.machine.successor:
            self._link_failed(self._ring_id(), peer, "reset")

    def _watch_silence(self) -> None:
        """Gives up successors that are silent."""
        now = trio.current_time()
        step = min(now - self._ticked_seconds, 2 * TICK_SECONDS)
        self._ticked_seconds = now
        self._silence.count(step)
        while self.is_running and (successor := self.machine.successor) is not None:
            if not self._silence.is_over(successor):
                break
            self._link_failed(self._ring_id(), successor, "timeout: silent")

    def commit_received(self, commit: Commit) -> bool:
        """A checked commit record came; says whether it was this round's, as computed here."""
        self._apply(self.machine.commit_received(commit))
        return self.committed is not None

    async def greeted(self, roster: Signed, statement: Statement) -> Receiver | None:
        """A predecessor began to send for a ring; None refuses it.

        Waits up to `HELLO_SECONDS` until I follow that ring.
        """
        self.heard(roster, statement)
        ring_id = digest_of(b"gossamer ring:", roster.author.encode(), roster.payload)
        with trio.move_on_after(HELLO_SECONDS):
            while self.is_running:
                if self.machine.ring is not None and self.machine.ring.ring_id == ring_id:
                    return _RingReceiver(self, ring_id)
                await self.changed.wait()
        return None

    async def take(
        self,
        ring_id: Digest,
        sender: PeerId,
        chunk: int,
        mask: int,
        finisher: int | None,
        payload: Payload,
    ) -> None:
        """A token or final of a ring came."""
        if not self._still_needs(ring_id):
            return
        self._check_length(chunk, mask, payload)
        digest = None
        if finisher is not None:
            digest = await self._run_in_thread(lambda: self._look_at(chunk, mask, payload))
        elif mask >> self._position & 1:
            # It goes on without an addition that would look at it, so it is looked at here.
            await self._run_in_thread(lambda: self._look_at(chunk, mask, payload))
        if not self._still_needs(ring_id):  # much may have happened meanwhile
            return
        now = trio.current_time()
        if finisher is None or digest is None:
            self._apply(
                self.machine.partial_sum_received(now, ring_id, sender, chunk, mask, payload)
            )
        else:
            self._apply(
                self.machine.average_received(
                    now, ring_id, sender, chunk, mask, finisher, payload, digest
                )
            )

    def _still_needs(self, ring_id: Digest) -> bool:
        """Whether what comes of a ring is of use; not if it comes late: the round is done here."""
        if self.committed is not None:
            return False
        if not self.is_running or self.ring_id != ring_id:
            # Going on to acknowledge would make the sender wait for what never comes.
            raise StreamClosed("another ring is followed here")
        return True

    def _look_at(self, chunk: int, mask: int, payload: Payload) -> Digest:
        """The digest of a payload that can be averaged; MalformedError for another."""
        self._payloads.check(payload, self._plan.elements_of(chunk), mask)
        return digest_of(payload)

    # Actions

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            self._do(action)
        if self.machine.successor is not None and self._nursery is not None:
            self._link_to(self.machine.successor)
        self.changed.set()
        self.changed = trio.Event()
        self._on_changed()

    def _do(self, action: Action) -> None:
        assert self._nursery is not None
        match action:
            case Publish():
                self._gossip.publish(action.signed, action.statement)
            case BeginRing():
                self._begin(action)
            case Contribute():
                self._nursery.start_soon(self._contribute, self._ring_id(), action)
            case FinishAverage():
                self._nursery.start_soon(self._finish_average, self._ring_id(), action)
            case Send():
                self._send(action)
            case Compute():
                self._wanted_step = self._ring_id(), action.generation
                self._nursery.start_soon(self._compute, self._ring_id(), action)
            case Removed():
                log.warning("a member is out of the ring", peer=action.peer, reason=action.reason)
                self._on_removed(action.peer, action.reason)
            case Committed():
                self.committed, self._wanted_step = action, None

    def _ring_id(self) -> Digest:
        assert self.machine.ring is not None
        return self.machine.ring.ring_id

    def _begin(self, action: BeginRing) -> None:
        for scope in self._link_scopes:
            scope.cancel()
        self._link_scopes = []
        self._links = {}
        self._wanted_step = None
        self._envelope = action.envelope
        self._position = action.ring.members.index(self._me)
        others = [peer for peer in action.ring.members if peer != self._me]
        self._silence = Silence(self._transport, others)
        self.contribution = self._new_contribution(action.ring)
        log.debug(
            "ring",
            round=self.machine.number,
            ring=short(action.ring.ring_id),
            members=len(action.ring.members),
            attempt=action.ring.roster.attempt,
        )

    def _link_to(self, peer: PeerId) -> RingLink:
        if peer not in self._links:
            assert self._nursery is not None
            assert self.machine.ring is not None
            assert self._envelope is not None
            num_chunks = self._plan.num_chunks
            ring_id = self._ring_id()
            link = RingLink(
                self._transport,
                peer,
                self._envelope,
                num_chunks=num_chunks,
                num_members=len(self.machine.ring.members),
                # A chunk is sent to one member at most as token, as final, and once more of each
                # when a ring changes or votes differ.
                outbox_max=4 * num_chunks,
                # In a whole ring nobody holds anything before its predecessor sent it.
                waits_for_inventory=bool(self.machine.removed),
                on_transfer=self._on_transfer,
                on_measured=lambda *measured: self._measured(ring_id, peer, *measured),
            )
            self._links[peer] = link
            self._nursery.start_soon(self._run_link, self._ring_id(), peer, link)
        return self._links[peer]

    def _send(self, action: Send) -> None:
        try:
            self._link_to(action.peer).send(action)
        except trio.WouldBlock:
            self._link_failed(self._ring_id(), action.peer, "slow: too much is queued")

    async def _run_link(self, ring_id: Digest, peer: PeerId, link: RingLink) -> None:
        with trio.CancelScope() as scope:
            self._link_scopes.append(scope)
            try:
                await self._reach(peer)
                await link.run()
            except TransportError as error:
                self._link_failed(ring_id, peer, f"reset: {error}")
            except LinkFailed as error:
                self._link_failed(ring_id, peer, str(error))

    def _link_failed(self, ring_id: Digest, peer: PeerId, reason: str) -> None:
        if not self._is_open:
            return
        self._apply(self.machine.link_failed(trio.current_time(), ring_id, peer, reason))

    def _measured(
        self,
        ring_id: Digest,
        peer: PeerId,
        acked_bytes: int,
        busy_seconds: float,
        waiting_bytes: int,
    ) -> None:
        if self.is_running:
            now = trio.current_time()
            self._apply(
                self.machine.link_measured(
                    now, ring_id, peer, acked_bytes, busy_seconds, waiting_bytes
                )
            )

    async def _contribute(self, ring_id: Digest, action: Contribute) -> None:
        contribution = self.contribution
        assert contribution is not None
        await contribution.due(action.chunk, is_first=action.payload is None)
        add = contribution.add
        if self._is_work_closed:
            return
        self._num_adding += 1
        try:
            payload = await self._run_in_thread(lambda: add(action.chunk, action.payload))
        except MalformedError as error:  # what came cannot be decoded
            if self._is_cancelled:
                return
            assert action.sender is not None
            self._on_offence(action.sender, error)
            now = trio.current_time()
            self._apply(self.machine.rejected(now, ring_id, action.chunk, action.sender))
            return
        except ValueError as error:
            if self._is_cancelled:
                return
            # The work changed since it was offered: its values were checked then.
            log.error(
                "the own part of a chunk cannot be used; this ring goes on without this node",
                error=str(error),
            )
            self.is_spoilt = True
            self._apply(self.machine.leave(trio.current_time()))
            return
        finally:
            self._num_adding -= 1
            if self._is_work_closed and not self._num_adding:
                self._work_closed.set()
        if self._is_cancelled:  # a thread cannot be: it was waited for
            return
        self._apply(self.machine.contributed(trio.current_time(), ring_id, action.chunk, payload))

    async def _finish_average(self, ring_id: Digest, action: FinishAverage) -> None:
        contribution = self.contribution
        assert contribution is not None

        def finish_average() -> tuple[Payload, Digest]:
            payload = contribution.finish_average(action.chunk, action.payload, action.mask)
            return payload, digest_of(payload)

        try:
            payload, digest = await self._run_in_thread(finish_average)
        except (MalformedError, ValueError) as error:
            log.error(
                "an average cannot be encoded; this ring goes on without us", error=str(error)
            )
            self._apply(self.machine.leave(trio.current_time()))
            return
        if self._is_cancelled:
            return
        self._apply(
            self.machine.average_finished(
                trio.current_time(), ring_id, action.chunk, payload, digest
            )
        )

    async def _compute(self, ring_id: Digest, action: Compute) -> None:
        payloads = [average.payload for average in action.averages]
        masks = [average.mask for average in action.averages]
        ring = self.machine.ring
        assert ring is not None
        contributors = self._payloads.contributors
        members = members_of(ring, list(map(contributors, payloads, masks)))
        compute, parent = self._compute_state, self.machine.head
        step = ring_id, action.generation
        digest = await self._run_in_thread(
            lambda: compute(parent, payloads, masks, members, lambda: self._wanted_step == step)
        )
        if digest is None or self._is_cancelled:
            return
        now = trio.current_time()
        log.debug("state", round=self.machine.number, ring=short(ring_id), state=short(digest))
        self._apply(self.machine.computed(now, ring_id, action.generation, digest))

    def _check_length(self, chunk: int, mask: int, payload: Payload) -> None:
        if not 0 <= chunk < self._plan.num_chunks:
            raise MalformedError(f"chunk {chunk} of {self._plan.num_chunks}")
        if not self._payloads.is_length(len(payload), self._plan.elements_of(chunk), mask):
            raise MalformedError(f"{len(payload)} bytes are no chunk of such members")


class _RingReceiver:
    """What a predecessor in one ring talks to."""

    def __init__(self, driver: RoundDriver, ring_id: Digest) -> None:
        assert driver.machine.ring is not None
        self._driver = driver
        self._ring_id = ring_id
        self.num_members = len(driver.machine.ring.members)

    def inventory(self) -> Inventory:
        """See `Receiver`."""
        inventory = self._driver.machine.inventory(self._ring_id)
        if inventory is None:
            raise StreamClosed("this ring is not followed here any more")
        return inventory

    async def take(
        self, sender: PeerId, chunk: int, mask: int, finisher: int | None, payload: Payload
    ) -> None:
        """See `Receiver`."""
        await self._driver.take(self._ring_id, sender, chunk, mask, finisher, payload)
