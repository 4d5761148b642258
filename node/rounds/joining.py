"""How a node gets its first state: from its disk, from the swarm, or from the run's seed."""

from __future__ import annotations

import numpy as np
import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.chain_sync import BehindError, ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.following import RETRY_SECONDS, Follower
from gossamer.node.rounds.head_prover import HeadProver
from gossamer.node.rounds.turn import POLL_SECONDS
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.restoring import restore
from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import short

FIRST_CONTACT_SECONDS = 3.0
"""A node with a seed waits this long for the swarm's announcements before it starts alone."""

log = structlog.get_logger("node")


class Joiner:
    """Gets the first state of a node's life."""

    def __init__(
        self,
        committed: CommittedState,
        chain_sync: ChainSync,
        swarm: Swarm,
        trainings: LocalTrainings,
        follower: Follower,
        head_prover: HeadProver,
        *,
        has_bootstrap: bool,
    ) -> None:
        """`has_bootstrap`: whether this node knows addresses of other peers."""
        self._committed = committed
        self._chain_sync = chain_sync
        self._swarm = swarm
        self._trainings = trainings
        self._follower = follower
        self._head_prover = head_prover
        self._has_bootstrap = has_bootstrap

    async def join(self) -> None:
        """Returns when the state is loaded and this node's carried work is settled with it."""
        run_in_thread, work = self._trainings.run_in_thread, self._trainings.work
        phases, settlement = self._follower.phases, self._follower.settlement
        phases.set("joining")
        await run_in_thread(work.load)
        if await run_in_thread(lambda: restore(self._committed)):
            await settlement.settle()
            entry = self._committed.entry
            log.info("state found on disk", round=entry.round, head=short(entry.head))
        phases.set("syncing")
        if self._has_bootstrap:
            # In a swarm that has rounds behind it, no peer should begin again with the first one.
            with trio.move_on_after(FIRST_CONTACT_SECONDS):
                while not self._swarm.living():
                    await self._trainings.orders.wait()
        while not self._committed.is_loaded:
            await self._try_to_load()
        await settlement.settle()
        await self._hear_claims()
        self._trainings.feed.carry(work.account.state.spans)

    async def _try_to_load(self) -> None:
        self._follower.check_leave()
        if self._follower.heads.better() is not None:
            if not await self._follower.catch_up():
                await self._follower.wait_for_disk()
        elif self._head_prover.has_open_questions:
            await self._trainings.orders.wait(POLL_SECONDS)
        else:
            await self._begin_at_genesis()

    async def _hear_claims(self) -> None:
        """Hears all claims on data from one peer, before this node claims any: otherwise it would
        take what others have claimed."""
        for peer in sorted(self._swarm.sources()):
            with trio.move_on_after(FIRST_CONTACT_SECONDS):
                try:
                    await self._swarm.gossip.reconcile(peer)
                    return  # one statement store has what all peers have said
                except (TransportError, RemoteProtocolError) as error:
                    log.debug("exchange failed", peer=peer, error=str(error))

    async def _begin_at_genesis(self) -> None:
        committed, trainer = self._committed, self._trainings.trainer
        if not await trainer.genesis():
            await self._follower.until_trainer_is_up()
            return
        initial = np.array(trainer.base)
        try:
            await self._trainings.run_in_thread(lambda: committed.set_genesis(initial))
            return
        except ForgedError:
            log.info("this machine draws other initial weights; they are fetched from peers")
        try:
            await self._chain_sync.follow(committed.chain.genesis, self._swarm.sources)
        except (BehindError, DiskError) as error:
            log.warning("the initial state cannot be had yet", error=str(error))
            await self._trainings.orders.wait(RETRY_SECONDS)
