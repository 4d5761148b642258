"""Looks every few seconds whether the owner's hours and the use of the machine let the node train.

The hours are looked up anew each time, so a clock that is set, a change to summer time and a
machine that slept need no case of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Protocol

import structlog
import trio

from gossamer.node.base.pausing import Hold, PauseRules, Reading
from gossamer.node.base.settings import Settings
from gossamer.node.base.work_hours import parse_work_hours
from gossamer.node.telemetry.pause_text import pause_text

LOOK_SECONDS = 5.0
"""Time between two looks: a person waits no longer for the device, and a look costs some
milliseconds."""

log = structlog.get_logger("node")


def pause_rules(settings: Settings, zone: tzinfo | None = None) -> PauseRules:
    """Returns the rules of the owner's settings. `zone`: of the hours; None: this machine's."""
    hours = parse_work_hours(settings.work_hours) if settings.work_hours else None
    return PauseRules(hours, zone)


class Holdable(Protocol):
    """The participant, as this watch sees it."""

    def hold_off(self, holds: Sequence[Hold]) -> None: ...


class PauseWatch:
    """Applies the owner's rules to what the machine does."""

    def __init__(self, rules: PauseRules, unix_seconds: Callable[[], float]) -> None:
        self._rules = rules
        self._unix_seconds = unix_seconds
        self._told: tuple[tuple[str, str], ...] = ()

    async def look(self) -> tuple[Hold, ...]:
        """Returns what keeps the node from training now, and logs it if it is new."""
        if self._rules.zone is None:
            time.tzset()  # the zone of a machine that travels changes
        holds = self._rules.holds(Reading(self._unix_seconds()))
        self._tell(holds)
        return holds

    async def run(self, participant: Holdable) -> None:
        """Keeps the participant up to date until cancelled."""
        while True:
            participant.hold_off(await self.look())
            await trio.sleep(LOOK_SECONDS)

    def _tell(self, holds: Sequence[Hold]) -> None:
        told = tuple((hold.reason, hold.text) for hold in holds)
        if told == self._told:
            return
        self._told = told
        now = self._unix_seconds()
        for hold in holds:
            text = pause_text(hold, hold.resumes_at, now, self._rules.zone)
            log.info(
                f"this node may not train now: {text}",
                fields={"event": "may not train now", "reason": hold.reason, "text": hold.text},
            )
        if not holds:
            log.info("neither the hours nor the use of the machine keep this node from training")
