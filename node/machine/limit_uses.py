"""What a node uses now of what its owner limits, apart from the line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import psutil

from gossamer.node.base.setting_values import gpu_memory_bytes
from gossamer.node.base.settings import Settings
from gossamer.node.machine.capacity import training_gpu
from gossamer.node.telemetry.gpus import Gpus


class LimitUses:
    """The reader of what a node uses. A call blocks for milliseconds, one at a time."""

    def __init__(self, gpus: Gpus, disk_bytes: Callable[[], int]) -> None:
        """`disk_bytes`: the size of the whole state directory."""
        self._gpus = gpus
        self._disk_bytes = disk_bytes
        self._trainers: dict[int, psutil.Process] = {}
        """The daemon's children by process id: their processor time counts from the look before."""

    def __call__(self, settings: Settings) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Returns uses by the names of `base.owner_limits`, and the bytes of limits that are
        shares."""
        uses: dict[str, float] = {"disk": float(self._disk_bytes())}
        sizes: dict[str, float] = {}
        me = psutil.Process(os.getpid())
        memory, cores = float(me.memory_info().rss), 0.0
        found = {}
        for child in me.children():
            known = self._trainers.get(child.pid)
            process = known if known == child else child
            try:
                memory += process.memory_info().rss
                cores += process.cpu_percent() / 100
            except psutil.Error:  # it has just ended
                continue
            found[child.pid] = process
        self._trainers = found
        uses["memory"], uses["threads"] = memory, cores
        gpu = training_gpu(settings.device, self._gpus.read())
        if gpu is not None:
            uses["gpu_memory"] = float(gpu.memory_used_bytes)
            if gpu.power_watts is not None:
                uses["gpu_power"] = gpu.power_watts
            if gpu.temperature_celsius is not None:
                uses["gpu_temperature"] = gpu.temperature_celsius
            if settings.gpu_memory:
                total = gpu.memory_total_bytes
                sizes["gpu_memory"] = float(gpu_memory_bytes(settings.gpu_memory, total))
        return uses, sizes
