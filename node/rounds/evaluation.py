"""How good the model is: its loss on held-out text, and samples, the owner's prompts continued.

Both are taken between rounds or by a device that is free, in a small share of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer import Trainer
from gossamer.node.storage.owner_files import (
    LossFile,
    RoundSamples,
    Sample,
    SamplesFile,
    with_newest,
)
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress
from gossamer.node.telemetry.status import LossPoint
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import DataConfig
from gossamer.trainer.ipc.messages import Evaluated
from gossamer.trainer.ipc.messages import Sample as SampleTask

EVALUATION_SHARE = 0.02
"""Upper bound on the part of the wall time that evaluating may take."""

EVALUATION_ROUND_SHARE = 0.05
"""Upper bound on one evaluation, as a part of a round: the other peers wait for its end."""

EVALUATION_TOKENS_MAX = 16_384
"""Tokens of an evaluation: enough for a curve. The exact loss is the exported model's on all
held-out text."""

FINAL_SECONDS = 60.0
"""Limit of the evaluation of the final state. No peer waits for it, but people do."""

SAMPLE_TOKENS = 64
"""Tokens of a continuation: a few lines show whether the model writes text."""

TEXT_CHARACTERS_MAX = 2000
"""Of a continuation. A token has a few characters, and some of an imported tokenizer have many."""

TEMPERATURE = 0.8
"""As `gossamer generate`."""

SAMPLE_SHARE = 0.01
"""Upper bound on the part of the wall time that the samples may take."""

SAMPLE_ROUND_SHARE = 0.05
"""Upper bound on the samples of one round, as a part of the round: the others may wait for it."""

SAMPLE_SECONDS_MIN = 0.5
"""The samples of a short round get so much, or there would be no text. `SAMPLE_SHARE` holds."""

SAMPLE_SECONDS_MAX = 10.0
"""The owner who pauses the node waits for the end of the samples."""

log = structlog.get_logger("node")


class LossCurve:
    """The curve of losses on the disk: it goes on where an earlier life ended."""

    def __init__(
        self, file: LossFile, progress: Progress, metrics: Metrics, run_in_thread: RunInThread
    ) -> None:
        self._file = file
        self._progress = progress
        self._metrics = metrics
        self._run_in_thread = run_in_thread

    async def load(self) -> None:
        """Takes over the curve and the newest held-out loss."""
        progress = self._progress
        progress.history, heldout_loss = await self._run_in_thread(self._file.load)
        progress.heldout_loss = heldout_loss
        if heldout_loss is None:
            return
        self._metrics.heldout_loss.set(heldout_loss)
        points = [p for p in progress.history.points() if p.heldout_loss == heldout_loss]
        progress.heldout_bits_per_byte = points[-1].heldout_bits_per_byte if points else None
        if progress.heldout_bits_per_byte is not None:
            self._metrics.heldout_text_loss.set(progress.heldout_bits_per_byte)

    async def save(self) -> None:
        """Writes both. DiskError."""
        history, heldout_loss = self._progress.history, self._progress.heldout_loss
        points, stride = history.points(), history.stride
        await self._run_in_thread(lambda: self._file.save(points, stride, heldout_loss))


class HeldoutLoss:
    """The loss on held-out text, as often as its share of the time allows."""

    def __init__(
        self,
        trainer: Trainer,
        heldout_paths: Callable[[], list[str]],
        progress: Progress,
        metrics: Metrics,
    ) -> None:
        """`heldout_paths`: files of the held-out shards; empty until all of them are here."""
        self._trainer = trainer
        self._heldout_paths = heldout_paths
        self.progress = progress
        self._metrics = metrics
        self._due_seconds = -math.inf
        self._fresh_loss: float | None = None

    async def evaluate(self, round_seconds: float) -> None:
        """Evaluates if it is due.

        Args:
            round_seconds: how long a round lasts; the evaluation takes a small part of it.
        """
        started = trio.current_time()
        paths = self._heldout_paths()
        if started < self._due_seconds or not paths:
            return
        evaluated = await self._trainer.evaluate(
            paths, EVALUATION_TOKENS_MAX, EVALUATION_ROUND_SHARE * round_seconds
        )
        now = trio.current_time()
        self._due_seconds = now + (now - started) / EVALUATION_SHARE
        self._note(evaluated)

    async def evaluate_now(self) -> bool:
        """Evaluates although it may not be due: nobody waits any more. Returns whether it did."""
        paths = self._heldout_paths()
        if not paths:
            return False
        self._note(await self._trainer.evaluate(paths, EVALUATION_TOKENS_MAX, FINAL_SECONDS))
        return self._fresh_loss is not None

    def _note(self, evaluated: Evaluated | None) -> None:
        if evaluated is not None and math.isfinite(evaluated.loss):
            self.progress.heldout_loss = self._fresh_loss = evaluated.loss
            self._metrics.heldout_loss.set(evaluated.loss)
            bits = self.progress.heldout_bits_per_byte = evaluated.bits_per_byte
            self._metrics.heldout_text_loss.set(math.nan if bits is None else bits)

    def point(self, round_number: int) -> LossPoint:
        """The curve's point of a round, with the loss of an evaluation since the last call."""
        progress = self.progress
        loss, self._fresh_loss = self._fresh_loss, None
        return LossPoint(
            round=round_number,
            loss=progress.loss,
            heldout_loss=loss,
            bits_per_byte=progress.bits_per_byte,
            heldout_bits_per_byte=None if loss is None else progress.heldout_bits_per_byte,
        )


def sample_task(
    prompts: tuple[str, ...], data: DataConfig, path: Callable[[Digest], Path]
) -> SampleTask:
    """Returns what the trainer is to do for the owner's prompts; without any, nothing is due.

    Args:
        path: returns the file of a block.
    """
    digest = data.tokenizer_digest
    return SampleTask(
        prompts=prompts,
        tokens=SAMPLE_TOKENS,
        temperature=TEMPERATURE,
        seed=0,
        seconds_max=0.0,
        tokenizer=data.tokenizer,
        tokenizer_path=str(path(Digest(digest))) if digest else "",
    )


class ModelSamples:
    """The samples of one node: as often as the owner wants, and as the share of the time allows."""

    def __init__(
        self,
        task: SampleTask,
        every_rounds: int,
        trainer: Trainer,
        file: SamplesFile,
        run_in_thread: RunInThread,
    ) -> None:
        """
        Args:
            task: what the trainer is to do, as often as it is due; see `sample_task`.
        """
        self._task = task
        self._every_rounds = every_rounds
        self._trainer = trainer
        self._file = file
        self._run_in_thread = run_in_thread
        self._due_seconds = -math.inf
        self._problem = ""
        self.kept: tuple[RoundSamples, ...] = ()
        """Oldest round first."""

    async def load(self) -> None:
        """Takes over the samples of earlier lives."""
        self.kept = await self._run_in_thread(self._file.load)

    async def take(self, round_number: int, round_seconds: float) -> None:
        """Takes samples if they are due. The trainer is between rounds, and nobody writes `base`.

        Args:
            round_number: of the state in `base`.
            round_seconds: how long a round lasts; the samples take a small part of it.
        """
        if not self._is_due(round_number):
            return
        started = trio.current_time()
        share = max(SAMPLE_SECONDS_MIN, SAMPLE_ROUND_SHARE * round_seconds)
        seconds = min(SAMPLE_SECONDS_MAX, share)
        task = msgspec.structs.replace(self._task, seconds_max=seconds)
        answer = await self._trainer.sample(task)
        now = trio.current_time()
        self._due_seconds = now + (now - started) / SAMPLE_SHARE
        if answer is None:
            return
        self._tell(answer.problem)
        if answer.problem:
            return
        samples = tuple(
            Sample(prompt, text[:TEXT_CHARACTERS_MAX])
            for prompt, text in zip(task.prompts, answer.texts, strict=True)
        )
        self.kept = kept = with_newest(self.kept, RoundSamples(round_number, samples))
        try:
            await self._run_in_thread(lambda: self._file.save(kept))
        except DiskError as error:
            self._tell(str(error))

    def _is_due(self, round_number: int) -> bool:
        if not self._task.prompts or trio.current_time() < self._due_seconds:
            return False
        newest = self.kept[-1].round if self.kept else -math.inf
        return round_number < newest or round_number >= newest + self._every_rounds

    def _tell(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("there are no samples of the model", problem=problem)
        self._problem = problem
