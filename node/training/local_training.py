"""The local part of a round: inner steps in the trainer process, and what becomes of their work.

A training may outlive the round that began it. With `overlap` in the manifest, the training of the
next round begins while the present round's ring is at work. It starts from the local parameters,
and the trainer adds the result of that ring as soon as the ring is committed (`Trainer.rebase`).
The next round then takes the training over. Where a round averages one fragment of the parameters,
the next training also starts from the local parameters, with or without overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.base.orders import Orders
from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer import Trainer
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.work.own_work import Work
from gossamer.node.telemetry.progress import Progress, RoundLoss
from gossamer.node.training.feed import Feed
from gossamer.protocol.accounting.partitions import named_tokens_max
from gossamer.protocol.accounting.spans import num_tokens
from gossamer.protocol.accounting.work_records import OUT_OF_RANGE
from gossamer.protocol.codecs.chunk_values import is_usable
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.state.run_end import SchedulePlace
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import Begin, Finished, Ranges, Start


class RoundPlaces:
    """Says where a round lies in the schedule of its run.

    Rounds that are not committed yet may lie between the chain and a round that this node trains
    ahead. Each of these is supposed to have as many tokens as the newest committed one.
    """

    def __init__(self, committed: CommittedState) -> None:
        self._committed = committed

    def of_round(self, number: int) -> SchedulePlace | None:
        """Returns the place of a round; None in a run that counts planned steps."""
        committed = self._committed
        if committed.end.schedule is None:
            return None
        entry, newest = committed.entry, committed.newest_credits
        rounds_ahead = max(0, number - 1 - entry.round)
        return committed.end.place_of(
            entry.tokens_total, len(newest), rounds_ahead * sum(newest.values())
        )

    def is_last(self, number: int) -> bool:
        """Returns whether no round is supposed to follow a round."""
        committed = self._committed
        entry, tokens = committed.entry, committed.entry.tokens_total
        if committed.end.final_tokens is not None and number > entry.round:
            tokens += (number - entry.round) * sum(committed.newest_credits.values())
        return committed.end.is_over_after(number, tokens)


log = structlog.get_logger("node")


@dataclass(frozen=True, eq=False)
class LocalTrainings:
    """Begins this node's trainings, one for each round. It lives as long as the node."""

    manifest: Manifest
    trainer: Trainer
    feed: Feed
    work: Work
    progress: Progress
    orders: Orders
    run_in_thread: RunInThread
    places: RoundPlaces
    """Where rounds lie in the schedule."""

    def begin(self, number: int, start: Start, new: Ranges = ()) -> LocalTraining:
        """Prepares the training of round `number`; the caller runs its `run` as a task.

        Args:
            start: where it begins, see `messages.Begin`.
            new: ranges in which the committed parameters have changed, see `messages.Begin`.
        """
        return LocalTraining(self, number, start, new)

    async def return_data(self, still_carried: Sequence[Span] | None = None) -> None:
        """Returns data to the pool whose work was dropped; this node may claim it again.

        Args:
            still_carried: data whose work this node still carries. None: its claims stay as they
                are.
        """
        # The feed first: what it queues from now on comes behind the message to the trainer. The
        # other way round, what it queues in between stays with the trainer, and is queued twice.
        self.feed.forget_progress()
        if still_carried is not None:
            self.feed.carry(still_carried)
        await self.trainer.forget()

    async def return_uncounted_data(self) -> None:
        """Returns data to the pool that no round would count. To be called between rounds.

        It is data that this node names for too long, because it is in too few chunks of each round.
        And it is data that this node has trained on and does not name: the data behind them would
        never be in the ledger, and no other node would be given them.
        """
        spans = self.work.account.state.spans
        tokens = num_tokens(spans)
        if tokens > named_tokens_max(self.manifest):
            log.info(
                "this node has a part in too little of each round for its data to count: others "
                "take these up",
                tokens=tokens,
            )
            self.feed.leave(spans)
            self.work.forget_data()
            await self.return_data(())
        elif self.feed.has_gap(spans):
            await self.return_data(spans)

    async def drop_out_of_range(self) -> None:
        """Drops all work that is carried, because a value of it is out of range.

        The data behind it goes back to the pool.
        """
        log.warning(
            "the work that is carried has a value out of range; the memory of this machine may be "
            "faulty",
            tokens=self.work.account.carried,
        )
        self.work.drop(OUT_OF_RANGE)
        await self.return_data(self.work.account.state.spans)


class LocalTraining:
    """The inner steps of one round. `run` does them; other tasks wait with `Orders.wait`."""

    def __init__(
        self, trainings: LocalTrainings, number: int, start: Start, new: Ranges = ()
    ) -> None:
        self.number = number
        self.started_seconds = trio.current_time()
        self._of = trainings
        self._start = start
        self._new = new
        self.finished: Finished | None = None
        """The result of the training; None while it goes on."""
        self._is_stopping = False
        self.is_spoilt = False
        """Whether the work had a value out of range and was dropped. The trainer's own parameters
        may still have that value, so the next round begins from the committed state."""

    @property
    def is_done(self) -> bool:
        """Returns whether the trainer has done its last step of this training."""
        return self.finished is not None

    async def run(self) -> None:
        """Trains until all steps are done, or until `stop`."""
        feed, trainer, progress = self._of.feed, self._of.trainer, self._of.progress
        outer, inner = self._of.manifest.outer, self._of.manifest.inner
        steps = outer.inner_steps_of(self.number)
        progress.inner_steps, progress.inner_step = steps, 0
        # A sequence uses up one token more than the context has.
        feed.want(steps * inner.sequences_per_step * (self._of.manifest.model.context + 1))
        if feed.give_up_lost_claims():
            feed.requeue()  # first, as in `return_data`
            await trainer.forget()
        self.finished = await trainer.train(
            Begin(
                round=self.number,
                first_step=outer.first_inner_step_of(self.number),
                steps_max=0 if self._is_stopping else steps,  # it was stopped before it began
                seconds_max=self._of.manifest.rounds.round_seconds,
                start=self._start,
                new=self._new,
                place=self._of.places.of_round(self.number),
            )
        )
        self._of.orders.notify()

    async def stop(self) -> None:
        """Ends the training after its present step."""
        if not self._is_stopping:
            self._is_stopping = True
            await self._of.trainer.stop()

    async def end(self, head: Digest, number: int) -> None:
        """Stops the training and carries its work on `head`, as work for round `number`."""
        await self.stop()
        while not self.is_done:
            await self._of.orders.wait()
        await self.collect(head, number)

    async def collect(self, head: Digest, number: int) -> None:
        """Adds the work of a training that is done to `pending`, as `end` does."""
        finished = self.finished
        assert finished is not None
        trainer, work, feed = self._of.trainer, self._of.work, self._of.feed
        await trainer.base_is_read()  # taking over another head writes `base`
        await self._of.run_in_thread(work.close_offer)
        self.is_spoilt = not await trainer.collect()
        if self.is_spoilt:
            log.warning(
                "the work of this round has a value out of range and is dropped; the memory of the "
                "training device may be faulty, or the learning rate too high",
                round=number,
                tokens=finished.tokens,
            )
            work.spoilt(finished.tokens, OUT_OF_RANGE)
            await self._of.return_data(work.account.state.spans)
        else:
            work.trained(head, number, finished.tokens, feed.consumed(finished.spans))
        if finished.tokens and math.isfinite(finished.loss):
            progress = self._of.progress
            progress.loss, progress.bits_per_byte = finished.loss, finished.bits_per_byte
            progress.round_loss = RoundLoss(self.number, finished.loss, finished.bits_per_byte)
        pending = trainer.pending
        if not await self._of.run_in_thread(lambda: is_usable(pending)):
            await self._of.drop_out_of_range()
