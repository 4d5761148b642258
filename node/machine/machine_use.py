"""What the owner does with the machine: battery or mains, a metered line, programs, a person at it.

Each reader is a function that says None where nothing can tell. A reader may fail, and then only
its own question has no answer (`pause_watch`). Readers block for milliseconds: they run in threads.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_POWER_SUPPLIES = Path("/sys/class/power_supply")

_SECONDS_MAX = 2.0
"""Limit of the wait for a program that is asked: they answer within some milliseconds."""

_COMM_CHARACTERS = 15
"""Linux keeps only so much of the name of a process."""

_LOGIND = (
    *("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1"),
    *("org.freedesktop.login1.Manager", "IdleHint", "IdleSinceHintMonotonic"),
)
_LOGIND_ANSWER = re.compile(r"b (true|false)\s+t (\d{1,20})\s*")
# NetworkManager is not started only to be asked.
_NETWORK_MANAGER = (
    *("busctl", "--auto-start=no", "get-property", "org.freedesktop.NetworkManager"),
    *("/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered"),
)
_METERED = {"u 1": True, "u 2": False, "u 3": True, "u 4": False}
"""Answers of NetworkManager (NMMetered): yes, no, and what it guesses. `u 0` is not known."""
_IOREG = ("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOHIDSystem")
_IOREG_IDLE = re.compile(r'"HIDIdleTime"\s*=\s*(\d{1,20})')


@dataclass(frozen=True)
class Idle:
    """How long nobody has used the machine, and what says so."""

    seconds: float
    source: str


Ask = Callable[[Sequence[str]], "str | None"]
"""Runs a program, and returns its output; None where there is none, or where it fails."""


def ask(command: Sequence[str]) -> str | None:
    """See `Ask`. It waits `_SECONDS_MAX` at most."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None


def is_on_battery(platform: str = sys.platform, supplies: Path = _POWER_SUPPLIES) -> bool | None:
    """Returns whether the machine runs on its battery; None if it has none.

    Raises:
        OSError, psutil.Error: it cannot be read.
    """
    if platform == "linux":
        # Not psutil there: it takes the battery of a wireless mouse for that of the machine.
        return _is_on_battery(supplies)
    battery = psutil.sensors_battery()
    if battery is None or battery.power_plugged is None:
        return None
    return not battery.power_plugged


def _is_on_battery(supplies: Path) -> bool | None:
    found: dict[str, list[Path]] = {}
    for folder in sorted(supplies.iterdir()) if supplies.is_dir() else []:
        if _word(folder / "scope") != "Device":  # of a mouse, a keyboard, a pen
            found.setdefault(_word(folder / "type"), []).append(folder)
    if "Battery" not in found:
        return None
    mains = [*found.get("Mains", []), *found.get("USB", [])]
    if any(_word(folder / "online") not in ("", "0") for folder in mains):
        return False  # also where a weak charger lets the battery empty slowly
    return any(_word(folder / "status") == "Discharging" for folder in found["Battery"])


def _word(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def running_programs(names: Sequence[str]) -> tuple[str, ...]:
    """Returns those of some programs that run, apart from this node. Upper and lower case do not
    count, nor does `.exe`.

    Raises:
        psutil.Error, OSError: the processes cannot be listed.
    """
    wanted = {plain[:_COMM_CHARACTERS]: name for name in names for plain in [_plain(name)]}
    wanted.update({_plain(name): name for name in names})
    found = set()
    for process in psutil.process_iter(["name"]):
        name = wanted.get(_plain(process.info["name"] or ""))
        if name is not None and _is_of_others(process):
            found.add(name)
    return tuple(sorted(found))


def _plain(name: str) -> str:
    return name.lower().removesuffix(".exe")


def _is_of_others(process: psutil.Process) -> bool:
    """Returns whether a process is at work and no part of this node: `python` may be a name, and
    the trainer has children of its own."""
    try:
        own = os.getpid()
        is_own = process.pid == own or any(parent.pid == own for parent in process.parents())
        return not is_own and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def sees_programs(platform: str = sys.platform, processes: Path = Path("/proc")) -> bool:
    """Returns whether programs of other users are visible: `ProtectProc=` and `hidepid` hide
    them."""
    return platform != "linux" or (processes / "1" / "stat").exists()


def is_metered(ask: Ask = ask, platform: str = sys.platform) -> bool | None:
    """Returns whether the line that the system uses is metered; None where nothing can tell, as on
    macOS and Windows and without NetworkManager."""
    if platform != "linux":
        return None
    return _METERED.get((ask(_NETWORK_MANAGER) or "").strip())


def read_idle(
    ask: Ask = ask,
    platform: str = sys.platform,
    environment: Mapping[str, str] = os.environ,
    monotonic: Callable[[], float] = time.monotonic,
) -> Idle | None:
    """Returns how long nobody has used keyboard or mouse; None where nothing can tell."""
    if platform == "darwin":
        return _of_ioreg(ask(_IOREG))
    # Under Wayland, X sees only what its own windows get.
    if environment.get("DISPLAY") and not environment.get("WAYLAND_DISPLAY"):
        text = (ask(("xprintidle",)) or "").strip()
        if text.isascii() and text.isdigit():
            return Idle(int(text) / 1000, "xprintidle")
    return _of_logind(ask(_LOGIND), monotonic())


def _of_ioreg(answer: str | None) -> Idle | None:
    match = _IOREG_IDLE.search(answer or "")
    return Idle(int(match[1]) / 1e9, "ioreg") if match else None


def _of_logind(answer: str | None, now: float) -> Idle | None:
    """All sessions together: a film that plays counts as use, and a terminal that is typed in."""
    match = _LOGIND_ANSWER.fullmatch(answer or "")
    if match is None:
        return None
    is_idle = match[1] == "true"
    return Idle(max(0.0, now - int(match[2]) / 1e6) if is_idle else 0.0, "systemd-logind")


@dataclass(frozen=True)
class MachineUse:
    """The readers of one machine. A test has its own."""

    is_on_battery: Callable[[], bool | None] = is_on_battery
    running_programs: Callable[[Sequence[str]], tuple[str, ...]] = running_programs
    read_idle: Callable[[], Idle | None] = read_idle
    sees_programs: Callable[[], bool] = sees_programs
    read_gpu_celsius: Callable[[], float | None] = lambda: None
    """Temperature of the card that trains."""
    is_metered: Callable[[], bool | None] = is_metered
