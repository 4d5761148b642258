"""Looks every few seconds whether the owner's hours and the use of the machine let the node train.

The hours are looked up anew each time, so a clock that is set, a change to summer time and a
machine that slept need no case of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from typing import TypeVar

import msgspec
import structlog
import trio

from gossamer.node.base.pausing import Hold, PauseRules, Reading
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.threads import RunInThread, SlowRead
from gossamer.node.base.work_hours import parse_work_hours
from gossamer.node.machine.machine_use import MachineUse
from gossamer.node.telemetry.pause_text import pause_text

LOOK_SECONDS = 5.0
"""Time between two looks: a person waits no longer for the device, and a look costs some
milliseconds."""

_T = TypeVar("_T")

_READ_SETTINGS = "on_battery, on_metered, pause_for or only_when_idle"
"""Settings for which the system is asked."""

log = structlog.get_logger("node")


def pause_rules(settings: Settings, zone: tzinfo | None = None) -> PauseRules:
    """Returns the rules of the owner's settings. `zone`: of the hours; None: this machine's."""
    hours = parse_work_hours(settings.work_hours) if settings.work_hours else None
    return PauseRules(
        hours,
        zone,
        runs_on_battery=settings.on_battery == "on",
        runs_on_metered=settings.on_metered == "on",
        pause_for=settings.pause_for,
        idle_seconds=settings.only_when_idle,
        gpu_celsius_max=settings.gpu_temperature_max,
    )


class PauseWatch:
    """Applies the owner's rules to what the machine does."""

    def __init__(
        self,
        rules: PauseRules,
        use: MachineUse,
        unix_seconds: Callable[[], float],
        run_in_thread: RunInThread,
    ) -> None:
        """`run_in_thread`: leaves a thread to itself when it is cancelled."""
        self._rules = rules
        self._use = use
        self._unix_seconds = unix_seconds
        self._slow_read = SlowRead(run_in_thread)
        self._failed: set[str] = set()
        """Settings whose reader has failed, and that were told of."""
        self._told: tuple[tuple[str, str], ...] = ()
        self._is_hot = False
        """Whether the card was too hot at the newest look."""
        self._changed = trio.Event()
        self.disk_problem: Callable[[], str] = str
        """Returns why the owner's limit of the disk is too low for the run; empty if it is not."""
        self.place_problem: Callable[[], str] = str
        """Returns why the state directory is gone; empty if it is there. It is asked in a thread,
        with the system."""

    def change(self, rules: PauseRules) -> None:
        """Other rules hold from now on; `run` looks at once."""
        self._rules = rules
        self._changed.set()

    async def look(self) -> tuple[Hold, ...]:
        """Returns what keeps the node from training now, and logs it if it is new."""
        if self._rules.zone is None:
            time.tzset()  # the zone of a machine that travels changes
        now = self._unix_seconds()
        reading = await self._slow_read.ask(lambda: self._read(now))
        if reading is None:
            self._tell_failure(_READ_SETTINGS, "the system hangs")
            reading = Reading(now)  # the clock alone counts
        reading = msgspec.structs.replace(
            reading,
            was_hot=self._is_hot,
            disk_problem=self.disk_problem() or reading.disk_problem,
        )
        holds = self._rules.holds(reading)
        self._is_hot = any(hold.reason == "temperature" for hold in holds)
        self._tell(holds)
        return holds

    async def run(self, hold_off: Callable[[Sequence[Hold]], None]) -> None:
        """Tells what keeps the node from training at each look, until cancelled."""
        while True:
            self._changed = trio.Event()
            hold_off(await self.look())
            with trio.move_on_after(LOOK_SECONDS):
                await self._changed.wait()

    def _read(self, now: float) -> Reading:
        """Reads what the rules ask for, in a thread."""
        rules, use = self._rules, self._use
        on_battery = None if rules.runs_on_battery else self._ask("on_battery", use.is_on_battery)
        metered = None if rules.runs_on_metered else self._ask("on_metered", use.is_metered)
        programs: tuple[str, ...] | None = None
        if rules.pause_for:
            if not use.sees_programs():
                self._tell_failure("pause_for", "programs of other users are hidden")
            programs = self._ask("pause_for", lambda: use.running_programs(rules.pause_for))
        idle = None
        if rules.idle_seconds:
            idle = self._ask("only_when_idle", use.read_idle)
            if idle is None:
                self._tell_failure("only_when_idle", "nothing tells whether somebody uses it")
        return Reading(
            now,
            is_on_battery=on_battery,
            is_metered=metered,
            idle_seconds=None if idle is None else idle.seconds,
            programs=programs or (),
            gpu_celsius=self._read_temperature(),
            disk_problem=self.place_problem(),
        )

    def _read_temperature(self) -> float | None:
        if not self._rules.gpu_celsius_max:
            return None
        celsius = self._ask("gpu_temperature_max", self._use.read_gpu_celsius)
        if celsius is None:
            self._tell_failure("gpu_temperature_max", "no driver says how hot the card is")
        return celsius

    def _ask(self, setting: str, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except Exception as error:  # a reader of the system never ends the node
            self._tell_failure(setting, str(error) or repr(error))
            return None

    def _tell_failure(self, setting: str, problem: str) -> None:
        if setting not in self._failed:  # once: a reader that failed mostly fails again
            self._failed.add(setting)
            log.warning(
                f"{setting} may have no effect on this machine; `gossamer doctor` says what to do",
                problem=problem,
                fields={"event": "a setting may have no effect", "setting": setting},
            )

    def _tell(self, holds: Sequence[Hold]) -> None:
        told = tuple((hold.reason, hold.text) for hold in holds)
        if told == self._told:
            return
        self._told = told
        now = self._unix_seconds()
        for hold in holds:
            end = hold.resumes_at
            resumes_at = None if end is None else datetime.fromtimestamp(end, self._rules.zone)
            text = pause_text(hold, resumes_at, now)
            log.info(
                f"this node may not train now: {text}",
                fields={"event": "may not train now", "reason": hold.reason, "text": hold.text},
            )
        if not holds:
            log.info("neither the hours nor the use of the machine keep this node from training")
