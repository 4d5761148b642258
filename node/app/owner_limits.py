"""The owner's limits and schedule of one node: checked, kept on the disk, applied at once, and
shown, limits beside the use.

A change is checked against what the run needs here. It is refused as a whole, with the least that
would do, before anything is kept or applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog
import trio

from gossamer.node.base.limit_periods import parse_limit
from gossamer.node.base.owner_limits import (
    SCHEDULE,
    SETTING_OF,
    UNITS,
    changed,
    rule_text,
    setting_of,
    source_of,
    with_limits,
)
from gossamer.node.base.rate_limit import BITS, MBIT, Limits, RateLimit, rate_limit_of
from gossamer.node.base.settings import ConfigError, Settings
from gossamer.node.base.threads import RunInThread
from gossamer.node.base.ticks import sleep_to_tick
from gossamer.node.machine.limit_uses import NodeUses
from gossamer.node.storage.limits_file import read_limits, write_limits
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.status import LimitStatus, RuleStatus

LOOK_SECONDS = 5.0
"""Time between two looks at the use: a person who has set a limit waits for the next one. A look
asks the system and the driver of the card, in a thread."""

READ_SECONDS_MAX = 10.0
"""Limit of the wait for what the machine says; a driver may hang."""

_KEPT = "limits"
"""The kind of the file, for the health of the disk."""

log = structlog.get_logger("node")

Check = Callable[[Settings], Sequence[str]]
"""Returns a sentence for each limit that is too low for the run, with the least that would do."""

Apply = Callable[[Settings], None]
"""Makes the parts of the node obey. It returns at once."""


class Reads(Protocol):
    """The reader of what a node uses now, apart from its line. It blocks for milliseconds."""

    def __call__(self, settings: Settings) -> NodeUses:
        """Returns what the node uses now, with these settings."""


class OwnerLimits:
    """The owner's limits of one node in one life.

    It has more than 12 attributes: what is kept, what is read, and what obeys.
    """

    def __init__(
        self, given: Settings, state_dir: StateDir, run_in_thread: RunInThread, kept: dict[str, str]
    ) -> None:
        """
        Args:
            given: settings from flags, variables and the file.
            run_in_thread: leaves a thread to itself when it is cancelled: the driver of a card that
                is asked may hang.
            kept: what the owner has set on a running node, as `read_limits` returns it.
        """
        self._given = given
        self._path = state_dir.limits_path
        self._health = state_dir.health
        self._run_in_thread = run_in_thread
        self._kept = kept
        self.settings = with_limits(given, kept)
        """The settings that hold now."""
        self.rates = Limits(
            rate_limit_of(self.settings.up_limit), rate_limit_of(self.settings.down_limit)
        )
        self._checks: list[Callable[[], Check]] = []
        self._applies: list[Apply] = [self._apply_rates]
        self._changing = trio.Lock()
        self._uses: dict[str, float] = {}
        self._sizes: Mapping[str, float] = {}
        self._is_reading = False
        """Whether a thread reads the use. Only that thread sets it."""
        self.notes: dict[str, str] = {}
        """What keeps a limit from holding here, by its name, for people."""

    @classmethod
    def of(cls, given: Settings, state_dir: StateDir, run_in_thread: RunInThread) -> OwnerLimits:
        """Returns the limits that hold at a start.

        Raises:
            StateDirError: those on the disk are damaged.
            ConfigError: one of them is no value that this version takes.
        """
        return cls(given, state_dir, run_in_thread, read_limits(state_dir.limits_path))

    def join(self, apply: Apply, make_check: Callable[[], Check] | None = None) -> None:
        """A part of the node obeys from now on, beginning with the next change.

        Args:
            make_check: makes the check of a change, which then runs in a thread.
        """
        self._applies.append(apply)
        if make_check is not None:
            self._checks.append(make_check)

    async def change(self, changes: Mapping[str, str]) -> str:
        """Changes limits and the schedule: on the disk first, and then at once. A disk that is full
        keeps nobody from a lower limit of the disk.

        Args:
            changes: a text such as `10`, `off` or `default` by the name of each.

        Returns:
            The reason why the disk does not take them, so that they will not hold over a restart;
            empty if it does. `run` tries again until it does.

        Raises:
            ConfigError: a change is none, or the run needs more; nothing was changed.
        """
        async with self._changing:
            kept = changed(self._kept, changes)
            settings = with_limits(self._given, kept)
            new = {setting_of(name) for name in changes}
            checks = [make() for make in self._checks]
            found = await self._run_in_thread(lambda: [check(settings) for check in checks])
            problems = [
                problem
                for sentences in found
                for problem in sentences
                if SETTING_OF[problem.partition(":")[0]] in new
            ]
            if problems:
                raise ConfigError(problems)
            await self._keep(kept)
            self._kept, self.settings = kept, settings
            for apply in self._applies:
                apply(settings)
            problem = self._health.problem_of(_KEPT)
        words = ", ".join(f"{name} {text}" for name, text in changes.items())
        log.info(
            f"the owner sets {words}",
            fields={"event": "the owner sets limits", "limits": dict(changes)},
        )
        if problem:
            log.warning("what the owner sets holds only until this node ends", problem=problem)
        return problem

    async def _keep(self, kept: Mapping[str, str]) -> None:
        with self._health.writing(_KEPT):
            await self._run_in_thread(lambda: write_limits(self._path, kept))

    async def _keep_again(self) -> None:
        """Tries the disk again if it has not taken what the owner has set."""
        async with self._changing:
            if self._health.problem_of(_KEPT):
                await self._keep(self._kept)

    def _apply_rates(self, settings: Settings) -> None:
        self.rates.up.change([parse_limit(text) for text in settings.up_limit])
        self.rates.down.change([parse_limit(text) for text in settings.down_limit])

    # What is used

    async def run(self, reads: Reads, metrics: Metrics, read_in_thread: RunInThread) -> None:
        """Looks at the use every `LOOK_SECONDS` until cancelled, and tries a disk again that did
        not take a change.

        Args:
            read_in_thread: leaves a thread to itself when it is cancelled.
        """
        moved = self._moved()
        at_seconds = trio.current_time()

        def show_limits(_: Settings) -> None:
            metrics.uses.set_limits({name: self._limit_of(name) for name in SETTING_OF})

        # A change shows at once: a look may wait for a slow read.
        self.join(show_limits)
        while True:
            if (read := await self._read_in_time(reads, read_in_thread)) is not None:
                self._uses.update(read.uses)
                self._sizes = read.sizes
                metrics.uses.set_used(
                    read.uses["memory"], read.trainer_bytes, read.trainer_cpu_seconds
                )
            show_limits(self.settings)
            moved_now = self._moved()
            metrics.uses.set_moved(moved_now["upload"], moved_now["download"])
            await self._keep_again()
            await sleep_to_tick(LOOK_SECONDS)
            before, since = moved, at_seconds
            moved, at_seconds = self._moved(), trio.current_time()
            for name, num_bytes in moved.items():
                rate = (num_bytes - before[name]) / (at_seconds - since)
                self._uses[name] = rate * BITS / MBIT

    async def _read_in_time(self, reads: Reads, read_in_thread: RunInThread) -> NodeUses | None:
        """Returns what the node uses now; None where the machine does not say it in time.

        A driver that hangs costs one thread and no more: it is not asked again before it has
        answered. Each look would leave another thread behind, until none is left for the disk.
        """
        settings = self.settings

        def read() -> NodeUses:
            self._is_reading = True
            try:
                return reads(settings)
            finally:
                self._is_reading = False

        if self._is_reading:
            return None
        with trio.move_on_after(READ_SECONDS_MAX):
            return await read_in_thread(read)
        return None

    def _moved(self) -> dict[str, int]:
        return {"upload": self.rates.up.moved_bytes, "download": self.rates.down.moved_bytes}

    def status(self) -> tuple[LimitStatus, ...]:
        """Returns each limit beside its use."""
        return tuple(
            LimitStatus(
                name=name,
                setting=setting,
                unit=UNITS[name],
                limit=self._limit_of(name),
                text=_text_of(getattr(self.settings, setting)),
                used=self._uses.get(name),
                source=source_of(name, self._kept),
                note=self.notes.get(name, ""),
            )
            for name, setting in SETTING_OF.items()
        )

    def schedule(self) -> tuple[RuleStatus, ...]:
        """Returns what says when the node trains."""
        return tuple(
            RuleStatus(
                name=name,
                text=rule_text(self.settings, name),
                source=source_of(name, self._kept),
            )
            for name in SCHEDULE
        )

    def _limit_of(self, name: str) -> float | None:
        """The present number of a limit; None for no limit, or where nothing can tell."""
        if name in ("upload", "download"):
            rate: RateLimit = self.rates.up if name == "upload" else self.rates.down
            return rate.bytes_per_second * BITS / MBIT if rate.is_limited else None
        value = getattr(self.settings, SETTING_OF[name])
        if isinstance(value, str):
            return self._sizes.get(name) if value else None
        return float(value) if value else None


def _text_of(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value) if value else ""
