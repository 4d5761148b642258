"""The checks of `gossamer doctor` on what keeps a node of this machine from training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

import psutil

from gossamer.node.base.durations import format_duration
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.work_hours import parse_work_hours
from gossamer.node.commands.machine.state_checks import Check
from gossamer.node.machine.machine_use import MachineUse
from gossamer.node.telemetry.pause_text import moment

_HERE = MachineUse()

_T = TypeVar("_T")


def check_pauses(
    settings: Settings,
    use: MachineUse = _HERE,
    now: Callable[[], float] = time.time,
    platform: str = sys.platform,
) -> Iterator[Check]:
    """Says of each setting that can keep the node from training what it does now, and warns where
    this machine cannot tell."""
    if settings.work_hours:
        yield _check_hours(settings.work_hours, now())
    yield from _check_battery(settings, use)
    yield from _check_line(settings, use, platform)
    if settings.pause_for:
        yield _check_programs(settings.pause_for, use)
    if settings.only_when_idle:
        yield _check_idle(settings.only_when_idle, use)


def _check_hours(text: str, now: float) -> Check:
    hours = parse_work_hours(text)
    if hours.holds(now):
        return Check("hours", "ok", f"{text}: a node trains now")
    start = moment(datetime.fromtimestamp(hours.next_start(now)), now)
    return Check("hours", "ok", f"{text}: a node does not train now, it resumes at {start}")


def _check_battery(settings: Settings, use: MachineUse) -> Iterator[Check]:
    is_on_battery, problem = _ask(use.is_on_battery)
    if problem:
        advice = "A node trains also while the machine runs on its battery"
        yield Check("battery", "warn", f"cannot be read: {problem}", advice)
    elif is_on_battery is None:
        return  # there is none
    elif settings.on_battery == "on":
        yield Check("battery", "ok", "a node trains on the battery, too")
    elif is_on_battery:
        yield Check("battery", "ok", "the machine runs on it: a node does not train now")
    else:
        yield Check("battery", "ok", "the machine is plugged in; without that a node pauses")


def _check_line(settings: Settings, use: MachineUse, platform: str) -> Iterator[Check]:
    is_metered, problem = _ask(use.is_metered)
    if settings.on_metered == "on":
        if is_metered:
            yield Check("line", "ok", "it is metered, and a node works all the same")
    elif problem:
        advice = "A node works also while the line is metered"
        yield Check("line", "warn", f"it is not known whether it is metered: {problem}", advice)
    elif is_metered is None:
        if platform != "linux":  # there, NetworkManager would tell, and a server has none
            text = "this system does not tell whether it is metered: a node works always"
            yield Check("line", "ok", text)
    elif is_metered:
        yield Check("line", "ok", "it is metered: a node does not work now")
    else:
        yield Check("line", "ok", "it is not metered; where it is, a node pauses")


def _check_programs(names: tuple[str, ...], use: MachineUse) -> Check:
    listed = ", ".join(names)
    running, problem = _ask(lambda: use.running_programs(names))
    if problem:
        advice = f"A node trains also beside {listed}"
        return Check("programs", "warn", f"cannot be listed: {problem}", advice)
    if running:
        return Check("programs", "ok", f"{', '.join(running)}: a node does not train now")
    if not use.sees_programs():
        return Check(
            "programs",
            "warn",
            f"programs of other users are hidden, so {listed} may run unseen",
            "For a service of systemd, set ProtectProc=default with `systemctl edit`",
        )
    return Check("programs", "ok", f"none of {listed} runs")


def _check_idle(seconds: int, use: MachineUse) -> Check:
    idle, problem = _ask(use.read_idle)
    if idle is None:
        return Check(
            "idle",
            "warn",
            problem or "nothing here tells whether somebody uses the machine; a node trains always",
            "Install xprintidle for X11; elsewhere systemd-logind has to run",
        )
    trains = "trains now" if idle.seconds >= seconds else "does not train now"
    since = format_duration(round(idle.seconds))
    return Check(
        "idle",
        "ok",
        f"nobody has used the machine for {since} of {format_duration(seconds)} "
        f"({idle.source}): a node {trains}",
    )


def _ask(read: Callable[[], _T]) -> tuple[_T | None, str]:
    """Returns the answer of a reader, and the problem where it failed."""
    try:
        return read(), ""
    except (OSError, ValueError, psutil.Error) as error:
        return None, str(error) or repr(error)
