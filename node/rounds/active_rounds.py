"""The rounds that are under way at this node, and what arrives for them from outside.

Usually that is one round. While the averages of a committed round are still delivered to others,
the next round runs beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from gossamer.node.base.orders import Orders
from gossamer.node.heads.branches import RingAtWork
from gossamer.node.heads.heads import Heads
from gossamer.node.heads.prover import HeadProver
from gossamer.node.network.identity import verify
from gossamer.node.rounds.dispatcher import HELLO_SECONDS
from gossamer.node.rounds.opening import NodeContext, OpenRound
from gossamer.node.rounds.ring_chunks import CommittedRing, Receiver
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.roster import RoundHints
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.wire.envelopes import open_signed, ring_id_of
from gossamer.protocol.wire.statements import (
    Accusation,
    Extension,
    MoreData,
    Rollback,
    Roster,
    Signed,
    Statement,
    Vote,
)
from gossamer.trainer.ipc.messages import Shared

if TYPE_CHECKING:
    from trio_typing import TaskStatus

SERVED_RINGS_MAX = 2
"""Committed rings whose members this node still serves when it begins another round. Each of them
keeps a stream of each neighbour and the averages of its round. A member that votes for another
header, or for none, makes each ring last for `decisions.LINGER_SECONDS`. With short rounds there
were more of them than a peer may have streams (`transport.STREAMS_PER_PEER_MAX`), and neighbours
took each other for dead."""


class ActiveRounds:
    """Hands events on to the rounds that they concern (a `SwarmListener`)."""

    def __init__(
        self,
        context: NodeContext,
        heads: Heads,
        head_prover: HeadProver,
        orders: Orders,
    ) -> None:
        self._run_id = context.manifest.run_id
        self._committed = context.committed
        self._swarm = context.swarm
        self._heads, self._rounds = heads, context.rounds
        self._head_prover = head_prover
        self._rollbacks = context.rollbacks
        self._extensions = context.extensions
        self._added_data = context.added_data
        self._orders = orders
        self._newest: OpenRound | None = None
        self._drivers: list[RoundDriver] = []
        """Drivers that run: the newest round's, and earlier ones that still deliver averages."""

    # The rounds

    def begin(self, opened: OpenRound) -> None:
        """Makes this the newest round from now on."""
        self._newest = opened
        self._orders.notify()

    async def drive(
        self, driver: RoundDriver, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs a driver. It may outlast its turn: other peers may still need averages then.

        Args:
            task_status: is started when the round has begun.
        """
        committed = [each for each in self._drivers if each.committed is not None]
        for each in committed[:-SERVED_RINGS_MAX]:
            each.cancel()
        self._drivers.append(driver)
        try:
            await driver.run(task_status)
        finally:
            self._drivers.remove(driver)

    @property
    def is_delivering(self) -> bool:
        """Returns whether a ring that this node takes part in still has a member to serve."""
        return bool(self._drivers)

    @property
    def is_delivering_newest(self) -> bool:
        """Returns whether the newest round is committed here and still has a member to serve."""
        driver = None if self._newest is None else self._newest.driver
        return driver is not None and driver.committed is not None and driver in self._drivers

    @property
    def hints(self) -> RoundHints | None:
        """Returns the hints of the newest round; None before the first one."""
        return None if self._newest is None else self._newest.driver.machine.hints

    @property
    def ring(self) -> tuple[PeerId, ...]:
        """Members of the ring that is at work at this node, in ring order."""
        driver = self._running
        return () if driver is None else driver.machine.members_at_work

    @property
    def finishing_ring(self) -> RingAtWork | None:
        """The ring of the newest round, while this node passes its chunks on or after it has all
        averages; None otherwise."""
        driver = None if self._newest is None else self._newest.driver
        if driver is None:
            return None
        passes_on = driver.is_running and driver.machine.successor is not None
        return driver.ring_at_work if passes_on or driver.committed is not None else None

    @property
    def _running(self) -> RoundDriver | None:
        """The newest round's driver, while it is on its way to a commit."""
        driver = None if self._newest is None else self._newest.driver
        return driver if driver is not None and driver.is_running else None

    # Events

    def offered(self, shared: Shared) -> None:
        """The trainer has a part for a shared step."""
        if self._newest is not None:
            self._newest.work.offered(shared)

    def heard(self, signed: Signed, statement: Statement) -> None:
        """See `SwarmListener`."""
        if isinstance(statement, Rollback):
            self._rollbacks.heard(signed, statement)
            self._orders.notify()
            return
        if isinstance(statement, Extension):
            self._extensions.heard(signed, statement)
            self._orders.notify()
            return
        if isinstance(statement, MoreData):
            self._added_data.heard(signed, statement)
            return
        if isinstance(statement, Accusation):
            self._note_accuser(PeerId(signed.author), statement)
        if isinstance(statement, Vote):
            self._rounds.heard_vote(signed, statement)  # its round may be committed here already
        for each in self._drivers.copy():
            each.heard(signed, statement)

    def _note_accuser(self, author: PeerId, accusation: Accusation) -> None:
        """An accusation against this node counts while the accused ring is not committed here: it
        says nothing about the next ring."""
        driver, me = None if self._newest is None else self._newest.driver, self._swarm.me
        if driver is None or driver.committed is not None or accusation.accused != me:
            return
        ring = driver.machine.ring
        if (
            ring is not None
            and ring.ring_id == accusation.ring_id
            and author in ring.members
            and not {author, me} & driver.machine.removed
        ):
            self._swarm.admission.partners.accused_by(author)

    def heard_commit(self, commit: Commit, header: Header) -> None:
        """See `SwarmListener`."""
        driver = self._running
        if driver is not None and driver.commit_received(commit):
            return
        chain, parent = self._committed.chain, Digest(header.parent)
        bringer = PeerId(min((vote.author for vote in commit.votes), default=""))
        if (
            chain.may_follow(parent)
            and chain.entry(parent).is_parent_of(header)
            and self._heads.side_records.admits(bringer, commit, header)
        ):
            chain.add(commit, header)
        self._orders.notify()

    def disconnected(self, peer: PeerId) -> None:
        """See `SwarmListener`."""
        for driver in self._drivers.copy():
            driver.disconnected(peer)

    def members_changed(self) -> None:
        """See `SwarmListener`."""
        driver = self._running
        if driver is not None:
            driver.tick()
        self._head_prover.wake()
        self._orders.notify()

    async def greeted(self, peer: PeerId, envelope: Signed) -> Receiver | None:
        """A ring member opened its stream to this node.

        Returns:
            The receiver of its chunks; None refuses the ring.

        Raises:
            RemoteProtocolError: the peer may not open such a stream.
        """
        statement = open_signed(envelope, self._run_id, verify)
        if not isinstance(statement, Roster):
            raise MalformedError("ring stream without a roster")
        if peer not in {member.author for member in statement.members}:
            raise MalformedError("ring stream of a peer that is not in that ring")
        # Conduct counts for the next ring. A ring that is at work here has gained no member since.
        running, admission = self._running, self._swarm.admission
        is_at_work = running is not None and running.dispatcher.ring_id == ring_id_of(envelope)
        organiser = PeerId(envelope.author)
        if not is_at_work and not admission.admits_ring(organiser, statement, follower=peer):
            return None
        with trio.move_on_after(HELLO_SECONDS):
            while True:
                driver = self._running
                if driver is None:
                    is_over = self._committed.is_finished
                elif driver.machine.head == statement.head:
                    return await driver.greeted(envelope, statement)
                else:
                    is_over = statement.round < driver.machine.number
                if is_over:
                    # The members of a ring that this node left out would wait for its averages.
                    if self._committed.has_other_ring(statement.round, ring_id_of(envelope)):
                        return None
                    # An accepted stream: a refused one would look like a failure of this node.
                    plan = self._committed.sync_sets.of_round(statement.round).plan
                    return CommittedRing(plan.num_chunks, len(statement.members))
                await self._orders.wait()
        return None
