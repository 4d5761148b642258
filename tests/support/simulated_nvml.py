"""NVIDIA's management library with cards that are not there, for `telemetry.gpus.Gpus`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

GIB = 1024**3


@dataclass
class Card:
    """One card. Tests set what it says."""

    name: str = "Simulated RTX"
    memory_total_bytes: int = 24 * GIB
    memory_used_bytes: int = 2 * GIB
    celsius: float = 60.0
    watts: float = 200.0
    power_limit_watts: float = 450.0
    power_limit_min_watts: float = 100.0
    is_root: bool = True


class NVMLError(Exception):
    """As the library's: with the number of the error."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class SimulatedNvml(ModuleType):
    """The functions of the library that Gossamer calls, under their own names."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, cards: Sequence[Card]) -> None:
        super().__init__("simulated_nvml")
        self.cards = cards

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(total=card.memory_total_bytes, used=card.memory_used_bytes)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return f"GPU-{id(card)}"

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetUtilizationRates(self, _card: Card) -> SimpleNamespace:
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetTemperature(self, card: Card, _sensor: int) -> float:
        return card.celsius

    def nvmlDeviceGetPowerUsage(self, card: Card) -> float:
        return card.watts * 1000

    def nvmlDeviceGetPowerManagementLimit(self, card: Card) -> float:
        return card.power_limit_watts * 1000

    def nvmlDeviceGetPowerManagementLimitConstraints(self, card: Card) -> tuple[float, float]:
        return card.power_limit_min_watts * 1000, 600_000.0

    def nvmlDeviceSetPowerManagementLimit(self, card: Card, milliwatts: int) -> None:
        if not card.is_root:
            raise NVMLError(self.NVML_ERROR_NO_PERMISSION)
        card.power_limit_watts = milliwatts / 1000
