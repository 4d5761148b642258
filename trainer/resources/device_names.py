"""The words of the setting `device`. Without torch, which a daemon lacks.

auto              the accelerator with the most memory, else the CPU
all               all accelerators as one trainer, else the CPU
cuda:0,cuda:1     these as one trainer, one process for each; also `cpu,cpu`, for tests
cpu, cuda, cuda:1, mps, xpu, xpu:1
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ALL = "all"

DEVICES_MAX = 16
"""Devices of one trainer; more than one machine holds. Each has a process."""

WORDS = "auto, all, cpu, cuda, cuda:N, mps, xpu, xpu:N, or several with commas"
"""For people."""

_DEVICE = re.compile(r"auto|all|cpu|mps|(cuda|xpu)(:\d{1,3})?")


def parts_of(setting: str) -> tuple[str, ...]:
    """The devices that a setting names, in order."""
    return tuple(part.strip() for part in setting.split(","))


def may_be_several(setting: str) -> bool:
    """Whether a setting can stand for more than one device."""
    return setting == ALL or "," in setting


def problem_of(setting: str) -> str:
    """Why a setting stands for no devices, for people; empty if all is well."""
    parts = parts_of(setting)
    for part in parts:
        if not _DEVICE.fullmatch(part):
            return f"{part!r} is not a device: {WORDS}"
    if len(parts) == 1:
        return ""
    if len(parts) > DEVICES_MAX:
        return f"{len(parts)} devices; at most {DEVICES_MAX} train together"
    kinds = {part.partition(":")[0] for part in parts}
    if not kinds.isdisjoint(("auto", ALL)):
        return f"{setting!r}: auto and all stand by themselves"
    if len(kinds) > 1:
        return f"{setting!r}: devices that train together are of one kind, cards or CPUs"
    if kinds == {"mps"}:
        return f"{setting!r}: a machine has one mps device"
    numbers = [int(part.partition(":")[2] or 0) for part in parts]
    if kinds != {"cpu"} and len(set(numbers)) < len(numbers):
        return f"{setting!r}: a card is named twice"
    return ""


def names_together(names: Sequence[str]) -> str:
    """Devices of a trainer in one line, for people: `2 x A10, T4`."""
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counts.items())
