import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gossamer.node.base.threads import num_usable_cores
from gossamer.node.machine import capacity
from gossamer.node.machine.capacity import (
    cpu_name,
    device_memories,
    devices_of,
    host_memory_bytes,
    measure_capacity,
    torch_has_cuda,
    torch_has_rocm,
    training_gpus,
    trains_on_host,
)
from gossamer.node.telemetry.gpus import Gpu, GpuCollector, Gpus

SMALL = Gpu(index=0, uuid="GPU-aaaa", name="Small", memory_total_bytes=8_000, memory_used_bytes=100)
LARGE = Gpu(
    index=1, uuid="GPU-bbbb", name="Large", memory_total_bytes=80_000, memory_used_bytes=200
)


@pytest.fixture(autouse=True)
def _no_choice_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_memory_of_the_card_that_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = [SMALL, LARGE]
    assert device_memories("auto", both) == [("Large", 80_000, 79_800)]
    assert device_memories("cuda:0", both) == [("Small", 8_000, 7_900)]
    assert device_memories("cuda:1", both) == [("Large", 80_000, 79_800)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert device_memories("cuda", both) == [("Large", 80_000, 79_800)]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for device in ("cpu", "mps", "xpu", "cpu,cpu"):
        assert device_memories(device, both) == []
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": [])
    assert device_memories("cuda", []) == [], "no driver says anything"
    sizes = {"total": [16_000], "used": [1_000]}
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": sizes[kind])
    monkeypatch.setattr(capacity, "torch_has_rocm", lambda: True)
    assert device_memories("auto", []) == [("the AMD GPU", 16_000, 15_000)]
    assert device_memories("cuda:1", []) == []


def test_several_cards_are_one_device_with_their_memory_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = [SMALL, LARGE]
    assert devices_of("all", both) == ("cuda:1", "cuda:0"), "the largest holds the optimiser"
    assert [card.name for card in device_memories("all", both)] == ["Large", "Small"]
    assert [gpu.name for gpu in training_gpus("cuda:0,cuda:1", both)] == ["Small", "Large"]
    measured = measure_capacity("all", both)
    assert (measured.device, measured.device_memory_bytes) == ("Large, Small", 88_000)
    told = measure_capacity("cuda:0,cuda:1", both, "2 x Card")
    assert (told.device, told.device_kind) == ("2 x Card", "cuda")
    two = measure_capacity("cpu,cpu", [])
    assert two.device.startswith("2 x ")
    assert two.device_memory_bytes == two.host_memory_bytes
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": [])
    assert devices_of("all", []) == ("cpu",)


class FakeNvml(ModuleType):
    """NVML with one healthy card, one without sensors, and one that fell off the bus."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("fake")

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise self.NVMLError
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=1000, used=10 * handle)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"Card"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self._sensor(handle, 75))

    def nvmlDeviceGetTemperature(self, handle: int, _sensor: int) -> int:
        return self._sensor(handle, 61)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._sensor(handle, 250_500)

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return self._sensor(handle, 300_000)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: int) -> tuple[int, int]:
        return self._sensor(handle, 100_000), self._sensor(handle, 400_000)

    def _sensor(self, handle: int, value: int) -> int:
        if handle:
            raise self.NVMLError
        return value


def test_cards_are_read_and_a_dead_one_is_left_out() -> None:
    healthy, plain = Gpus(FakeNvml()).read()
    assert (healthy.uuid, healthy.name, healthy.memory_total_bytes) == ("GPU-0", "Card", 1000)
    assert healthy.utilization_ratio == 0.75
    assert (healthy.temperature_celsius, healthy.power_watts) == (61, 250.5)
    assert (healthy.power_limit_watts, healthy.power_limit_min_watts) == (300, 100)
    assert plain.power_limit_watts is None
    assert (plain.memory_used_bytes, plain.utilization_ratio, plain.power_watts) == (10, None, None)


def test_metrics_of_each_gpu() -> None:
    registry = CollectorRegistry()
    registry.register(GpuCollector(Gpus(FakeNvml())))
    first = {"gpu": "0", "uuid": "GPU-0"}
    assert registry.get_sample_value("gossamer_gpu_power_watts", first) == 250.5
    assert registry.get_sample_value("gossamer_gpu_utilization_ratio", first) == 0.75
    second = {"gpu": "1", "uuid": "GPU-1"}
    assert registry.get_sample_value("gossamer_gpu_memory_used_bytes", second) == 10
    assert registry.get_sample_value("gossamer_gpu_power_watts", second) is None


def test_without_a_driver_there_are_no_cards() -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError

    assert Gpus(NoDriver()).read() == []


def test_this_machine() -> None:
    measured = measure_capacity("cpu", [])
    assert measured.device_kind == "cpu"
    assert measured.device
    assert measured.host_memory_bytes == measured.device_memory_bytes > 2**28
    assert measured.cores >= 1
    assert measured.tokens_per_second == 0.0


def test_a_card_is_taken_when_there_is_one() -> None:
    assert measure_capacity("auto", [SMALL]).device == "Small"
    chosen = measure_capacity("cuda:0", [SMALL, LARGE])
    assert (chosen.device, chosen.device_kind, chosen.device_memory_bytes) == (
        "Small", "cuda", 8_000,
    )  # fmt: skip
    assert measure_capacity("cpu", [SMALL]).device_kind == "cpu"


def test_of_several_cards_that_with_the_most_memory_is_taken() -> None:
    assert devices_of("auto", [SMALL, LARGE]) == ("cuda:1",)
    assert devices_of("auto", [LARGE, SMALL]) == ("cuda:0",)
    assert devices_of("auto", [SMALL, SMALL]) == ("cuda:0",)
    assert measure_capacity("auto", [SMALL, LARGE]).device == "Large"
    assert training_gpus("auto", [SMALL, LARGE]) == [LARGE]


def test_a_card_that_this_torch_cannot_use_does_not_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": [])
    monkeypatch.setattr(capacity, "torch_has_cuda", lambda: False)
    assert devices_of("auto", [SMALL]) == devices_of("all", [SMALL]) == ("cpu",)
    assert trains_on_host("auto", [SMALL])
    for device in ("auto", "all", "cuda", "cuda:1"):
        assert device_memories(device, [SMALL]) == []
        assert training_gpus(device, [SMALL]) == []


@pytest.mark.parametrize(
    ("setting", "kind", "device"),
    [("1", "cuda", "Large"), ("GPU-bb", "cuda", "Large"), ("1,0", "cuda", "Large")],
)
def test_cuda_visible_devices_chooses(
    monkeypatch: pytest.MonkeyPatch, setting: str, kind: str, device: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    measured = measure_capacity("auto", [SMALL, LARGE])
    assert (measured.device_kind, measured.device) == (kind, device)


def test_cuda_visible_devices_may_hide_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": [])
    assert measure_capacity("auto", [SMALL]).device_kind == "cpu"


def test_the_trainer_knows_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": [])
    # An owner may let CUDA count the fastest card first; NVML counts by bus.
    assert measure_capacity("cuda:0", [SMALL, LARGE], "Large").device == "Large"
    assert measure_capacity("cpu", [SMALL]).device_kind == "cpu"
    apple = measure_capacity("mps", [], "Apple M2")
    assert (apple.device, apple.device_kind) == ("Apple M2", "mps")
    assert apple.device_memory_bytes == apple.host_memory_bytes


def test_a_cuda_device_that_nvml_does_not_know_is_amd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = tmp_path / "card1" / "device"
    card.mkdir(parents=True)
    (card / "mem_info_vram_total").write_text("17163091968\n")
    assert capacity._amd_memory_bytes(tmp_path) == [17163091968]
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": [17163091968])
    monkeypatch.setattr(capacity, "torch_has_rocm", lambda: True)
    measured = measure_capacity("cuda:0", [], "Radeon")
    assert (measured.device, measured.device_kind) == ("Radeon", "rocm")
    assert measured.device_memory_bytes == 17163091968


def test_an_amd_gpu_that_this_torch_cannot_use_does_not_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most processors of AMD have a small one of their own. With half a gigabyte it would be too
    small for every run, where the processor is not."""
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": [2**29])
    monkeypatch.setattr(capacity, "torch_has_rocm", lambda: False)
    assert devices_of("auto", []) == ("cpu",)
    assert device_memories("auto", []) == []
    assert trains_on_host("auto", [])


@pytest.mark.parametrize(
    ("text", "has_cuda", "has_rocm"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False, False),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'\n", False, True),
        ("hip = '5.2.21151'\n", False, True),
        ("cuda = '12.8'\nhip = None\n", True, False),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", True, False),
    ],
)
def test_torchs_own_file_says_whose_cards_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, has_cuda: bool, has_rocm: bool
) -> None:
    (tmp_path / "version.py").write_text(text)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    assert torch_has_cuda() is has_cuda
    assert torch_has_rocm() is has_rocm


def test_limits_of_a_container_count(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1000000\n")
    (group / "cpu.max").write_text("150000 100000\n")
    assert host_memory_bytes(tmp_path) == 1_000_000
    assert num_usable_cores(tmp_path) == 1
    (group / "memory.max").write_text("max\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert host_memory_bytes(tmp_path) == host_memory_bytes(tmp_path / "none") > 1_000_000
    assert num_usable_cores(tmp_path) == num_usable_cores(tmp_path / "none")


def test_the_name_of_the_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast   CPU @ 3 GHz\n")
    assert cpu_name(cpuinfo) == "Fast CPU @ 3 GHz"
    cpuinfo.write_text("model name\t: " + "x" * 1000)
    assert len(cpu_name(cpuinfo)) == 256
    assert cpu_name(tmp_path / "none")


def test_the_daemons_shell_never_imports_torch() -> None:
    program = (
        "import sys, gossamer.node.cli\n"
        "from gossamer.node.commands.daemon import start\n"
        "from gossamer.node.commands.founder import plan\n"
        "from gossamer.node.commands.machine import doctor\n"
        "from gossamer.node.app.http import http\n"
        "from gossamer.node.telemetry import gpus, logs, metrics\n"
        "from gossamer.node.machine import capacity\n"
        "capacity.measure_capacity('auto', gpus.Gpus().read())\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
