"""NVIDIA cards as NVML sees them, and their metrics.

The reader of NVML lies here and not with the machine's capacity, because metrics are the lowest
layer that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gossamer.protocol import limits

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
    power_limit_watts: float | None = None
    power_limit_min_watts: float | None = None


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

    def set_power_limit(self, index: int, watts: float) -> str:
        """Sets the limit of a card's power. Returns why it was not set, for people; else empty."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(watts * 1000))
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == nvml.NVML_ERROR_NO_PERMISSION:
                return (
                    "the driver lets only root set the power: run "
                    f"`sudo nvidia-smi -i {index} -pl {watts:g}` yourself"
                )
            return f"the driver does not set it: {error}"
        return ""

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

        try:
            lowest, _ = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        except nvml.NVMLError:
            lowest = None
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
            power_watts=_watts(power),
            power_limit_watts=_watts(value("nvmlDeviceGetPowerManagementLimit")),
            power_limit_min_watts=_watts(lowest),
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


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: str | bytes) -> str:
    return bounded_text(
        value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
    )


def bounded_text(text: str) -> str:
    """The text, cut to what a statement may carry."""
    return text[: limits.TEXT_CHARACTERS_MAX]
