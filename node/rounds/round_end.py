"""The work after a round at this node: install its result, settle, save, evaluate, report.

`WorkSaver` writes carried work and the trainer's own state to disk between rounds, in a small share
of the time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import structlog
import trio

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.base.threads import RunInThread
from gossamer.node.heads.heads import Heads
from gossamer.node.machine.trainer import Trainer
from gossamer.node.modes.sync_mode import SyncMode
from gossamer.node.rounds.auditor import Auditor
from gossamer.node.rounds.evaluation import HeldoutLoss
from gossamer.node.rounds.opening import NodeContext, OpenRound
from gossamer.node.rounds.settlement import Settlement
from gossamer.node.rounds.sum_auditing import SumAuditing
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.status import LastRound, Outcome
from gossamer.protocol.ids import short
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.state.chain import lost_members
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL

SAVE_SECONDS = 30.0
"""Carried rounding errors, and the trainer's own state (the inner optimiser, or the momentum of
shared steps), are written at most this often."""

SAVE_SHARE = 0.02
"""Upper bound on the part of the wall time in which the trainer writes and does not train. It
writes one or two vectors of the model's size, perhaps to a slow disk."""

log = structlog.get_logger("node")


class WorkSaver:
    """Saves the work that a kill would lose."""

    def __init__(
        self,
        committed: CommittedState,
        work: Work,
        trainer: Trainer,
        mode: SyncMode,
        health: DiskHealth,
        run_in_thread: RunInThread,
        save_losses: Callable[[], Awaitable[None]],
    ) -> None:
        """`save_losses`: writes the curve of losses; raises DiskError."""
        self._committed = committed
        self._work = work
        self._trainer = trainer
        self._mode = mode
        self._health = health
        self._run_in_thread = run_in_thread
        self._save_losses = save_losses
        self._due_seconds = -math.inf
        """Local time of the next regular save."""
        self._retry_seconds = -math.inf

    async def save(self, *, now: bool = False) -> None:
        """Saves what is due; with `now` everything, and waits until the trainer has written."""
        if not self._committed.is_loaded:
            return  # nothing is carried yet, and the disk may hold what has not been read
        is_due = now or trio.current_time() > self._due_seconds
        if not (is_due or self._work.must_save):
            return
        with self._health.writing("work"):
            await self._run_in_thread(self._work.save)
            if is_due:
                await self._save_losses()
                await self._save_trainer(wait=now)
                pause_seconds = max(SAVE_SECONDS, self._trainer.save_seconds / SAVE_SHARE)
                self._due_seconds = trio.current_time() + pause_seconds

    async def retry(self) -> None:
        """Brings to the disk what it has not taken, now and then: a node that trains tries at the
        end of each round."""
        is_on_disk, now = self._committed.is_on_disk, trio.current_time()
        if now < self._retry_seconds or (is_on_disk and not self._health.problem_of("work")):
            return
        self._retry_seconds = now + SAVE_SECONDS
        await self.save(now=True)
        if not is_on_disk:
            with self._health.writing("state"):
                await self._run_in_thread(self._committed.checkpoint)

    async def _save_trainer(self, *, wait: bool) -> None:
        if wait:
            await self._trainer.is_saved()  # an earlier save may be under way
        await self._trainer.save(await self._mode.place())
        if wait:
            await self._trainer.is_saved()


class RoundEnd:
    """Ends this node's rounds. It lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        settlement: Settlement,
        saver: WorkSaver,
        heldout: HeldoutLoss,
        heads: Heads,
        auditor: Auditor | None = None,
        sums: SumAuditing | None = None,
    ) -> None:
        """`auditor`, `sums`: None in a run without such audits."""
        self.metrics = context.metrics
        self.progress = heldout.progress
        self._settlement = settlement
        self._saver = saver
        self._heldout = heldout
        self._samples = context.samples
        self._heads = heads
        self._transport = context.transport
        self._auditor = auditor
        self._sums = sums

    def ring_traffic(self) -> tuple[int, int]:
        """Bytes sent and received by all rings so far."""
        return self._transport.traffic().get(RING_PROTOCOL, (0, 0))

    async def evaluate(self, opened: OpenRound) -> None:
        """Evaluates on held-out text, and audits a member, if that is due."""
        if self._auditor is not None:
            await self._auditor.measure()
        await self._heldout.evaluate(trio.current_time() - opened.training_since_seconds)

    async def sample(self, opened: OpenRound, round_number: int) -> None:
        """Has the model write for its owner, if that is due. `round_number`: of its state."""
        seconds = trio.current_time() - opened.training_since_seconds
        await self._samples.take(round_number, seconds)

    async def missed(self, opened: OpenRound) -> None:
        """The round has no commit at this node: its work is settled without one."""
        opened.driver.leave()
        better = self._heads.better()
        if self._sums is not None and better is not None:
            first = self._heads.first_of(better.head)
            if first is not None:
                await self._sums.opened_chunks.keep(opened, first)
        await opened.work.missed()
        if opened.driver.is_spoilt:
            await self._settlement.drop_out_of_range()
        await self._saver.save()

    async def committed(self, opened: OpenRound, outcome: Committed) -> None:
        """Makes the round's result the committed state, and settles its work with it."""
        started = trio.current_time()
        if self._auditor is not None:
            await self._auditor.note(outcome)
        if self._sums is not None:
            await self._sums.note(opened, outcome)
        await self._settlement.install(outcome)
        await opened.work.rebase()
        await self._settlement.take(outcome)
        # Two parts of a ring that lost each other may be at two heads, and have to say so.
        is_whole = not lost_members(outcome.commit)
        self._heads.note_new(outcome.proposal.header if is_whole else None)
        opened.work.settled()
        await self._settlement.drop_if_stale()
        await self._saver.save()
        self.metrics.observe_round_phase("committing", trio.current_time() - started)
        if not opened.work.is_ahead:
            await self.evaluate(opened)
            if opened.work.trains_in_ring:
                await self.sample(opened, outcome.proposal.header.round)  # no time is better
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
        if outcome is not None:
            opened.took(seconds)
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
        progress.add_point(self._heldout.point(machine.number))
        log.info(
            f"round {machine.number} {result}",
            peers=len(members),
            loss=None if progress.loss is None else round(progress.loss, 3),
            seconds=round(seconds, 2),
            head=short(self._heads.mine),
            fields={"event": "round ended", "round": machine.number, "outcome": result},
        )
