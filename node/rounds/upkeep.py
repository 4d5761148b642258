"""What has to be done between rounds: settle, save, evaluate."""

from __future__ import annotations

import math

import structlog
import trio

from gossamer.node.rounds.parts import Parts, Progress
from gossamer.node.rounds.residual import Contribution, settle
from gossamer.node.storage.committed import CannotRebuildError, chunks_with
from gossamer.node.storage.state_dir import DiskFullError
from gossamer.protocol.chain import ChunkFinal, Header, spans_taken
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest

SAVE_SECONDS = 30.0
"""Residual that is only rounding error, and the inner optimiser, are written at most this often."""

EVALUATION_SHARE = 0.02
"""Part of the wall time that evaluating on held-out text may take."""

EVALUATION_TOKENS_MAX = 16_384
"""For a curve to look at; whoever wants the exact loss evaluates the export on all of it."""

log = structlog.get_logger("node")


class Upkeep:
    """The work account, the files that follow it, and held-out loss."""

    def __init__(self, parts: Parts, progress: Progress) -> None:
        self._parts = parts
        self._progress = progress
        self._saved_seconds = -math.inf
        self._evaluate_seconds = -math.inf
        self._fresh_heldout_loss: float | None = None

    # Work

    async def settle(
        self,
        header: Header,
        finals: tuple[ChunkFinal, ...],
        contribution: Contribution | None,
    ) -> None:
        """My share of a committed round, if I have one, leaves `pending` and the account."""
        parts = self._parts
        members = [member.peer_id for member in header.members]
        if parts.me not in members:
            return
        position = members.index(parts.me)
        taken = chunks_with(finals, position)
        counted = spans_taken(sum(taken), len(taken))

        def take() -> None:
            went = settle(parts.trainer.pending, parts.committed.plan, taken, contribution)
            tokens = header.members[position].tokens
            parts.work.committed(header.digest, header.round, tokens, counted, went)

        await parts.run_in_thread(take)

    async def settle_earlier_rounds(self) -> None:
        """Takes out of the carried work what rounds took after it was last written to disk."""
        committed = self._parts.committed
        since = Digest(self._parts.work.account.head)
        path = committed.chain.path_between(since, committed.head) if since else None
        for head in path or ():
            try:
                header = committed.chain.header(head)
                await self.settle(header, committed.finals_of(header), None)
            except (CannotRebuildError, OSError, RemoteProtocolError) as error:
                log.warning("an old round is damaged; its share is not settled", error=str(error))

    def drop_if_stale(self) -> None:
        """Work that missed too many rounds goes, and its data back to the pool."""
        if self._parts.work.is_stale(self._parts.committed.entry.round + 1):
            self._parts.work.drop("stale")
            self._parts.feed.forget_progress()

    # Files

    async def save(self, *, now: bool = False) -> None:
        """Residual and inner optimiser to disk, where it is time."""
        parts = self._parts
        due = now or trio.current_time() - self._saved_seconds > SAVE_SECONDS
        if not (due or parts.work.must_save):
            return
        try:
            head = parts.committed.head
            await parts.run_in_thread(lambda: parts.work.save(head))
            if due:
                self._saved_seconds = trio.current_time()
                await parts.trainer.save()
        except (DiskFullError, OSError) as error:
            log.error("the residual was not written", problem=str(error))

    # Held-out loss

    async def evaluate(self) -> None:
        """Loss on held-out text, if it is its turn."""
        started = trio.current_time()
        paths = self._parts.heldout_paths()
        if started < self._evaluate_seconds or not paths:
            return
        evaluated = await self._parts.trainer.evaluate(paths, EVALUATION_TOKENS_MAX)
        now = trio.current_time()
        self._evaluate_seconds = now + (now - started) / EVALUATION_SHARE
        if evaluated is not None and math.isfinite(evaluated.loss):
            self._progress.heldout_loss = self._fresh_heldout_loss = evaluated.loss
            self._parts.metrics.heldout_loss.set(evaluated.loss)

    def take_heldout_loss(self) -> float | None:
        """The loss of an evaluation since the last call, for the curve."""
        loss, self._fresh_heldout_loss = self._fresh_heldout_loss, None
        return loss
