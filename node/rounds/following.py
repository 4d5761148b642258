"""The tasks of a node that cannot begin a round: it gets its first state, then it follows heads.

`Joiner` gets the first state from the disk, from the swarm, or from the run's seed; a run that
began with the weights of a folder has no seed for them. `Follower` takes over heavier heads, waits
for the trainer or the disk, and serves blocks while the node is paused.
"""

from __future__ import annotations

import numpy as np
import structlog
import trio

from gossamer.node.base.disk_health import DiskError, DiskHealth
from gossamer.node.heads.fetcher import HeadFetcher
from gossamer.node.heads.heads import Heads
from gossamer.node.heads.prover import HeadProver
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.chain.chain_records import BehindError
from gossamer.node.rounds.opening import NodeContext
from gossamer.node.rounds.settlement import Settlement, WorkSaver
from gossamer.node.rounds.turn import POLL_SECONDS, Phases
from gossamer.node.storage.state.restoring import restore
from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.wire.statements import AT_WORK

RETRY_SECONDS = 2.0
"""Pause between attempts to get the initial state, or to write what the disk did not take."""

IDLE_SECONDS = 1.0
"""Interval of the looks of a paused node without news. A change of what holds it, and a head whose
blocks are here, are news."""

FIRST_CONTACT_SECONDS = 3.0
"""A node with a seed waits this long for the swarm's announcements before it starts alone."""

UNHEARD_MAX = 8
"""Connected peers that are asked at once what they know, if they have not announced themselves in
that time: more than a node is given addresses when it begins."""

CLAIMS_SECONDS = 15.0
"""Longest wait of a node for the claims of the others: the wait for five peers that do not answer.
The claims that it has not heard by then come while it trains, as later ones do. A crowd of silent
peers must not keep a node from its first round either."""

PROOF_SECONDS = 120.0
"""Longest wait of a node without a state for the proofs of announced heads. Some 30,000 commit
records come in this time on a home line. A peer that proves nothing must not keep a newcomer from
its first round; a proof that comes later is followed all the same."""

log = structlog.get_logger("node")


class LeaveRequested(Exception):
    """The node was asked to leave, at a point where there is nothing to finish."""


class Follower:
    """Keeps a node at the swarm's head without training."""

    def __init__(
        self,
        trainings: LocalTrainings,
        heads: Heads,
        settlement: Settlement,
        saver: WorkSaver,
        phases: Phases,
        health: DiskHealth,
    ) -> None:
        self.heads = heads
        self.phases = phases
        self.settlement = settlement
        self.trainings = trainings
        self._orders = trainings.orders
        self._saver = saver
        self._health = health

    def check_leave(self) -> None:
        """Raises LeaveRequested if the operator asked this node to leave."""
        if self._orders.leave:
            raise LeaveRequested

    async def catch_up(self) -> bool:
        """Takes over the heaviest head, as long as one wins over the committed one. It returns
        before that when something begins to keep the node from training.

        Returns:
            False if the disk does not take it: rounds on an older head would be of no use.
        """
        while (better := self.heads.better()) is not None:
            self.check_leave()
            was_paused = self._orders.pause
            if not await self._take_over(better.head):
                return False
            if self._orders.pause and not was_paused:
                return True  # the device is freed first
        return True

    async def _take_over(self, head: Digest) -> bool:
        """Tries to take over a head. Returns False if the disk does not take it."""
        if self.phases.progress.phase not in ("paused", "failed"):
            others_wait = self.heads.is_near(head) and self.trainings.trainer.is_up
            self.phases.set("training" if others_wait else "syncing")
        try:
            with self._orders.unless_ordered():
                if await self.heads.try_take_over(head):
                    self._health.wrote("blocks")
        except DiskError as error:
            self._health.failed("blocks", error)
            return False
        finally:
            # The head may also have moved where it did not come all the way.
            await self.settlement.settle()
        await self.settlement.drop_if_stale()
        await self._saver.save()
        return True

    async def _go_back_without_line(self) -> None:
        """Leaves rounds that were taken back, if the state before them is on this disk. The node of
        the founder tells the others when it is there."""
        if self.heads.allowed.own() or (better := self.heads.better()) is None:
            return
        if await self.trainings.run_in_thread(lambda: self.heads.is_on_disk(better.head)):
            await self._take_over(better.head)

    async def wait_for_disk(self) -> None:
        """The disk takes nothing, so the swarm cannot be followed; blocks are still served."""
        self.phases.pause("disk")
        await trio.sleep(RETRY_SECONDS)

    async def wait_for_state(self) -> None:
        """The rounds that this node has were taken back, and no peer has served the state
        before them yet. Rounds on void ones would be of no use."""
        self.phases.set("syncing")
        await self._orders.wait(RETRY_SECONDS)

    async def until_trainer_is_up(self) -> None:
        """Follows heads while the trainer starts or has failed, as long as the run goes on. No
        other peer waits for it."""
        trainer, progress = self.trainings.trainer, self.phases.progress
        while not (trainer.is_up or self._orders.pause or self.heads.allowed.is_finished):
            self.check_leave()
            if trainer.failure is not None and progress.phase != "failed":
                progress.problem = trainer.failure
                log.error("failed", problem=trainer.failure)
                self.phases.set("failed")
                await self._saver.save(now=True)
            elif trainer.failure is None and progress.phase != "syncing":
                progress.problem = None
                self.phases.set("syncing")
            await self.catch_up()
            await self._orders.wait_to_tick(POLL_SECONDS)
        if trainer.failure is None:
            progress.problem = None

    async def while_paused(self) -> None:
        """Frees the device until nothing keeps the node from training, or the run is finished;
        heads are followed, blocks are served, unless the node spares its line. Rounds that were
        taken back are left all the same."""
        log.info("pausing")
        await self._saver.save(now=True)
        await self.trainings.trainer.suspend()
        log.info("paused; the device is free")
        progress = self.phases.progress
        while (hold := self._orders.hold) is not None and not self._orders.leave:
            if self.trainings.trainer.is_up:  # nothing held the node for a while since `suspend`
                await self.trainings.trainer.suspend()
            if (progress.phase, progress.paused_reason) != ("paused", hold.reason):
                self.phases.pause(hold.reason)
            if self._orders.spares_line:
                await self._go_back_without_line()
            else:
                await self.catch_up()
            if self.heads.allowed.is_finished:
                return
            await self._saver.retry()
            await self._orders.wait_to_tick(IDLE_SECONDS)
        if self._orders.leave:
            return
        log.info("resumed")
        self.trainings.trainer.resume()
        self.trainings.feed.requeue()


class Joiner:
    """Gets the first state of a node's life."""

    def __init__(
        self,
        context: NodeContext,
        follower: Follower,
        head_prover: HeadProver,
        head_fetcher: HeadFetcher,
        *,
        has_bootstrap: bool,
    ) -> None:
        """`has_bootstrap`: whether this node knows addresses of other peers."""
        self._founder = PeerId(context.manifest.founder)
        """A newcomer does not begin a branch beside the founder's rounds."""
        self._waits_for_way = False
        """Whether this node waits for a member that can prove the founder's newest round."""
        self._committed = context.committed
        self._chain_sync = context.chain_sync
        self._swarm = context.swarm
        self._follower = follower
        self._trainings = follower.trainings
        self._head_prover = head_prover
        self._head_fetcher = head_fetcher
        self._has_bootstrap = has_bootstrap
        self._genesis_problem = ""
        """The newest reason why the initial state cannot be fetched, which is said once."""
        self._proven_until = 0.0
        """Local time until which this node waits for the proofs of announced heads."""

    async def join(self) -> None:
        """Returns when the state is loaded and this node's carried work is settled with it."""
        run_in_thread, work = self._trainings.run_in_thread, self._trainings.work
        phases, settlement = self._follower.phases, self._follower.settlement
        phases.set("joining")
        await run_in_thread(work.load)
        if await run_in_thread(lambda: restore(self._committed)):
            await settlement.settle()
            entry = self._committed.entry
            phases.progress.forget_heldout_after(entry.round)  # a disk may lack the newest rounds
            log.info("state found on disk", round=entry.round, head=short(entry.head))
        phases.set("syncing")
        if self._has_bootstrap:
            # In a swarm that has rounds behind it, no peer should begin again with the first one.
            # The peer that is heard first may be a newcomer as well.
            with trio.move_on_after(FIRST_CONTACT_SECONDS):
                while not self._swarm.living() or self._swarm.unheard():
                    self._follower.check_leave()
                    await self._trainings.orders.wait()
            await self._ask_unheard()
        self._proven_until = trio.current_time() + PROOF_SECONDS
        while not self._committed.is_loaded:
            await self._try_to_load()
        self._note_way(is_over=True)
        await settlement.settle()
        await self._hear_heads()
        await self._hear_claims()
        await settlement.drop_if_stale()  # an earlier life may have named too much
        self._trainings.feed.carry(work.account.state.spans)

    async def _try_to_load(self) -> None:
        self._follower.check_leave()
        self._note_way()
        if self._trainings.orders.pause:
            # It follows a head that is heard of. The initial weights would need the device.
            await self._follower.while_paused()
        elif self._follower.heads.better() is not None:
            if not await self._follower.catch_up():
                await self._follower.wait_for_disk()
        elif self._head_fetcher.is_at_work or (
            self._head_prover.has_open_questions and trio.current_time() < self._proven_until
        ):
            await self._trainings.orders.wait(POLL_SECONDS)
        elif self._waits_for_way:
            await self._trainings.orders.wait(RETRY_SECONDS)
        elif not self._follower.heads.allowed.has_pin(self._committed.head):
            log.info("no peer has the head that the link names yet: this node waits for one")
            await self._trainings.orders.wait(RETRY_SECONDS)
        elif not self._committed.chain.is_linked(self._committed.head):
            # Its chain begins at a checkpoint, and no peer with a later state is here now.
            await self._trainings.orders.wait(RETRY_SECONDS)
        else:
            await self._begin_at_genesis()

    def _note_way(self, *, is_over: bool = False) -> None:
        """Notes whether the founder, which has all stake at the run's beginning, has rounds that
        nobody here can prove. A branch beside them would lose to them."""
        waits = not is_over and self._head_prover.lacks_way(self._founder)
        if waits == self._waits_for_way:
            return
        self._waits_for_way = waits
        self._follower.phases.progress.problem = None
        if waits:
            log.warning("nobody can prove the founder's newest round: this node waits")
            self._follower.phases.progress.problem = (
                "the founder's node lacks the record of an old round, so no newcomer can check the "
                "run: this node waits until a member that has the record is there. `gossamer "
                "status` on the founder's machine says more"
            )

    async def _hear_heads(self) -> None:
        """Hears how far the others are, before this node works on its own head. Otherwise it would
        oppose those that went on while it was away."""
        with trio.move_on_after(FIRST_CONTACT_SECONDS):
            while self._head_prover.has_open_questions or self._head_fetcher.is_at_work:
                self._follower.check_leave()
                await self._trainings.orders.wait(POLL_SECONDS)

    async def _ask_unheard(self) -> None:
        """Asks the connected peers that have not announced themselves for what they know. Gossip
        may have lost it, and they may be the only ones that have rounds."""
        with trio.move_on_after(FIRST_CONTACT_SECONDS):
            async with trio.open_nursery() as nursery:
                for peer in self._swarm.unheard()[:UNHEARD_MAX]:
                    nursery.start_soon(self._ask, peer)

    async def _ask(self, peer: PeerId) -> bool:
        """Takes what a peer's statement store has. Returns False if it does not answer."""
        try:
            await self._swarm.gossip.reconcile(peer)
        except (TransportError, RemoteProtocolError) as error:
            log.debug("exchange failed", peer=peer, error=str(error))
            return False
        return True

    async def _hear_claims(self) -> None:
        """Hears all claims on data from one peer, before this node claims any: otherwise it would
        take what others have claimed. Peers that take part come first: these have done so. Another
        newcomer may have heard as little as this node."""
        living = self._swarm.living()
        at_work = {peer for peer in living if living[peer].phase in AT_WORK}
        with trio.move_on_after(CLAIMS_SECONDS):
            for peer in sorted(self._swarm.sources(), key=lambda peer: (peer not in at_work, peer)):
                self._follower.check_leave()
                with trio.move_on_after(FIRST_CONTACT_SECONDS):
                    if await self._ask(peer):
                        return  # one statement store has what all peers have said

    async def _begin_at_genesis(self) -> None:
        committed = self._committed
        if committed.begins_with_drawn_weights and await self._draw_genesis():
            return
        try:
            with self._trainings.orders.unless_ordered():
                await self._chain_sync.follow(committed.chain.genesis, self._swarm.sources)
        except (BehindError, DiskError) as error:
            if (problem := str(error)) != self._genesis_problem:
                self._genesis_problem = problem
                log.warning(
                    "the initial state cannot be had yet; this node tries again until a member "
                    "that has a state is there",
                    problem=problem,
                )
            await self._trainings.orders.wait(RETRY_SECONDS)

    async def _draw_genesis(self) -> bool:
        """Draws the initial weights of the run's seed. Returns False where they are to be fetched,
        because this machine draws others."""
        committed, trainer = self._committed, self._trainings.trainer
        is_drawn: bool | None = None
        with self._trainings.orders.unless_ordered():
            is_drawn = await trainer.genesis()
        if is_drawn is None:  # an order came while the trainer drew them, or could not start
            self._follower.check_leave()
            await self._follower.while_paused()
            return True
        if not is_drawn:
            await self._follower.until_trainer_is_up()
            return True
        try:
            # The copy of a large model takes a second, too.
            await self._trainings.run_in_thread(
                lambda: committed.set_genesis(np.array(trainer.base))
            )
        except ForgedError:
            log.info("this machine draws other initial weights; they are fetched from peers")
            return False
        return True
