"""The present use of everything that the owner limits, apart from the line."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import psutil

from gossamer.node.base.settings.setting_values import gpu_memory_bytes
from gossamer.node.base.settings.settings import Settings
from gossamer.node.machine.capacity import training_gpus
from gossamer.node.telemetry.gpus import Gpus


class NodeUses(NamedTuple):
    """The amounts that a node uses at one look."""

    uses: Mapping[str, float]
    """By the names of `base.settings.owner_limits`: threads, bytes, watts or degrees Celsius."""
    sizes: Mapping[str, float]
    """The present bytes of limits that are shares."""
    trainer_bytes: float
    """Resident memory of the trainer; 0 where none runs."""
    trainer_cpu_seconds: float
    """Processor time of the trainer since the look before."""


class LimitUses:
    """The reader of what a node uses. A call blocks for milliseconds, one at a time."""

    def __init__(self, gpus: Gpus, disk_bytes: Callable[[], int]) -> None:
        """`disk_bytes`: the size of the whole state directory."""
        self._gpus = gpus
        self._disk_bytes = disk_bytes
        self._trainers: dict[int, tuple[psutil.Process, float]] = {}
        """The daemon's children by process id, and their processor time at the look before."""
        self._me = psutil.Process(os.getpid())

    def __call__(self, settings: Settings) -> NodeUses:
        """Returns what the node uses now, with these settings."""
        uses: dict[str, float] = {"disk": float(self._disk_bytes())}
        sizes: dict[str, float] = {}
        me = self._me
        trainer_bytes = trainer_seconds = cores = 0.0
        found = {}
        for child in self._children():
            process, seen_seconds = self._trainers.get(child.pid, (child, 0.0))
            if process != child:  # another one has its id now
                process, seen_seconds = child, 0.0
            try:
                trainer_bytes += process.memory_info().rss
                cores += process.cpu_percent() / 100
                times = process.cpu_times()
            except psutil.Error:  # it has just ended
                continue
            seconds = float(times.user + times.system)
            trainer_seconds += max(0.0, seconds - seen_seconds)
            found[child.pid] = process, seconds
        self._trainers = found
        uses["memory"] = me.memory_info().rss + trainer_bytes
        uses["threads"] = cores
        # A limit is one card's: of several the one that uses most is told.
        for gpu in training_gpus(settings.device, self._gpus.read()):
            _take_most(uses, "gpu_memory", gpu.memory_used_bytes)
            _take_most(uses, "gpu_power", gpu.power_watts)
            _take_most(uses, "gpu_temperature", gpu.temperature_celsius)
            if settings.gpu_memory:
                size = gpu_memory_bytes(settings.gpu_memory, gpu.memory_total_bytes)
                sizes["gpu_memory"] = min(sizes.get("gpu_memory", math.inf), float(size))
        return NodeUses(uses, sizes, trainer_bytes, trainer_seconds)

    def _children(self) -> Sequence[psutil.Process]:
        """Returns the processes below this one, those of further devices too.

        The system is asked for all its processes to find them, which takes a waiting node longer
        than all else that it reads. So a node without a child does not look.
        """
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            return self._all_children()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ()
        return self._all_children()

    def _all_children(self) -> Sequence[psutil.Process]:
        return cast(Sequence[psutil.Process], self._me.children(recursive=True))


def _take_most(uses: dict[str, float], name: str, value: float | None) -> None:
    if value is not None:
        uses[name] = max(uses.get(name, 0.0), float(value))
