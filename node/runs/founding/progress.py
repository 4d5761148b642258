"""The progress of a founding: bars on a terminal, and lines of the log elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType

import structlog
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from gossamer.node.base.terminal.terminal import open_console

LINE_SECONDS = 10.0
"""Time between two lines of a stage. More would bury the rest of a log, and less tells too late."""

_STEPS = 200
_REPORT_SECONDS = 1.0

Clock = Callable[[], float]

TELL_SECONDS = 1.0
"""Time between two words on the progress for `gossamer status`: people look no oftener."""

log = structlog.get_logger("node")


class Thinned:
    """Says which reports of a stage are worth passing on: two hundred, or one a second."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._passed: dict[str, tuple[int, float]] = {}

    def is_due(self, stage: str, done: int, total: int) -> bool:
        """Returns whether to pass on a report, and takes note of it."""
        step, now = _STEPS * done // max(1, total), self._clock()
        last_step, last = self._passed.get(stage, (-1, now))
        if step == last_step and now - last < _REPORT_SECONDS:
            return False
        self._passed[stage] = (step, now)
        return True


class ProgressLines:
    """One line when a stage begins, and others at most every `LINE_SECONDS`."""

    def __init__(
        self, say: Callable[[str], object] | None = None, clock: Clock = time.monotonic
    ) -> None:
        """`say`: None is the log, as it is configured by now."""
        self._say = log.info if say is None else say
        self._clock = clock
        self._begun: dict[str, float] = {}
        self._said = 0.0

    def show(self, stage: str, done: int, total: int) -> None:
        """Tells how far a stage is, in bytes. This is the `Progress` callback of the corpus."""
        now = self._clock()
        if stage not in self._begun:
            self._begun[stage] = self._said = now
            self._say(f"{stage}: {_megabytes(total)}")
        elif now - self._said >= LINE_SECONDS:
            self._said = now
            self._say(f"{stage}: {_how_far(done, total, now - self._begun[stage])}")


class ProgressBars:
    """Shows bars on a terminal, and `ProgressLines` elsewhere."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """`tell`: is told how far the founding is, wherever it is shown."""
        self._tell = tell
        self._told_seconds = -math.inf
        console = open_console(sys.stderr)
        self._lines = ProgressLines()
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressBars:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        """Shows the progress of a stage. This is the `Progress` callback of the corpus code."""
        if (now := time.monotonic()) >= self._told_seconds + TELL_SECONDS or done >= total:
            self._tell(f"{stage}, {done / max(1, total):.0%} done")
            self._told_seconds = now
        if self._progress is None:
            self._lines.show(stage, done, total)
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)


def _how_far(done: int, total: int, seconds: float) -> str:
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{done / max(1, total):.1%} of {_megabytes(total)}, {rate / 1e6:.1f} MB/s"
    if not rate:
        return text
    return f"{text}, {_duration((total - done) / rate)} left"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
