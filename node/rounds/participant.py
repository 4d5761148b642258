"""The life of a node in its run: get the state, then train, average and commit, round after round.

    joining -> syncing -> training -> averaging -> training ...
                  ^          |            |
                  +----------+------------+   a heavier head was seen: take it over
    paused: no trainer, but heads are followed and blocks served.
    leaving: one last round, then out.

One task runs this loop (`run`); everything that arrives from outside only leaves a note and rings.
"""

from __future__ import annotations

import numpy as np
import structlog
import trio

from gossamer.node.network.identity import verify
from gossamer.node.peers.chain_sync import BehindError
from gossamer.node.rounds.heads import Heads
from gossamer.node.rounds.parts import Orders, Parts, Progress
from gossamer.node.rounds.ring_link import TokenHandler
from gossamer.node.rounds.round_driver import HELLO_SECONDS, RoundDriver
from gossamer.node.rounds.turn import POLL_SECONDS, Turn
from gossamer.node.rounds.upkeep import Upkeep
from gossamer.node.storage.committed import Replayed
from gossamer.node.storage.state_dir import DiskFullError
from gossamer.protocol.chain import Commit, Header
from gossamer.protocol.errors import ForgedError, MalformedError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.messages import Phase, Roster, Signed, Statement, open_signed
from gossamer.trainer.messages import Step

FIRST_CONTACT_SECONDS = 3.0
"""A node with a seed waits this long for the swarm's announcements before it starts alone."""

RETRY_SECONDS = 2.0
"""Between attempts to get the initial state."""

log = structlog.get_logger("node")


class LeaveRequested(Exception):
    """The node was asked to leave, at a point where there is nothing to finish."""


def _drop_token(*_token: object) -> None:
    """Takes a token that is of no use any more."""


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
        self._upkeep = Upkeep(parts, self.progress)
        self._driver: RoundDriver | None = None

    # Orders

    def pause(self) -> None:
        self._orders.pause = True
        self._orders.ring()

    def resume(self) -> None:
        self._orders.pause = False
        self._orders.ring()

    def leave(self) -> None:
        """Leave in order: `run` returns when that is done."""
        self._orders.leave = True
        self._orders.ring()

    def fail(self, problem: str) -> None:
        """The node cannot train any more; it goes on serving what it has."""
        self.progress.problem = problem
        self._set_phase("failed")
        log.error("failed", problem=problem)

    # Events

    def stepped(self, step: Step) -> None:
        """The trainer did an inner step."""
        self.progress.inner_step += 1
        if not step.skipped:
            self.progress.loss = step.loss

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A statement about some round."""
        if self._driver is not None:
            self._driver.heard(signed, statement)

    def heard_commit(self, commit: Commit, header: Header) -> None:
        """A checked commit record."""
        chain = self.parts.committed.chain
        driver = self._driver
        if driver is not None and driver.is_running and driver.commit_received(commit):
            return
        parent = Digest(header.parent)
        if parent in chain and chain.entry(parent).is_parent_of(header):
            try:
                chain.add(commit, header)
            except DiskFullError as error:
                log.error("a committed header is in memory only", problem=str(error))
        self._orders.ring()

    def disconnected(self, peer: PeerId) -> None:
        if self._driver is not None:
            self._driver.disconnected(peer)

    def members_changed(self) -> None:
        if self._driver is not None and self._driver.is_running:
            self._driver.tick()
        self._orders.ring()

    async def replayed(self, replayed: Replayed) -> None:
        """A committed round was taken over from its blocks; it may contain this node's work."""
        driver = self._driver
        # Without a driver this node has just started: what it carries is from its earlier life.
        if driver is None or driver.ring_id == replayed.header.ring_id:
            contribution = None if driver is None else driver.contribution
            await self._upkeep.settle(replayed.header, replayed.update.finals, contribution)

    async def greeted(self, _peer: PeerId, envelope: Signed) -> TokenHandler | None:
        """A ring member opened its stream to us."""
        statement = open_signed(envelope, self.parts.manifest.run_id, verify)
        if not isinstance(statement, Roster):
            raise MalformedError("ring stream without a roster")
        with trio.move_on_after(HELLO_SECONDS):
            while True:
                driver = self._driver
                if driver is not None and driver.is_running:
                    if driver.machine.head == statement.head:
                        return await driver.greeted(envelope, statement)
                    if statement.round < driver.machine.number:
                        # Committed here already: taken, so that nobody thinks we fail, and dropped.
                        return _drop_token
                await self._orders.wait()
        return None

    # The loop

    async def run(self) -> None:
        """Takes part in the run until asked to leave. Then returns, with everything on disk."""
        async with trio.open_nursery() as rounds:
            try:
                await self._get_first_state()
                while not self.parts.trainer.is_up:
                    # Nobody waits for a node whose trainer still starts: it only follows.
                    self._check_leave()
                    await self._catch_up()
                    await self._orders.wait(POLL_SECONDS)
                while self._is_too_early():
                    self._check_leave()
                    self._set_phase("training")
                    await self._orders.wait(POLL_SECONDS)
                    await self._catch_up()
                while not self._orders.leave:
                    if self._orders.pause:
                        await self._paused()
                        continue
                    await self._catch_up()
                    turn = Turn(
                        self.parts,
                        self._heads,
                        self._upkeep,
                        self._orders,
                        self.progress,
                        self._set_phase,
                    )
                    self._driver = turn.driver
                    # Outlives the turn a little: others may need the finals that it still sends.
                    rounds.start_soon(turn.driver.run)
                    self._orders.ring()
                    await turn.run()
            except LeaveRequested:
                pass
            await self._leave()
            rounds.cancel_scope.cancel()

    def _set_phase(self, phase: Phase) -> None:
        if phase != self.progress.phase:
            self.progress.phase = phase
            self.parts.metrics.set_phase(phase)
        self.parts.swarm.announce()
        self._orders.ring()

    async def _get_first_state(self) -> None:
        parts = self.parts
        self._set_phase("joining")
        await parts.run_in_thread(parts.work.load)
        if await parts.run_in_thread(parts.committed.restore):
            await self._upkeep.settle_earlier_rounds()
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
                await self._catch_up()
                continue
            await self._begin_at_genesis()

    async def _begin_at_genesis(self) -> None:
        parts = self.parts
        await parts.trainer.genesis()
        initial = np.array(parts.trainer.base)
        try:
            await parts.run_in_thread(lambda: parts.committed.set_genesis(initial))
            return
        except ForgedError:
            log.info("this machine draws other initial weights; they are fetched from peers")
        try:
            await parts.chain_sync.follow(parts.committed.chain.genesis, parts.swarm.sources)
        except BehindError as error:
            log.warning("no peer has the initial state yet", error=str(error))
            await self._orders.wait(RETRY_SECONDS)

    async def _catch_up(self) -> None:
        """Takes over the heaviest head, if there is one that wins over mine."""
        while (better := self._heads.better()) is not None:
            self._check_leave()
            if self.progress.phase != "paused":
                waited_for = self._heads.is_near(better.head) and self.parts.trainer.is_up
                self._set_phase("training" if waited_for else "syncing")
            if await self._heads.try_take_over(better.head):
                self._upkeep.drop_if_stale()

    def _is_too_early(self) -> bool:
        """Whether the run's first round is before us and others are still waited for."""
        phases = [announce.phase for announce in self.parts.swarm.living().values()]
        ready = phases.count("training") + phases.count("averaging")
        return self.parts.committed.entry.round == 0 and ready < self._wait_for_peers

    def _check_leave(self) -> None:
        if self._orders.leave:
            raise LeaveRequested

    async def _paused(self) -> None:
        """The device is free; heads are followed, blocks are served."""
        log.info("paused; the device is free")
        await self._upkeep.save(now=True)
        await self.parts.trainer.suspend()
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
            except DiskFullError as error:
                log.error("the last state was not written as a checkpoint", problem=str(error))
        self.parts.swarm.announce()
        await trio.sleep(POLL_SECONDS)  # the good-bye is on its way out
        log.info("left in order", round=committed.entry.round)
