"""The owner's limits and schedule of one node: checked, kept on the disk, applied at once, and
shown, limits beside the use.

A change is checked against what the run needs here. It is refused as a whole, with the least that
would do, before anything is kept or applied.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog
import trio

from gossamer.node.base.limit_periods import parse_limit
from gossamer.node.base.rate_limit import BITS, MBIT, Limits, RateLimit, rate_limit_of
from gossamer.node.base.settings.owner_limits import SETTING_OF, changed, with_limits
from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.base.threads import RunInThread, SlowRead
from gossamer.node.base.ticks import sleep_to_tick
from gossamer.node.machine.limit_uses import NodeUses
from gossamer.node.storage.owner_orders import read_limits, write_limits
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.limit_status import limit_statuses, rule_statuses
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.status import LimitStatus, RuleStatus

LOOK_SECONDS = 5.0
"""Time between two looks at the use: a person who has set a limit waits for the next one. A look
asks the system and the driver of the card, in a thread."""

_KEPT = "limits"
"""The kind of the file, for the health of the disk."""

log = structlog.get_logger("node")

Check = Callable[[Settings], Awaitable[Sequence[str]]]
"""Returns a sentence for each limit that is too low for the run, with the least that would do."""

Apply = Callable[[Settings], None]
"""Makes the parts of the node obey. It returns at once."""


class OwnerLimits:
    """The owner's limits of one node in one life.

    It has more than 12 attributes: what is kept, what is read, and what obeys.
    """

    def __init__(self, given: Settings, state_dir: StateDir, run_in_thread: RunInThread) -> None:
        """
        Args:
            given: settings from flags, variables and the file.
            run_in_thread: leaves a thread to itself when it is cancelled: the driver of a card that
                is asked may hang.

        Raises:
            StateDirError: what the owner set in earlier lives is damaged on the disk.
            ConfigError: some of it is no value that this version takes.
        """
        self._given = given
        self._path = state_dir.limits_path
        self._health = state_dir.health
        self._run_in_thread = run_in_thread
        self._kept = read_limits(self._path)
        self.settings = with_limits(given, self._kept)
        """The settings that hold now."""
        self.rates = Limits(
            rate_limit_of(self.settings.up_limit), rate_limit_of(self.settings.down_limit)
        )
        self.check: Check | None = None
        self._applies: list[Apply] = [self._apply_rates]
        self._changing = trio.Lock()
        self._uses: dict[str, float] = {}
        self._sizes: Mapping[str, float] = {}
        self._slow_read = SlowRead(run_in_thread)
        self.notes: dict[str, str] = {}
        """What keeps a limit from holding here, by its name, for people."""

    def join(self, apply: Apply) -> None:
        """A part of the node obeys from now on, beginning with the next change."""
        self._applies.append(apply)

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
            found = await self.check(settings) if self.check is not None else ()
            if problems := [each for each in found if each.partition(":")[0] in changes]:
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

    async def run(self, read: Callable[[Settings], NodeUses], metrics: Metrics) -> None:
        """Looks at the use every `LOOK_SECONDS` until cancelled, and tries a disk again that did
        not take a change.

        Args:
            read: returns what a node with these settings uses now, apart from its line. It blocks
                for milliseconds.
        """
        moved = self._moved()
        at_seconds = trio.current_time()

        def show_limits(_: Settings) -> None:
            metrics.uses.set_limits({name: self._limit_of(name) for name in SETTING_OF})

        # A change shows at once: a look may wait for a slow read.
        self.join(show_limits)
        while True:
            settings = self.settings
            used = await self._slow_read.ask(functools.partial(read, settings))
            if used is not None:
                self._uses.update(used.uses)
                self._sizes = used.sizes
                metrics.uses.set_used(
                    used.uses["memory"], used.trainer_bytes, used.trainer_cpu_seconds
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

    def _moved(self) -> dict[str, int]:
        return {"upload": self.rates.up.moved_bytes, "download": self.rates.down.moved_bytes}

    def status(self) -> tuple[LimitStatus, ...]:
        """Returns each limit beside its use."""
        return limit_statuses(
            self.settings, self._kept, self._limit_of, used=self._uses, notes=self.notes
        )

    def schedule(self) -> tuple[RuleStatus, ...]:
        """Returns what says when the node trains."""
        return rule_statuses(self.settings, self._kept)

    def _limit_of(self, name: str) -> float | None:
        """The present number of a limit; None for no limit, or where nothing can tell."""
        if name in ("upload", "download"):
            rate: RateLimit = self.rates.up if name == "upload" else self.rates.down
            return rate.bytes_per_second * BITS / MBIT if rate.is_limited else None
        value = getattr(self.settings, SETTING_OF[name])
        if isinstance(value, str):
            return self._sizes.get(name) if value else None
        return float(value) if value else None
