"""What this machine can give: device, memory, cores; and the per-GPU metrics. Without torch.

Speeds (`tokens_per_second`, `bandwidth_bytes_per_second`) are 0 here: they are measured at work.

Numbers come from NVML for NVIDIA cards, from the kernel's files for AMD cards, from psutil for the
rest. Limits of a container (cgroup v2) count, since a node in a box can use no more than the box.
Which device trains is the trainer's word: `with_trainer_device` puts it in place of the guess that
`measure_capacity` makes from the settings.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import msgspec
import psutil
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gossamer.protocol import limits
from gossamer.protocol.wire.statements import Capacity

DeviceKind = Literal["cuda", "rocm", "mps", "cpu"]
DEVICE_KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)
# More than any machine holds; NVML's count is not trusted further.
GPUS_MAX = 64


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA card as NVML sees it now; None where the card does not say."""

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    utilization_ratio: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


class Gpus:
    """NVIDIA cards, through NVML. Without driver or cards there are none, and nothing fails.

    Calls take a millisecond or so and may hang with a broken driver: keep them off the event loop.
    """

    def __init__(self, nvml: ModuleType | None = None) -> None:
        if nvml is None:
            import pynvml as nvml  # type: ignore[no-redef]
        assert nvml is not None
        self._nvml = nvml
        try:
            nvml.nvmlInit()
            self._num_gpus = min(int(nvml.nvmlDeviceGetCount()), GPUS_MAX)
        except nvml.NVMLError:
            self._num_gpus = 0

    def read(self) -> list[Gpu]:
        """All cards with their present values; one that fails to answer is left out."""
        gpus = []
        for index in range(self._num_gpus):
            try:
                gpus.append(self._read_one(index))
            except self._nvml.NVMLError:
                continue
        return gpus

    def _read_one(self, index: int) -> Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)

        def value(function: str, *arguments: object) -> float | None:
            try:
                answer = getattr(nvml, function)(handle, *arguments)
            except nvml.NVMLError:  # this card has no such sensor
                return None
            return float(getattr(answer, "gpu", answer))

        utilization = value("nvmlDeviceGetUtilizationRates")
        power = value("nvmlDeviceGetPowerUsage")
        return Gpu(
            index=index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_total_bytes=int(memory.total),
            memory_used_bytes=int(memory.used),
            utilization_ratio=None if utilization is None else utilization / 100,
            temperature_celsius=value("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_watts=None if power is None else power / 1000,
        )


class GpuCollector(Collector):
    """The per-GPU metrics, read when Prometheus asks."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def describe(self) -> list[GaugeMetricFamily]:
        """Names alone, so that registering does not ask the cards."""
        return list(_gpu_families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = _gpu_families()
        for gpu in self._gpus.read():
            for field, family in families.items():
                value = getattr(gpu, field)
                if value is not None:
                    family.add_metric([str(gpu.index), gpu.uuid], value)
        yield from families.values()


def _gpu_families() -> dict[str, GaugeMetricFamily]:
    helps = {
        "memory_used_bytes": "Memory of the GPU in use, by whatever process.",
        "memory_total_bytes": "Memory of the GPU.",
        "utilization_ratio": "Part of the last moments in which the GPU was busy.",
        "temperature_celsius": "Temperature of the GPU.",
        "power_watts": "Power that the GPU draws.",
    }
    return {
        field: GaugeMetricFamily(f"gossamer_gpu_{field}", text, labels=["gpu", "uuid"])
        for field, text in helps.items()
    }


def measure_capacity(device: str, gpus: list[Gpu]) -> Capacity:
    """What the settings' `device` (`auto`, `cpu`, `cuda`, `cuda:N`, `mps`) will most likely be."""
    host_memory = host_memory_bytes()
    cores = num_cores()
    if device == "auto":
        device = "cuda" if _visible(gpus) or _amd_memory_bytes() else "cpu"
    if device.startswith("cuda"):
        return _with_cuda(device, "", gpus, host_memory, cores)
    kind: DeviceKind = "mps" if device == "mps" else "cpu"
    return _capacity(cpu_name(), kind, host_memory, host_memory, cores)


def with_trainer_device(
    capacity: Capacity, device: str, device_name: str, gpus: list[Gpu]
) -> Capacity:
    """The capacity with the device that the trainer reports: torch's name for it and its model.

    torch calls AMD cards `cuda` too; a `cuda` device that NVML does not know is one of those.
    """
    if device.startswith("cuda"):
        measured = _with_cuda(device, device_name, gpus, capacity.host_memory_bytes, capacity.cores)
    else:
        measured = _capacity(
            device_name or cpu_name(),
            "mps" if device.startswith("mps") else "cpu",
            capacity.host_memory_bytes,
            capacity.host_memory_bytes,
            capacity.cores,
        )
    return msgspec.structs.replace(
        measured,
        tokens_per_second=capacity.tokens_per_second,
        bandwidth_bytes_per_second=capacity.bandwidth_bytes_per_second,
    )


def _capacity(
    device: str, kind: DeviceKind, device_memory: int, host_memory: int, cores: int
) -> Capacity:
    return Capacity(
        device=_bounded(device),
        device_kind=kind,
        device_memory_bytes=device_memory,
        host_memory_bytes=host_memory,
        cores=cores,
        tokens_per_second=0.0,
        bandwidth_bytes_per_second=0.0,
    )


def _with_cuda(device: str, name: str, gpus: list[Gpu], host_memory: int, cores: int) -> Capacity:
    ordinal = int(device.partition(":")[2] or 0)
    visible = _visible(gpus)
    if visible:
        gpu = visible[ordinal] if ordinal < len(visible) else visible[0]
        if name and gpu.name != name:
            # CUDA counts the fastest first and NVML by bus: in a mixed machine the name decides.
            gpu = next((other for other in visible if other.name == name), gpu)
        return _capacity(gpu.name, "cuda", gpu.memory_total_bytes, host_memory, cores)
    amd = _amd_memory_bytes()
    memory = amd[ordinal] if ordinal < len(amd) else 0
    return _capacity(
        name or ("AMD GPU" if amd else "GPU"), "rocm" if amd else "cuda", memory, host_memory, cores
    )


def _visible(gpus: list[Gpu]) -> list[Gpu]:
    """The cards that CUDA_VISIBLE_DEVICES leaves, in its order (indices, or UUIDs' beginnings)."""
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


def _amd_memory_bytes(root: Path = Path("/sys/class/drm")) -> list[int]:
    """Memory of each AMD card that the kernel's driver knows."""
    sizes = []
    for path in sorted(root.glob("card*/device/mem_info_vram_total")):
        text = _read_line(path)
        if text.isdigit():
            sizes.append(int(text))
    return sizes


def host_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory of the machine, or of the container if that is less."""
    total = int(psutil.virtual_memory().total)
    limit = _read_line(cgroup / "memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def num_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Logical cores that this process may use (affinity and the container's quota), at least 1."""
    if sys.platform == "linux":
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    quota, _, period = _read_line(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        available = min(available, max(1, int(quota) // int(period)))
    return available


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model for people."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("model name", "hardware", "cpu model") and value.strip():
                return _bounded(" ".join(value.split()))
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
            return _bounded(answer.stdout.strip())
    return _bounded(platform.processor() or f"{platform.machine()} CPU")


def _read_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _text(value: str | bytes) -> str:
    return _bounded(value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value)


def _bounded(text: str) -> str:
    return text[: limits.TEXT_CHARACTERS_MAX]
