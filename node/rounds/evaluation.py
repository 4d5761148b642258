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
from gossamer.node.telemetry.loss_history import Heldout
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress
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
        progress.history, progress.heldout = await self._run_in_thread(self._file.load)
        self._metrics.set_heldout(progress.heldout)

    async def save(self) -> None:
        """Writes both. DiskError."""
        history, heldout = self._progress.history, self._progress.heldout
        points, stride = history.points(), history.stride
        await self._run_in_thread(lambda: self._file.save(points, stride, heldout))


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

    async def evaluate(self, round_number: int, round_seconds: float) -> None:
        """Evaluates if it is due.

        Args:
            round_number: of the state in `base`.
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
        self._note(round_number, evaluated)

    @property
    def can_evaluate(self) -> bool:
        """Whether the held-out text is here."""
        return bool(self._heldout_paths())

    async def evaluate_now(self, round_number: int) -> None:
        """Evaluates although it may not be due: nobody waits any more."""
        paths = self._heldout_paths()
        if paths:
            evaluated = await self._trainer.evaluate(paths, EVALUATION_TOKENS_MAX, FINAL_SECONDS)
            self._note(round_number, evaluated)

    def _note(self, round_number: int, evaluated: Evaluated | None) -> None:
        if evaluated is not None and math.isfinite(evaluated.loss):
            heldout = Heldout(round_number, evaluated.loss, evaluated.bits_per_byte)
            self.progress.evaluated(heldout)
            self._metrics.set_heldout(heldout)


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
