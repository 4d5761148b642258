"""The local part of a round: inner steps at the trainer, and what becomes of their work.

With `overlap` in the manifest it begins while the ring of the round before is at work, from the
local parameters as they are, and what that ring leads to reaches the trainer as soon as it is
committed (`Trainer.rebase`). So it outlives the `Turn` that began it, and ends in the next one.
Where rounds average fragments it goes on from the local parameters also without overlap.
"""

from __future__ import annotations

import math

import structlog
import trio

from gossamer.node.rounds.context import NodeContext, Orders, Progress
from gossamer.protocol.accounting.work_account import OUT_OF_RANGE
from gossamer.protocol.codecs.chunk_values import is_usable
from gossamer.protocol.ids import Digest
from gossamer.trainer.ipc.messages import Finished, Ranges, Start

log = structlog.get_logger("node")


async def drop_out_of_range(context: NodeContext) -> None:
    """Drops all that is carried: a value of it cannot be used. Its data goes back to the pool."""
    log.warning(
        "the work that is carried has a value out of range; the memory of this machine may be "
        "faulty",
        tokens=context.work.account.carried,
    )
    context.work.drop(OUT_OF_RANGE)
    await _return_data(context)


async def _return_data(context: NodeContext) -> None:
    """The data of dropped work goes back to the pool, from where this node may take it again."""
    await context.trainer.forget()
    context.feed.forget_progress()
    context.feed.carry(context.work.account.state.spans)


class LocalTraining:
    """Inner steps for one round. `run` does them; whoever needs the result waits with `orders`."""

    def __init__(
        self,
        context: NodeContext,
        progress: Progress,
        orders: Orders,
        number: int,
        *,
        start: Start,
        new: Ranges = (),
    ) -> None:
        """`start` and `new`: see `messages.Begin`."""
        self.number = number
        self.started_seconds = trio.current_time()
        self._context = context
        self._progress = progress
        self._orders = orders
        self._start = start
        self._new = new
        self._finished: Finished | None = None
        self._is_stopping = False
        self.is_spoilt = False
        """Whether its work had a value out of range and was dropped. The trainer's own parameters
        may have that value still, so the next round begins from the committed state."""

    @property
    def is_done(self) -> bool:
        return self._finished is not None

    async def run(self) -> None:
        """Trains until done, or told to stop."""
        context = self._context
        outer, inner = context.manifest.outer, context.manifest.inner
        steps = outer.inner_steps_of(self.number)
        self._progress.inner_steps, self._progress.inner_step = steps, 0
        # A sequence uses up one token more than the context has.
        context.feed.want(steps * inner.sequences_per_step * (context.manifest.model.context + 1))
        if context.feed.give_up_lost_claims():
            await context.trainer.forget()
            context.feed.requeue()
        self._finished = await context.trainer.train(
            self.number,
            outer.first_inner_step_of(self.number),
            0 if self._is_stopping else steps,  # told to stop before it began
            context.manifest.rounds.round_seconds,
            self._start,
            self._new,
        )
        self._orders.notify()

    async def stop(self) -> None:
        """No more steps after the present one."""
        if not self._is_stopping:
            self._is_stopping = True
            await self._context.trainer.stop()

    async def end(self, head: Digest, number: int) -> None:
        """Stops it, and carries what it did as work on a head, for round `number`."""
        await self.stop()
        while not self.is_done:
            await self._orders.wait()
        await self.collect(head, number)

    async def collect(self, head: Digest, number: int) -> None:
        """Its work becomes part of `pending`. It has to be done."""
        finished = self._finished
        assert finished is not None
        context = self._context
        await context.trainer.base_is_read()  # whoever takes over another head writes it
        await context.run_in_thread(context.work.close_offer)
        self.is_spoilt = not await context.trainer.collect()
        if self.is_spoilt:
            log.warning(
                "the work of this round has a value out of range and is dropped; the memory of the "
                "training device may be faulty, or the learning rate too high",
                round=number,
                tokens=finished.tokens,
            )
            context.work.spoilt(finished.tokens, OUT_OF_RANGE)
            await _return_data(context)
        else:
            spans = context.feed.consumed(finished.spans)
            context.work.trained(head, number, finished.tokens, spans)
        if finished.tokens and math.isfinite(finished.loss_mean):
            self._progress.loss = finished.loss_mean
        pending = context.trainer.pending
        if not await context.run_in_thread(lambda: is_usable(pending)):
            await drop_out_of_range(context)
