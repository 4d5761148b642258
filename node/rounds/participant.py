"""The life of a node in its run: get the state, then train, average and commit, round after round.

    joining -> syncing -> training -> averaging -> training ...
                  ^          |            |
                  +----------+------------+   a heavier head was seen: take it over
    paused: no trainer, but heads are followed and blocks served; failed: likewise, not wanted.
    leaving: one last round, then out.

One task runs this loop (`run`); everything that arrives from outside only leaves a note and rings.
"""

from __future__ import annotations

import numpy as np
import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.modes.shared_steps import StepTiming
from gossamer.node.network.identity import verify
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.chain_sync import BehindError
from gossamer.node.rounds.context import NodeContext, Orders, Progress
from gossamer.node.rounds.head_prover import HeadProver
from gossamer.node.rounds.heads import Heads
from gossamer.node.rounds.local_training import LocalTraining
from gossamer.node.rounds.ring_link import CommittedRing, Receiver
from gossamer.node.rounds.round_driver import HELLO_SECONDS, RoundDriver
from gossamer.node.rounds.settlement import Settlement
from gossamer.node.rounds.shared_turn import SharedTurn
from gossamer.node.rounds.turn import POLL_SECONDS, Turn
from gossamer.node.storage.committed import Replayed
from gossamer.node.storage.restoring import restore
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.rounds.round_rules import RoundHints
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.wire.statements import (
    Accusation,
    Phase,
    Roster,
    Signed,
    Statement,
    open_signed,
)
from gossamer.trainer.ipc.messages import Shared, Step

FIRST_CONTACT_SECONDS = 3.0
"""A node with a seed waits this long for the swarm's announcements before it starts alone."""

RETRY_SECONDS = 2.0
"""Between attempts to get the initial state, or to write what the disk did not take."""

log = structlog.get_logger("node")


class LeaveRequested(Exception):
    """The node was asked to leave, at a point where there is nothing to finish."""


class Participant:
    """One node in one run."""

    def __init__(
        self, context: NodeContext, *, has_bootstrap: bool, wait_for_peers: int = 0
    ) -> None:
        """
        Args:
            has_bootstrap: whether there is anybody to hear of before starting alone.
            wait_for_peers: others that have to be ready before the run's first round begins.
        """
        self.context = context
        self.progress = Progress()
        self._has_bootstrap = has_bootstrap
        self._wait_for_peers = wait_for_peers
        self._orders = Orders()
        self._heads = Heads(context)
        self._head_prover = HeadProver(context, self._orders.notify)
        self._settlement = Settlement(context, self.progress)
        self._turn: Turn | None = None
        """The newest one."""
        self._drivers: list[RoundDriver] = []
        """That run: of the newest turn, and of those before while their finals are delivered."""
        self._timing = StepTiming()
        self._has_skipped = False
        """Whether the newest inner step was skipped."""

    @property
    def _driver(self) -> RoundDriver | None:
        """Of the newest turn."""
        return None if self._turn is None else self._turn.driver

    @property
    def ring(self) -> tuple[PeerId, ...]:
        """Who is in the ring that is at work here, in its order."""
        driver = self._driver
        return driver.machine.members_at_work if driver is not None and driver.is_running else ()

    # Orders

    def pause(self) -> None:
        self._orders.pause = True
        self._orders.notify()

    def resume(self) -> None:
        """After a pause, or after a failure of the trainer."""
        self._orders.pause = False
        if self.context.trainer.failure is not None:
            self.context.trainer.resume()
        self._orders.notify()

    def leave(self) -> None:
        """Leave in order: `run` returns when that is done."""
        self._orders.leave = True
        self._orders.notify()

    # Events

    def stepped(self, step: Step) -> None:
        """The trainer did an inner step."""
        self.progress.inner_step += 1
        self.context.work.stepped(step.tokens)
        if not step.skipped:
            self.progress.loss = step.loss
        elif not self._has_skipped:  # of many in a row the first is enough
            log.warning(
                "an inner step is skipped: its loss, gradient or momentum is out of range; the "
                "memory of the training device may be faulty, or the learning rate too high",
                round=step.round,
                step=step.step,
            )
        self._has_skipped = step.skipped

    def shared(self, shared: Shared) -> None:
        """The trainer has a part for a shared step."""
        if self._turn is not None:
            self._turn.shared(shared)

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A statement about some round."""
        driver = self._driver
        # Who accuses me in a ring that is committed here says nothing about the next one.
        if driver is not None and driver.committed is None and isinstance(statement, Accusation):
            ring, author = driver.machine.ring, PeerId(signed.author)
            if (
                statement.accused == self.context.me
                and ring is not None
                and ring.ring_id == statement.ring_id
                and author in ring.members
                and not {author, self.context.me} & driver.machine.removed
            ):
                self.context.swarm.accused_by(author)
        for each in self._drivers.copy():
            each.heard(signed, statement)

    def heard_commit(self, commit: Commit, header: Header) -> None:
        """A checked commit record."""
        chain = self.context.committed.chain
        driver = self._driver
        if driver is not None and driver.is_running and driver.commit_received(commit):
            return
        parent = Digest(header.parent)
        if parent in chain and chain.entry(parent).is_parent_of(header):
            chain.add(commit, header)
        self._orders.notify()

    def disconnected(self, peer: PeerId) -> None:
        for driver in self._drivers.copy():
            driver.disconnected(peer)

    def members_changed(self) -> None:
        if self._driver is not None and self._driver.is_running:
            self._driver.tick()
        self._head_prover.wake()
        self._orders.notify()

    async def replayed(self, replayed: Replayed) -> None:
        """A committed round was taken over from its blocks."""
        self._settlement.note(replayed.header, replayed.update.averages)

    async def greeted(self, peer: PeerId, envelope: Signed) -> Receiver | None:
        """A ring member opened its stream to us."""
        statement = open_signed(envelope, self.context.manifest.run_id, verify)
        if not isinstance(statement, Roster):
            raise MalformedError("ring stream without a roster")
        if peer not in {member.author for member in statement.members}:
            raise MalformedError("ring stream of somebody who is not in that ring")
        if not self.context.swarm.admits_ring(statement):
            return None
        with trio.move_on_after(HELLO_SECONDS):
            while True:
                driver = self._driver
                if driver is not None and driver.is_running:
                    if driver.machine.head == statement.head:
                        return await driver.greeted(envelope, statement)
                    if statement.round < driver.machine.number:
                        # Greeted all the same, so that nobody thinks we fail.
                        plan = self.context.committed.sync_sets.of_round(statement.round).plan
                        return CommittedRing(plan.num_chunks, len(statement.members))
                await self._orders.wait()
        return None

    # The loop

    async def run(self) -> None:
        """Takes part in the run until asked to leave. Then returns, with everything on disk."""
        async with trio.open_nursery() as rounds:
            rounds.start_soon(self._head_prover.run)
            try:
                await self._get_first_state()
                await self._follow_until_trainer_is_up()
                while self._is_too_early():
                    self._check_leave()
                    self._set_phase("training")
                    await self._orders.wait(POLL_SECONDS)
                    await self._catch_up()
                training: LocalTraining | None = None
                while not self._orders.leave:
                    if training is not None and not self._goes_straight_on():
                        await self._end(training)
                        training = None
                    if self._orders.pause:
                        await self._paused()
                        continue
                    if not self.context.trainer.is_up:
                        await self._follow_until_trainer_is_up()
                        continue
                    if not await self._catch_up():
                        await self._wait_for_disk()
                        continue
                    # Only the answer: the earlier round's vectors are to go.
                    if self._driver is None:
                        hints = RoundHints(came_late=self.context.committed.entry.round > 0)
                    else:
                        hints = self._driver.machine.hints
                    self._turn = turn = self._new_turn(rounds, training, hints)
                    rounds.start_soon(self._drive, turn.driver)
                    self._orders.notify()
                    training = await turn.run()
                if training is not None:
                    await self._end(training)
            except LeaveRequested:
                pass
            await self._leave()
            rounds.cancel_scope.cancel()

    async def _drive(self, driver: RoundDriver) -> None:
        """Longer than its turn lasts, if others still wait for finals then."""
        self._drivers.append(driver)
        try:
            await driver.run()
        finally:
            self._drivers.remove(driver)

    def _new_turn(
        self, rounds: trio.Nursery, training: LocalTraining | None, hints: RoundHints
    ) -> Turn:
        arguments = (
            self.context,
            self._heads,
            self._settlement,
            self._orders,
            self.progress,
            self._set_phase,
        )
        if self.context.manifest.sync == "distro":
            return SharedTurn(*arguments, timing=self._timing, spawn=rounds.start_soon, hints=hints)
        return Turn(*arguments, spawn=rounds.start_soon, training=training, hints=hints)

    async def _end(self, training: LocalTraining) -> None:
        """The next round does not begin here now: what was done ahead for it is carried."""
        entry = self.context.committed.entry
        await training.end(entry.head, entry.round + 1)

    def _goes_straight_on(self) -> bool:
        """Whether the next round can begin on what the last one led to."""
        return (
            not self._orders.pause
            and not self._orders.leave
            and self.context.trainer.is_up
            and self._heads.better() is None
        )

    def _set_phase(self, phase: Phase) -> None:
        if phase != "paused":
            self.progress.paused_reason = None
        if phase != self.progress.phase:
            self.progress.phase = phase
            self.context.metrics.set_phase(phase)
            # A phase that stays needs no announcement besides the regular ones. A loop that sets it
            # at every wake would answer each announcement heard with one of its own.
            self.context.swarm.announce()
        self._orders.notify()

    async def _get_first_state(self) -> None:
        context = self.context
        self._set_phase("joining")
        await context.run_in_thread(context.work.load)
        if await context.run_in_thread(lambda: restore(context.committed)):
            await self._settlement.settle()
            entry = context.committed.entry
            log.info("state found on disk", round=entry.round, head=short(entry.head))
        self._set_phase("syncing")
        if self._has_bootstrap:
            # In a swarm that has rounds behind it, nobody should begin again with the first one.
            with trio.move_on_after(FIRST_CONTACT_SECONDS):
                while not context.swarm.living():
                    await self._orders.wait()
        while not context.committed.is_loaded:
            self._check_leave()
            if self._heads.better() is not None:
                if not await self._catch_up():
                    await self._wait_for_disk()
                continue
            if self._head_prover.has_open_questions:
                await self._orders.wait(POLL_SECONDS)
                continue
            await self._begin_at_genesis()
        await self._settlement.settle()
        await self._hear_claims()
        context.feed.carry(context.work.account.state.spans)

    async def _hear_claims(self) -> None:
        """Whoever claims data before it has heard of everybody's claims takes what is others'."""
        for peer in sorted(self.context.transport.peers()):
            with trio.move_on_after(FIRST_CONTACT_SECONDS):
                try:
                    await self.context.swarm.gossip.reconcile(peer)
                    return  # one board has what all have said
                except (TransportError, RemoteProtocolError) as error:
                    log.debug("exchange failed", peer=peer, error=str(error))

    async def _begin_at_genesis(self) -> None:
        context = self.context
        if not await context.trainer.genesis():
            await self._follow_until_trainer_is_up()
            return
        initial = np.array(context.trainer.base)
        try:
            await context.run_in_thread(lambda: context.committed.set_genesis(initial))
            return
        except ForgedError:
            log.info("this machine draws other initial weights; they are fetched from peers")
        try:
            await context.chain_sync.follow(context.committed.chain.genesis, context.swarm.sources)
        except (BehindError, DiskError) as error:
            log.warning("the initial state cannot be had yet", error=str(error))
            await self._orders.wait(RETRY_SECONDS)

    async def _catch_up(self) -> bool:
        """Takes over the heaviest head, if there is one that wins over mine.

        False where the own disk does not take it: rounds on another head would be for nobody.
        """
        while (better := self._heads.better()) is not None:
            self._check_leave()
            if self.progress.phase not in ("paused", "failed"):
                waited_for = self._heads.is_near(better.head) and self.context.trainer.is_up
                self._set_phase("training" if waited_for else "syncing")
            try:
                if await self._heads.try_take_over(better.head):
                    self.context.health.wrote("blocks")
            except DiskError as error:
                self.context.health.failed("blocks", error)
                return False
            finally:
                # Also where it did not come all the way: the head may have moved.
                await self._settlement.settle()
            await self._settlement.drop_if_stale()
            await self._settlement.save()
        return True

    async def _wait_for_disk(self) -> None:
        """The swarm cannot be followed; what is here is served."""
        self.progress.paused_reason = "disk"
        self._set_phase("paused")
        await trio.sleep(RETRY_SECONDS)

    def _is_too_early(self) -> bool:
        """Whether the run's first round is before us and others are still waited for."""
        phases = [announce.phase for announce in self.context.swarm.living().values()]
        ready = phases.count("training") + phases.count("averaging")
        return self.context.committed.entry.round == 0 and ready < self._wait_for_peers

    def _check_leave(self) -> None:
        if self._orders.leave:
            raise LeaveRequested

    async def _follow_until_trainer_is_up(self) -> None:
        """Nobody waits for a node whose trainer starts, or has failed: it only follows."""
        trainer, progress = self.context.trainer, self.progress
        while not trainer.is_up and not self._orders.pause:
            self._check_leave()
            if trainer.failure is not None and progress.phase != "failed":
                progress.problem = trainer.failure
                log.error("failed", problem=trainer.failure)
                self._set_phase("failed")
                await self._settlement.save(now=True)
            elif trainer.failure is None and progress.phase != "syncing":
                progress.problem = None
                self._set_phase("syncing")
            await self._catch_up()
            await self._orders.wait(POLL_SECONDS)
        if trainer.failure is None:
            progress.problem = None

    async def _paused(self) -> None:
        """The device is free; heads are followed, blocks are served."""
        log.info("paused; the device is free")
        await self._settlement.save(now=True)
        await self.context.trainer.suspend()
        self.progress.paused_reason = "user"
        self._set_phase("paused")
        while self._orders.pause and not self._orders.leave:
            await self._catch_up()
            await self._orders.wait(POLL_SECONDS)
        log.info("resumed")
        self.context.trainer.resume()
        self.context.feed.requeue()

    async def _leave(self) -> None:
        """Everything to disk, and good-bye."""
        committed = self.context.committed
        self._set_phase("leaving")
        await self._settlement.save(now=True)
        if committed.is_loaded:
            try:
                await self.context.run_in_thread(committed.checkpoint)
            except DiskError as error:
                log.error("the last state was not written as a checkpoint", problem=str(error))
        self.context.swarm.announce()
        await trio.sleep(POLL_SECONDS)  # the good-bye is on its way out
        log.info("left in order", round=committed.entry.round)
