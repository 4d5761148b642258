"""The capacity of this machine: device, memory, cores; and the per-GPU metrics. Without torch.

Speeds (`tokens_per_second`, `bandwidth_bytes_per_second`) are 0 here: they are measured at work.

Numbers come from NVML for NVIDIA cards, from the kernel's files for AMD cards, from psutil for the
rest. Limits of a container, a service or a job of a cluster count, since a node in a box can use no
more than the box.
Which device trains is the trainer's word: `measure_capacity` guesses it from the settings until
the trainer has said it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from gossamer.node.base.threads import num_usable_cores
from gossamer.node.telemetry.gpus import Gpu, bounded_text
from gossamer.protocol.wire.statements import Capacity
from gossamer.trainer.ipc.control_groups import ROOT, group_memory
from gossamer.trainer.resources.device_names import (
    ALL,
    DEVICES_MAX,
    may_be_several,
    names_together,
    parts_of,
)

DeviceKind = Literal["cuda", "rocm", "xpu", "mps", "cpu"]

_ON_HOST: tuple[DeviceKind, ...] = ("cpu", "mps")
"""Kinds that share the host's memory."""


def devices_of(setting: str, gpus: list[Gpu]) -> tuple[str, ...]:
    """Returns the devices that a setting (`device_names`) or the trainer's own word will most
    likely mean, in torch's words. The first of them holds the optimiser.

    Cards of Intel and Apple's GPUs are known only by name: no driver tells a daemon of them.
    """
    if setting not in ("auto", ALL):
        return parts_of(setting)
    visible = _visible(gpus)
    sizes = [gpu.memory_total_bytes for gpu in visible] or _usable_amd_bytes()
    if not sizes:
        return ("cpu",)
    cards = sorted(range(len(sizes)), key=lambda n: (-sizes[n], n))
    return tuple(f"cuda:{n}" for n in cards[: DEVICES_MAX if setting == ALL else 1])


class _Device(NamedTuple):
    """A device that trains, as far as it can be told without torch."""

    name: str
    kind: DeviceKind
    memory_bytes: int
    """0: not known."""


def measure_capacity(device: str, gpus: list[Gpu], name: str = "") -> Capacity:
    """Returns the capacity with the devices that a setting will most likely mean.

    Args:
        device: the setting, or the trainer's own word.
        name: torch's name for the device, or for all of several; empty if it is not known.
    """
    is_several, host_memory = may_be_several(device), host_memory_bytes()
    of_each = "" if is_several else name
    devices = [_described(each, of_each, gpus, host_memory) for each in devices_of(device, gpus)]
    kind, memory = devices[0].kind, devices[0].memory_bytes
    if kind not in _ON_HOST:  # several have the host's memory once
        memory = sum(each.memory_bytes for each in devices)
    names = names_together([each.name for each in devices])
    return Capacity(
        device=bounded_text(name if is_several and name else names),
        device_kind=kind,
        device_memory_bytes=memory,
        host_memory_bytes=host_memory,
        cores=num_usable_cores(),
        tokens_per_second=0.0,
        bandwidth_bytes_per_second=0.0,
    )


def _described(device: str, name: str, gpus: list[Gpu], host_memory: int) -> _Device:
    """Returns one device of torch's words. torch calls AMD cards `cuda` too; a `cuda` device that
    NVML does not know is one of those."""
    if device.startswith("cuda"):
        return _cuda_device(device, name, gpus)
    if device.startswith("xpu"):
        return _Device(name or "Intel GPU", "xpu", 0)
    return _Device(name or cpu_name(), "mps" if device.startswith("mps") else "cpu", host_memory)


class DeviceMemory(NamedTuple):
    """Memory of a training device that has its own."""

    name: str
    total_bytes: int
    free_bytes: int


def device_memories(device: str, gpus: list[Gpu]) -> list[DeviceMemory]:
    """Returns the memory of each card that will most likely train, that of the first device first;
    none for a CPU, for a device that shares the host's memory, and where no driver says it."""
    devices = devices_of(device, gpus)
    visible = _visible(gpus)
    if not devices[0].startswith("cuda"):
        return []
    if visible:
        return [
            DeviceMemory(gpu.name, total, max(0, total - gpu.memory_used_bytes))
            for gpu in training_gpus(device, gpus)
            for total in [gpu.memory_total_bytes]
        ]
    totals, used_of = _usable_amd_bytes(), _usable_amd_bytes(kind="used")
    ordinals = [_ordinal(each) for each in devices]
    if max(ordinals) >= len(totals) or len(totals) != len(used_of):
        return []
    return [
        DeviceMemory("the AMD GPU", totals[n], max(0, totals[n] - used_of[n])) for n in ordinals
    ]


def training_gpus(device: str, gpus: list[Gpu]) -> list[Gpu]:
    """Returns the NVIDIA cards that will most likely train, that of the first device first; none
    for a CPU and other makers' cards.

    Args:
        device: the setting, or the trainer's own word.
    """
    visible = _visible(gpus)
    ordinals = [_ordinal(each) for each in devices_of(device, gpus) if each.startswith("cuda")]
    found = [visible[n] if n < len(visible) else visible[0] for n in ordinals if visible]
    return list({gpu.index: gpu for gpu in found}.values())


def _ordinal(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _cuda_device(device: str, name: str, gpus: list[Gpu]) -> _Device:
    ordinal = _ordinal(device)
    visible = _visible(gpus)
    if visible:
        gpu = visible[ordinal] if ordinal < len(visible) else visible[0]
        if name and gpu.name != name:
            # The owner may have let CUDA count the fastest card first, and NVML counts by bus. In a
            # mixed machine the name decides.
            gpu = next((other for other in visible if other.name == name), gpu)
        return _Device(gpu.name, "cuda", gpu.memory_total_bytes)
    amd = _usable_amd_bytes()
    memory = amd[ordinal] if ordinal < len(amd) else 0
    return _Device(name or ("AMD GPU" if amd else "GPU"), "rocm" if amd else "cuda", memory)


def _visible(gpus: list[Gpu]) -> list[Gpu]:
    """The cards that CUDA_VISIBLE_DEVICES leaves, in its order (indices, or UUIDs' beginnings).
    There are none where torch cannot use them."""
    if not gpus or not torch_has_cuda():
        return []
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return gpus
    chosen: list[Gpu] = []
    for part in (text.strip() for text in setting.split(",")):
        found = [
            gpu
            for gpu in gpus
            if (part.isdigit() and int(part) == gpu.index) or (part and gpu.uuid.startswith(part))
        ]
        if not found:  # CUDA ignores the first that it does not know, and all behind it
            break
        chosen.append(found[0])
    return chosen


def torch_has_rocm() -> bool:
    """Returns whether the torch of this environment is built for AMD's cards."""
    return _torch_is_for("hip")


def torch_has_cuda() -> bool:
    """Returns whether the torch of this environment is built for NVIDIA's cards."""
    return _torch_is_for("cuda")


def _torch_is_for(platform_name: Literal["hip", "cuda"]) -> bool:
    """Returns whether torch is built for a platform. It is not loaded for that: its file of
    versions is read."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return re.search(rf"^{platform_name}\b[^=]*= *['\"]", text, re.MULTILINE) is not None


def _usable_amd_bytes(kind: Literal["total", "used"] = "total") -> list[int]:
    """The memory of each AMD card, or what is in use of it; none where torch cannot use them.
    Most processors of AMD have a small GPU of their own, which is one to the kernel."""
    return _amd_memory_bytes(kind=kind) if torch_has_rocm() else []


def _amd_memory_bytes(
    root: Path = Path("/sys/class/drm"), kind: Literal["total", "used"] = "total"
) -> list[int]:
    """Memory of each AMD card that the kernel's driver knows, or the part of it that is in use."""
    sizes = []
    for path in sorted(root.glob(f"card*/device/mem_info_vram_{kind}")):
        text = _read_line(path)
        if text.isdigit():
            sizes.append(int(text))
    return sizes


def host_memory_bytes(root: Path = ROOT) -> int:
    """Memory of the machine, or of the container or job if that is less."""
    total = int(psutil.virtual_memory().total)
    group = group_memory(root)
    return total if group is None else min(total, group.limit)


def free_memory_bytes(root: Path = ROOT) -> int:
    """Memory that programs may still take, of the machine or of the container or job if that is
    less."""
    free = int(psutil.virtual_memory().available)
    group = group_memory(root)
    return free if group is None else min(free, group.free)


def trains_on_host(device: str, gpus: list[Gpu]) -> bool:
    """Returns whether the trainer's vectors lie in host memory, as far as the settings say."""
    return measure_capacity(device, gpus).device_kind in _ON_HOST


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model for people."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "hardware", "cpu model") and value.strip():
                return bounded_text(" ".join(value.split()))
    except OSError:
        pass
    if sys.platform == "darwin":
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
        if answer.stdout.strip():
            return bounded_text(answer.stdout.strip())
    return bounded_text(platform.processor() or f"{platform.machine()} CPU")


def _read_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
