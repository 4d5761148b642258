"""The rules that say whether a node trains now: the owner's word, hours, and the machine's use.

A cause that keeps the node from training is a `Hold`. Several may hold at once, and each begins and
ends by itself. These functions read no clock and no machine: they get a `Reading`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Literal, get_args

import msgspec

from gossamer.node.base.durations import parse_duration
from gossamer.node.base.work_hours import WorkHours

PauseReason = Literal[
    "user", "schedule", "battery", "metered", "process", "idle", "temperature", "disk"
]
"""The cause of a pause: the owner's order, the hours, a battery, a line whose bytes cost money, a
program that runs, a person at the machine, a hot device, or a disk that takes nothing. Of several
the first one here is shown."""

PAUSE_REASONS: tuple[PauseReason, ...] = get_args(PauseReason)

LEAVING_CODE = 409
"""The HTTP status of the answer to an order that a node cannot obey any more, because it leaves."""

PAUSE_SECONDS_MAX = 30 * 24 * 3600
"""A pause that ends by itself: a longer one is better ended by the owner."""

IDLE_SECONDS_MIN = 10
"""The node looks every 5 seconds."""

IDLE_SECONDS_MAX = 24 * 3600
"""A machine that is used every day is never idle for longer."""

COOLER_CELSIUS = 5
"""Degrees by which a card has to be cooler than the owner's limit before the node goes on: a card
that is as hot again in the next minute would end and begin the trainer all the time."""

PROGRAMS_MAX = 32
"""Programs beside which a node does not train."""

PROGRAM_CHARACTERS_MAX = 64
"""Longer than a file's name that a person types."""


class LeavingError(Exception):
    """The node is leaving, and an order to stay comes too late; the message is for people."""

    def __init__(self) -> None:
        super().__init__("the node is leaving, and nothing takes that back")


class UserPause(msgspec.Struct, frozen=True):
    """The owner's order to pause."""

    until_unix_seconds: float | None = None
    """When it ends by itself; None: when the owner resumes."""
    seconds: float | None = None
    """How long it was ordered for; no setting of the clock makes it longer."""
    after_round: bool = False
    """Whether the present round is finished first."""


class Hold(msgspec.Struct, frozen=True):
    """A cause that keeps the node from training."""

    reason: PauseReason
    text: str = ""
    """What is the matter, for people; empty where the reason says all."""
    resumes_at: float | None = None
    """When it ends (Unix time); None: nobody knows."""
    after_round: bool = False
    """Whether it begins when the present round ends."""


class Reading(msgspec.Struct, frozen=True):
    """The state of the machine at one moment. None: nothing can tell."""

    unix_seconds: float
    is_on_battery: bool | None = None
    is_metered: bool | None = None
    """Whether each byte of the line may cost money."""
    idle_seconds: float | None = None
    """Time since somebody used keyboard or mouse."""
    programs: tuple[str, ...] = ()
    """Those programs of the setting `pause_for` that run."""
    gpu_celsius: float | None = None
    """Temperature of the card that trains."""
    was_hot: bool = False
    """Whether the node did not train at the look before because of that temperature."""
    disk_problem: str = ""
    """Why the state directory is gone, or why the owner's limit of the disk leaves no room for the
    run; empty if all is well."""


class PauseRules(msgspec.Struct, frozen=True):
    """The rules by which the owner lets the node train, apart from orders."""

    hours: WorkHours | None = None
    """None: always."""
    zone: tzinfo | None = None
    """The zone of the hours; None: that of this machine."""
    runs_on_battery: bool = False
    runs_on_metered: bool = False
    pause_for: tuple[str, ...] = ()
    """Names of programs beside which the node does not train."""
    gpu_celsius_max: int = 0
    """Temperature of the card above which the node does not train; 0: it does not count."""
    idle_seconds: int = 0
    """The node trains when nobody has used the machine for so long; 0: always."""

    def holds(self, reading: Reading) -> tuple[Hold, ...]:
        """Returns what keeps the node from training at a moment. What nothing can tell does not."""
        found = []
        now = reading.unix_seconds
        if self.hours is not None and not self.hours.holds(now, self.zone):
            found.append(Hold("schedule", resumes_at=self.hours.next_start(now, self.zone)))
        if reading.is_on_battery and not self.runs_on_battery:
            found.append(Hold("battery", "the machine runs on its battery"))
        if reading.is_metered and not self.runs_on_metered:
            found.append(Hold("metered", "the line is metered"))
        if reading.programs:
            verb = "runs" if len(reading.programs) == 1 else "run"
            found.append(Hold("process", f"{', '.join(reading.programs)} {verb}"))
        if reading.idle_seconds is not None and reading.idle_seconds < self.idle_seconds:
            found.append(Hold("idle", "somebody uses the machine"))
        if self._is_hot(reading):
            until = self.gpu_celsius_max - COOLER_CELSIUS
            text = f"the card has {reading.gpu_celsius:.0f} degrees C, and goes on at {until}"
            found.append(Hold("temperature", text))
        if reading.disk_problem:
            found.append(Hold("disk", reading.disk_problem))
        return tuple(found)

    def _is_hot(self, reading: Reading) -> bool:
        celsius, most = reading.gpu_celsius, self.gpu_celsius_max
        if celsius is None or not most:
            return False
        return celsius > most - COOLER_CELSIUS if reading.was_hot else celsius > most


def parse_idle(text: str) -> int:
    """Returns the seconds of a text such as `5min`; 0 for `off`. Raises ValueError."""
    if text == "off":
        return 0
    return parse_duration(text, IDLE_SECONDS_MIN, IDLE_SECONDS_MAX)


def parse_programs(names: Sequence[str]) -> tuple[str, ...]:
    """Checks the names of programs. Raises ValueError; the message is for people."""
    if len(names) > PROGRAMS_MAX:
        raise ValueError(f"{len(names)} programs; allowed: up to {PROGRAMS_MAX}")
    for name in names:
        if not 0 < len(name) <= PROGRAM_CHARACTERS_MAX or "/" in name or not name.isprintable():
            raise ValueError(f"{name!r} is no name of a program, such as blender, without its path")
    return tuple(dict.fromkeys(names))


def is_over(pause: UserPause, unix_seconds: float, seconds_since_order: float = 0.0) -> bool:
    """Returns whether an order has ended by itself.

    Both clocks count, and the one that is first decides: the one on the wall goes on while the
    machine sleeps, and the other one is not set back.

    Args:
        seconds_since_order: by a clock that nobody sets; 0 after a restart.
    """
    if pause.until_unix_seconds is None:
        return False
    by_length = pause.seconds is not None and seconds_since_order >= pause.seconds
    return by_length or unix_seconds >= pause.until_unix_seconds


def resumes_at(holds: Sequence[Hold]) -> float | None:
    """Returns when the last of some holds ends (Unix time); None if one has no known end."""
    ends = [hold.resumes_at for hold in holds]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None
