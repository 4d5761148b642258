"""The end of a node's part in its run: it hands its newest round over, writes and says good-bye."""

from __future__ import annotations

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.orders import Orders
from gossamer.node.heads.heads import Heads
from gossamer.node.rounds.active_rounds import ActiveRounds
from gossamer.node.rounds.decisions import Decision, DecisionLog, stays_for_newest_round
from gossamer.node.rounds.opening import NodeContext
from gossamer.node.rounds.settlement import WorkSaver
from gossamer.node.rounds.turn import POLL_SECONDS, Phases
from gossamer.protocol.ids import Digest

HAND_OVER_SECONDS = 30.0
"""Longest time for which a node that leaves stays until another peer has its newest round. A round
of 75 MB takes as long over a line of 20 Mbit/s. With `turn.LEAVE_SECONDS` before it, 40 s of the
90 s that service managers give are left for the disk."""

log = structlog.get_logger("node")


class Farewell:
    """The end of one node's part in its run."""

    def __init__(
        self,
        context: NodeContext,
        heads: Heads,
        rounds: ActiveRounds,
        saver: WorkSaver,
        orders: Orders,
        phases: Phases,
        decisions: DecisionLog,
    ) -> None:
        self._context = context
        self._heads = heads
        self._rounds = rounds
        self._saver = saver
        self._orders = orders
        self._phases = phases
        self._decisions = decisions

    async def run(self) -> None:
        """Returns when the node can go. Its rounds have to run until then."""
        await self._hand_over()
        await self._write()

    async def _hand_over(self) -> None:
        """Stays while no other peer has the newest round: the work in it would go with this node,
        and the others would make another round in its place."""
        is_said = False
        with trio.move_on_after(HAND_OVER_SECONDS):
            while (decision := self._stays()).holds:
                if not is_said:
                    is_said = True
                    log.info(
                        "this node stays until another peer has its newest round; a second signal "
                        "ends the process at once",
                        round=self._context.committed.entry.round,
                        reason=decision.reason,
                        seconds_at_most=HAND_OVER_SECONDS,
                    )
                await self._orders.wait(POLL_SECONDS)

    def _stays(self) -> Decision:
        committed, branches = self._context.committed, self._heads.branches
        if not committed.is_loaded or not committed.entry.round:
            return Decision(False, "there is no round to hand over")
        announced = [Digest(each.head) for each in self._context.swarm.living().values()]
        decision = stays_for_newest_round(
            is_best=self._heads.better() is None,
            lacks_averages=self._rounds.is_delivering_newest,
            others_have_it=[
                head in committed.chain and branches.is_on_mine(head) for head in announced
            ],
        )
        self._decisions.note("does the node stay for its newest round", decision)
        return decision

    async def _write(self) -> None:
        """Writes everything to disk and says good-bye."""
        committed = self._context.committed
        self._phases.set("leaving")
        await self._saver.save(now=True)
        if committed.is_loaded:
            try:
                await self._context.run_in_thread(committed.checkpoint)
            except DiskError as error:
                log.error("the last state was not written as a checkpoint", problem=str(error))
        self._context.swarm.announce()
        await trio.sleep(POLL_SECONDS)  # the good-bye is on its way out
        if problem := self._context.health.problem:
            log.error(
                "left, and the disk lacks what was new: the next start goes on from what it took, "
                "and fetches from peers the rounds that they have",
                round=committed.entry.round,
                problem=problem,
            )
            return
        log.info("left in order", round=committed.entry.round)
