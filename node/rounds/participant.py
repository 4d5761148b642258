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

from gossamer.node.network.identity import verify
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.chain_sync import BehindError
from gossamer.node.rounds.heads import Heads
from gossamer.node.rounds.local_round import LocalRound
from gossamer.node.rounds.parts import Orders, Parts, Progress
from gossamer.node.rounds.ring_link import CommittedRing, Receiver
from gossamer.node.rounds.round_driver import HELLO_SECONDS, RoundDriver
from gossamer.node.rounds.scout import Scout
from gossamer.node.rounds.shared_round import StepPace
from gossamer.node.rounds.shared_turn import SharedTurn
from gossamer.node.rounds.turn import POLL_SECONDS, Turn
from gossamer.node.rounds.upkeep import Upkeep
from gossamer.node.storage.committed import Replayed
from gossamer.node.storage.disk import DiskError
from gossamer.node.storage.restoring import restore
from gossamer.protocol.chain import Commit, Header
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.messages import Phase, Roster, Signed, Statement, Suspect, open_signed
from gossamer.protocol.rounds.round_rules import Lessons
from gossamer.trainer.messages import Shared, Step

FIRST_CONTACT_SECONDS = 3.0
"""A node with a seed waits this long for the swarm's announcements before it starts alone."""

RETRY_SECONDS = 2.0
"""Between attempts to get the initial state, or to write what the disk did not take."""

log = structlog.get_logger("node")


class LeaveRequested(Exception):
    """The node was asked to leave, at a point where there is nothing to finish."""


class Participant:
    """One node in one run."""

    def __init__(self, parts: Parts, *, has_bootstrap: bool, wait_for_peers: int = 0) -> None:
        """
        Args:
            has_bootstrap: whether there is anybody to hear of before starting alone.
            wait_for_peers: others that have to be ready before the run's first round begins.
        """
        self.parts = parts
        self.progress = Progress()
        self._has_bootstrap = has_bootstrap
        self._wait_for_peers = wait_for_peers
        self._orders = Orders()
        self._heads = Heads(parts)
        self._scout = Scout(parts, self._orders.ring)
        self._upkeep = Upkeep(parts, self.progress)
        self._turn: Turn | None = None
        """The newest one."""
        self._drivers: list[RoundDriver] = []
        """That run: of the newest turn, and of those before while their finals are delivered."""
        self._pace = StepPace()

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
        self._orders.ring()

    def resume(self) -> None:
        """After a pause, or after a failure of the trainer."""
        self._orders.pause = False
        if self.parts.trainer.failure is not None:
            self.parts.trainer.resume()
        self._orders.ring()

    def leave(self) -> None:
        """Leave in order: `run` returns when that is done."""
        self._orders.leave = True
        self._orders.ring()

    # Events

    def stepped(self, step: Step) -> None:
        """The trainer did an inner step."""
        self.progress.inner_step += 1
        self.parts.work.stepped(step.tokens)
        if not step.skipped:
            self.progress.loss = step.loss

    def shared(self, shared: Shared) -> None:
        """The trainer has a part for a shared step."""
        if self._turn is not None:
            self._turn.shared(shared)

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A statement about some round."""
        driver = self._driver
        # Who accuses me in a ring that is committed here says nothing about the next one.
        if driver is not None and driver.committed is None and isinstance(statement, Suspect):
            ring, author = driver.machine.ring, PeerId(signed.author)
            if (
                statement.accused == self.parts.me
                and ring is not None
                and ring.ring_id == statement.ring_id
                and author in ring.members
                and not {author, self.parts.me} & driver.machine.removed
            ):
                self.parts.swarm.accused_by(author)
        for each in self._drivers.copy():
            each.heard(signed, statement)

    def heard_commit(self, commit: Commit, header: Header) -> None:
        """A checked commit record."""
        chain = self.parts.committed.chain
        driver = self._driver
        if driver is not None and driver.is_running and driver.commit_received(commit):
            return
        parent = Digest(header.parent)
        if parent in chain and chain.entry(parent).is_parent_of(header):
            chain.add(commit, header)
        self._orders.ring()

    def disconnected(self, peer: PeerId) -> None:
        for driver in self._drivers.copy():
            driver.disconnected(peer)

    def members_changed(self) -> None:
        if self._driver is not None and self._driver.is_running:
            self._driver.tick()
        self._scout.wake()
        self._orders.ring()

    async def replayed(self, replayed: Replayed) -> None:
        """A committed round was taken over from its blocks."""
        self._upkeep.note(replayed.header, replayed.update.finals)

    async def greeted(self, peer: PeerId, envelope: Signed) -> Receiver | None:
        """A ring member opened its stream to us."""
        statement = open_signed(envelope, self.parts.manifest.run_id, verify)
        if not isinstance(statement, Roster):
            raise MalformedError("ring stream without a roster")
        if peer not in {member.author for member in statement.members}:
            raise MalformedError("ring stream of somebody who is not in that ring")
        if not self.parts.swarm.admits_ring(statement):
            return None
        with trio.move_on_after(HELLO_SECONDS):
            while True:
                driver = self._driver
                if driver is not None and driver.is_running:
                    if driver.machine.head == statement.head:
                        return await driver.greeted(envelope, statement)
                    if statement.round < driver.machine.number:
                        # Greeted all the same, so that nobody thinks we fail.
                        plan = self.parts.committed.exchanges.of_round(statement.round).plan
                        return CommittedRing(plan.num_chunks, len(statement.members))
                await self._orders.wait()
        return None

    # The loop

    async def run(self) -> None:
        """Takes part in the run until asked to leave. Then returns, with everything on disk."""
        async with trio.open_nursery() as rounds:
            rounds.start_soon(self._scout.run)
            try:
                await self._get_first_state()
                await self._follow_until_trainer_is_up()
                while self._is_too_early():
                    self._check_leave()
                    self._set_phase("training")
                    await self._orders.wait(POLL_SECONDS)
                    await self._catch_up()
                training: LocalRound | None = None
                while not self._orders.leave:
                    if training is not None and not self._goes_straight_on():
                        await self._end(training)
                        training = None
                    if self._orders.pause:
                        await self._paused()
                        continue
                    if not self.parts.trainer.is_up:
                        await self._follow_until_trainer_is_up()
                        continue
                    if not await self._catch_up():
                        await self._wait_for_disk()
                        continue
                    # Only the answer: the earlier round's vectors are to go.
                    if self._driver is None:
                        lessons = Lessons(came_late=self.parts.committed.entry.round > 0)
                    else:
                        lessons = self._driver.machine.lessons
                    self._turn = turn = self._new_turn(rounds, training, lessons)
                    rounds.start_soon(self._drive, turn.driver)
                    self._orders.ring()
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
        self, rounds: trio.Nursery, training: LocalRound | None, lessons: Lessons
    ) -> Turn:
        arguments = (
            self.parts,
            self._heads,
            self._upkeep,
            self._orders,
            self.progress,
            self._set_phase,
        )
        if self.parts.manifest.sync == "distro":
            return SharedTurn(*arguments, pace=self._pace, spawn=rounds.start_soon, lessons=lessons)
        return Turn(*arguments, spawn=rounds.start_soon, training=training, lessons=lessons)

    async def _end(self, training: LocalRound) -> None:
        """The next round does not begin here now: what was done ahead for it is carried."""
        entry = self.parts.committed.entry
        await training.end(entry.head, entry.round + 1)

    def _goes_straight_on(self) -> bool:
        """Whether the next round can begin on what the last one led to."""
        return (
            not self._orders.pause
            and not self._orders.leave
            and self.parts.trainer.is_up
            and self._heads.better() is None
        )

    def _set_phase(self, phase: Phase) -> None:
        if phase != "paused":
            self.progress.paused_reason = None
        if phase != self.progress.phase:
            self.progress.phase = phase
            self.parts.metrics.set_phase(phase)
        self.parts.swarm.announce()
        self._orders.ring()

    async def _get_first_state(self) -> None:
        parts = self.parts
        self._set_phase("joining")
        await parts.run_in_thread(parts.work.load)
        if await parts.run_in_thread(lambda: restore(parts.committed)):
            await self._upkeep.settle()
            entry = parts.committed.entry
            log.info("state found on disk", round=entry.round, head=short(entry.head))
        self._set_phase("syncing")
        if self._has_bootstrap:
            # In a swarm that has rounds behind it, nobody should begin again with the first one.
            with trio.move_on_after(FIRST_CONTACT_SECONDS):
                while not parts.swarm.living():
                    await self._orders.wait()
        while not parts.committed.is_loaded:
            self._check_leave()
            if self._heads.better() is not None:
                if not await self._catch_up():
                    await self._wait_for_disk()
                continue
            if self._scout.has_open_questions:
                await self._orders.wait(POLL_SECONDS)
                continue
            await self._begin_at_genesis()
        await self._upkeep.settle()
        await self._hear_claims()
        parts.feed.carry(parts.work.account.state.spans)

    async def _hear_claims(self) -> None:
        """Whoever claims data before it has heard of everybody's claims takes what is others'."""
        for peer in sorted(self.parts.transport.peers()):
            with trio.move_on_after(FIRST_CONTACT_SECONDS):
                try:
                    await self.parts.swarm.gossip.exchange(peer)
                    return  # one board has what all have said
                except (TransportError, RemoteProtocolError) as error:
                    log.debug("exchange failed", peer=peer, error=str(error))

    async def _begin_at_genesis(self) -> None:
        parts = self.parts
        if not await parts.trainer.genesis():
            await self._follow_until_trainer_is_up()
            return
        initial = np.array(parts.trainer.base)
        try:
            await parts.run_in_thread(lambda: parts.committed.set_genesis(initial))
            return
        except ForgedError:
            log.info("this machine draws other initial weights; they are fetched from peers")
        try:
            await parts.chain_sync.follow(parts.committed.chain.genesis, parts.swarm.sources)
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
                waited_for = self._heads.is_near(better.head) and self.parts.trainer.is_up
                self._set_phase("training" if waited_for else "syncing")
            try:
                if await self._heads.try_take_over(better.head):
                    self.parts.health.wrote("blocks")
            except DiskError as error:
                self.parts.health.failed("blocks", error)
                return False
            finally:
                # Also where it did not come all the way: the head may have moved.
                await self._upkeep.settle()
            await self._upkeep.drop_if_stale()
            await self._upkeep.save()
        return True

    async def _wait_for_disk(self) -> None:
        """The swarm cannot be followed; what is here is served."""
        self.progress.paused_reason = "disk"
        self._set_phase("paused")
        await trio.sleep(RETRY_SECONDS)

    def _is_too_early(self) -> bool:
        """Whether the run's first round is before us and others are still waited for."""
        phases = [announce.phase for announce in self.parts.swarm.living().values()]
        ready = phases.count("training") + phases.count("averaging")
        return self.parts.committed.entry.round == 0 and ready < self._wait_for_peers

    def _check_leave(self) -> None:
        if self._orders.leave:
            raise LeaveRequested

    async def _follow_until_trainer_is_up(self) -> None:
        """Nobody waits for a node whose trainer starts, or has failed: it only follows."""
        trainer, progress = self.parts.trainer, self.progress
        while not trainer.is_up and not self._orders.pause:
            self._check_leave()
            if trainer.failure is not None and progress.phase != "failed":
                progress.problem = trainer.failure
                log.error("failed", problem=trainer.failure)
                self._set_phase("failed")
                await self._upkeep.save(now=True)
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
        await self._upkeep.save(now=True)
        await self.parts.trainer.suspend()
        self.progress.paused_reason = "user"
        self._set_phase("paused")
        while self._orders.pause and not self._orders.leave:
            await self._catch_up()
            await self._orders.wait(POLL_SECONDS)
        log.info("resumed")
        self.parts.trainer.resume()
        self.parts.feed.requeue()

    async def _leave(self) -> None:
        """Everything to disk, and good-bye."""
        committed = self.parts.committed
        self._set_phase("leaving")
        await self._upkeep.save(now=True)
        if committed.is_loaded:
            try:
                await self.parts.run_in_thread(committed.checkpoint)
            except DiskError as error:
                log.error("the last state was not written as a checkpoint", problem=str(error))
        self.parts.swarm.announce()
        await trio.sleep(POLL_SECONDS)  # the good-bye is on its way out
        log.info("left in order", round=committed.entry.round)
