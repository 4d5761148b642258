"""What follows a round at this node: install its result, settle, save, evaluate, report."""

from __future__ import annotations

import structlog
import trio

from gossamer.node.network.transport import Transport
from gossamer.node.rounds.heads import Heads
from gossamer.node.rounds.heldout import HeldoutLoss
from gossamer.node.rounds.opening import OpenRound
from gossamer.node.rounds.saving import WorkSaver
from gossamer.node.rounds.settlement import Settlement
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress
from gossamer.node.telemetry.status import LastRound, LossPoint, Outcome
from gossamer.protocol.ids import short
from gossamer.protocol.rounds.attempt import Committed
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL

log = structlog.get_logger("node")


class RoundEnd:
    """Ends this node's rounds. It lives as long as the node."""

    def __init__(
        self,
        settlement: Settlement,
        saver: WorkSaver,
        heldout: HeldoutLoss,
        heads: Heads,
        transport: Transport,
        metrics: Metrics,
        progress: Progress,
    ) -> None:
        self.metrics = metrics
        self.progress = progress
        self._settlement = settlement
        self._saver = saver
        self._heldout = heldout
        self._heads = heads
        self._transport = transport

    def ring_traffic(self) -> tuple[int, int]:
        """Bytes sent and received by all rings so far."""
        return self._transport.traffic().get(RING_PROTOCOL, (0, 0))

    async def evaluate(self, opened: OpenRound) -> None:
        """Evaluates on held-out text, if it is due."""
        await self._heldout.evaluate(trio.current_time() - opened.training_since_seconds)

    async def missed(self, opened: OpenRound) -> None:
        """The round has no commit at this node: its work is settled without one."""
        opened.driver.leave()
        await opened.work.missed()
        if opened.driver.is_spoilt:
            await self._settlement.drop_out_of_range()
        await self._saver.save()

    async def committed(self, opened: OpenRound, outcome: Committed) -> None:
        """Makes the round's result the committed state, and settles its work with it."""
        started = trio.current_time()
        await self._settlement.install(outcome)
        await opened.work.rebase()
        await self._settlement.take(outcome)
        self._heads.note_new()
        opened.work.settled()
        await self._settlement.drop_if_stale()
        await self._saver.save()
        self.metrics.observe_round_phase("committing", trio.current_time() - started)
        if not opened.work.is_ahead:
            await self.evaluate(opened)
        opened.work.go_on()

    def report(
        self,
        opened: OpenRound,
        outcome: Committed | None,
        started_seconds: float,
        traffic: tuple[int, int],
    ) -> None:
        """Shows a round that is over in status, metrics and log.

        Args:
            outcome: None for a round without a commit at this node.
            started_seconds: local time at its start.
            traffic: `ring_traffic` at its start.
        """
        machine, progress = opened.driver.machine, self.progress
        members = machine.ring.members if machine.ring is not None else ()
        result: Outcome = "missed" if outcome is None else "committed"
        contributors: tuple[str, ...] = ()
        if outcome is not None:
            header = outcome.proposal.header
            contributors = tuple(m.peer_id for m in header.members if m.tokens > 0)
        seconds = trio.current_time() - started_seconds
        sent, received = self.ring_traffic()
        progress.last_round = LastRound(
            round=machine.number,
            members=tuple(members),
            contributors=contributors,
            duration_seconds=seconds,
            bytes_sent=sent - traffic[0],
            bytes_received=received - traffic[1],
            outcome=result,
        )
        self.metrics.end_round(result, len(members))
        heldout_loss = self._heldout.take_fresh()
        progress.history.add(
            LossPoint(round=machine.number, loss=progress.loss, heldout_loss=heldout_loss)
        )
        log.info(
            f"round {machine.number} {result}",
            peers=len(members),
            loss=None if progress.loss is None else round(progress.loss, 3),
            seconds=round(seconds, 2),
            head=short(self._heads.mine),
        )
