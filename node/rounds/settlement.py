"""What has to be done between rounds: settle, save, evaluate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.modes.carried_momentum import CarriedMomentum
from gossamer.node.peers.chain_sync import BehindError
from gossamer.node.rounds.context import NodeContext, Progress
from gossamer.node.storage.committed import CannotRebuildError, chunks_with
from gossamer.protocol.accounting.work_account import mask_of
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.chain import ChunkAverage, Header, spans_taken

LISTS_SECONDS = 15.0
"""A few KiB each from whoever answers, for the one or two rounds that may have work of an offer.
The next round waits."""

SAVE_SECONDS = 30.0
"""Residual that is only rounding error, and what the trainer keeps (the inner optimiser or the
momentum of shared steps), are written at most this often."""

SAVE_SHARE = 0.02
"""Part of the wall time that the trainer may write for, and not train: one or two vectors of the
model's size, to a slow disk."""

EVALUATION_SHARE = 0.02
"""Part of the wall time that evaluating on held-out text may take."""

EVALUATION_ROUND_SHARE = 0.05
"""Of a round one evaluation may take at most: the others wait for whoever is still at it."""

EVALUATION_TOKENS_MAX = 16_384
"""For a curve to look at; whoever wants the exact loss evaluates the export on all of it."""

log = structlog.get_logger("node")


class Settlement:
    """The work account, the files that follow it, and held-out loss."""

    def __init__(self, context: NodeContext, progress: Progress) -> None:
        self._context = context
        self._progress = progress
        self.momentum = CarriedMomentum(context)
        self._save_seconds = -math.inf
        """When it is time to save."""
        self._evaluate_seconds = -math.inf
        self._fresh_heldout_loss: float | None = None
        self._averages: dict[Digest, tuple[ChunkAverage, ...]] = {}
        """Of rounds that are not settled yet."""

    # Work

    def note(self, header: Header, averages: tuple[ChunkAverage, ...]) -> None:
        """Who is in a newly committed round, as `settle` will ask: the disk may not have it."""
        self._averages[header.digest] = averages

    async def settle(self) -> None:
        """Brings the work account from the head where it was to the committed one.

        What rounds that are not in the chain any more had taken is carried again; what those that
        are new took is not. Does nothing where both are the same.
        """
        context = self._context
        if not context.committed.is_loaded or context.work.head == context.committed.head:
            return
        await self._learn_who_was_in(await context.run_in_thread(self._new_with_mine))
        is_elsewhere = await context.run_in_thread(self._settle)
        self._averages.clear()
        if is_elsewhere:
            # There the data is consumed to other positions.
            await context.trainer.forget()
            context.feed.forget_progress()
            context.feed.carry(context.work.account.state.spans)

    def _new_with_mine(self) -> list[Header]:
        """New rounds that took some of an offer of mine, and of whose averages nothing is known: a
        checkpoint skipped them."""
        context = self._context
        chain, since = context.committed.chain, context.work.head or context.committed.chain.genesis
        newest = context.committed.head
        while newest in self._averages:
            newest = chain.entry(newest).parent
        if newest == since or since not in chain:
            return []  # after nearly every round: the way through the whole chain is not looked at
        offered = {offer.head for offer in context.work.account.state.offers}
        headers = [
            self._header(new)
            for new in chain.only_in(context.committed.head, since)
            if new not in self._averages and chain.entry(new).parent in offered
        ]
        return [header for header in headers if header is not None and self._mine(header)[1]]

    async def _learn_who_was_in(self, headers: Sequence[Header]) -> None:
        """Their lists of members are fetched, if anybody still has them: else all that was offered
        would have to be given up, be it that a round took one chunk of it."""
        context = self._context
        with trio.move_on_after(LISTS_SECONDS):
            for header in headers:
                try:
                    await context.chain_sync.fetch_update_index(header, context.swarm.sources)
                    self._averages[header.digest] = context.committed.averages_of(header)
                except (BehindError, CannotRebuildError, DiskError) as error:
                    log.debug("who was in an old round is not known", problem=str(error))

    def _settle(self) -> bool:
        """Says whether rounds were left."""
        context = self._context
        chain, head = context.committed.chain, context.committed.head
        since = context.work.head
        if since is None and not context.work.is_damaged:
            context.work.moved_to(head)  # a new node: none of its work is in the rounds before
            return False
        since = since or chain.genesis
        if since not in chain:
            log.warning("what rounds took meanwhile is not known: an old header is gone")
            context.work.moved_to(head)
            return False
        next_round = context.committed.entry.round + 1
        context.work.account.branch_left(chain.entry(since).round, next_round)
        abandoned = chain.only_in(since, head)
        for lost in abandoned:
            header = self._header(lost)
            if header is not None:
                _, tokens = self._mine(header)
                context.work.abandoned(lost, header.parent, tokens, next_round)
        for new in reversed(chain.only_in(head, since)):
            header = self._header(new)
            if header is not None:
                self._take_out(new, header)
        context.work.moved_to(head)
        return bool(abandoned)

    def _header(self, head: Digest) -> Header | None:
        try:
            return self._context.committed.header(head)
        except CannotRebuildError as error:
            log.warning("what an old round took is not known", problem=str(error))
            return None

    def _mine(self, header: Header) -> tuple[int, int]:
        """My position in a header and my tokens in it; 0 tokens if I am not in it."""
        me = self._context.me
        for position, member in enumerate(header.members):
            if member.peer_id == me:
                return position, member.tokens
        return 0, 0

    def _take_out(self, head: Digest, header: Header) -> None:
        position, tokens = self._mine(header)
        taken: list[bool] | None = None
        if tokens:
            try:
                averages = self._averages.get(head) or self._context.committed.averages_of(header)
                taken = chunks_with(averages, position)
            except CannotRebuildError:
                log.warning("which chunks an old round took is not known", round=header.round)
        sync_set = self._context.committed.sync_sets.of_round(header.round)
        self._context.work.committed_by(
            head,
            header.parent,
            header.ring_id,
            tokens,
            None if taken is None else mask_of(taken) << sync_set.first_chunk,
            counts_spans=taken is not None and spans_taken(sum(taken), len(taken)),
            exchanged=sync_set.mask,
        )

    async def drop_if_stale(self) -> None:
        """Work that missed too many rounds goes, and if all did its data back to the pool."""
        context = self._context
        next_round = context.committed.entry.round + 1
        if await context.run_in_thread(lambda: context.work.drop_stale(next_round)):
            await context.trainer.forget()
            context.feed.forget_progress()

    # Files

    async def save(self, *, now: bool = False) -> None:
        """Residual, and what the trainer keeps, to disk where it is time."""
        context = self._context
        if not context.committed.is_loaded:
            return  # nothing is carried yet, and the disk may hold what has not been read
        due = now or trio.current_time() > self._save_seconds
        if not (due or context.work.must_save):
            return
        try:
            await context.run_in_thread(context.work.save)
            if due:
                await self._save_trainer(wait=now)
                pause_seconds = max(SAVE_SECONDS, context.trainer.save_seconds / SAVE_SHARE)
                self._save_seconds = trio.current_time() + pause_seconds
        except DiskError as error:
            context.health.failed("residual", error)
        else:
            context.health.wrote("residual")

    async def _save_trainer(self, *, wait: bool) -> None:
        trainer = self._context.trainer
        if wait:
            await trainer.is_saved()  # what came before
        await trainer.save(await self.momentum.settle())
        if wait:
            await trainer.is_saved()

    # Held-out loss

    async def evaluate(self, round_seconds: float) -> None:
        """Loss on held-out text, if it is its turn, in a part of the seconds that a round lasts."""
        started = trio.current_time()
        paths = self._context.heldout_paths()
        if started < self._evaluate_seconds or not paths:
            return
        evaluated = await self._context.trainer.evaluate(
            paths, EVALUATION_TOKENS_MAX, EVALUATION_ROUND_SHARE * round_seconds
        )
        now = trio.current_time()
        self._evaluate_seconds = now + (now - started) / EVALUATION_SHARE
        if evaluated is not None and math.isfinite(evaluated.loss):
            self._progress.heldout_loss = self._fresh_heldout_loss = evaluated.loss
            self._context.metrics.heldout_loss.set(evaluated.loss)

    def take_heldout_loss(self) -> float | None:
        """The loss of an evaluation since the last call, for the curve."""
        loss, self._fresh_heldout_loss = self._fresh_heldout_loss, None
        return loss
