"""The device that a name means, with the answers of torch replaced."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gossamer.trainer.resources import accelerator
from gossamer.trainer.resources.device import choose_device, choose_devices


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory of each card of this machine, by CUDA's count."""
    sizes: list[int] = []

    def properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(total_memory=sizes[device.index])

    monkeypatch.setattr(accelerator, "kind", lambda: "cuda" if sizes else "")
    monkeypatch.setattr(accelerator, "num_devices", lambda: len(sizes))
    monkeypatch.setattr(accelerator, "name_of", lambda device: f"Card {device.index}")
    monkeypatch.setattr(accelerator, "precision_of", lambda _device: "bf16")
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return sizes


@pytest.mark.parametrize(
    ("memory", "name"),
    [([8, 80], "Card 1"), ([80, 8], "Card 0"), ([8, 80, 80], "Card 1"), ([8], "Card 0")],
)
def test_of_several_cards_that_with_the_most_memory_is_taken(
    sizes: list[int], memory: list[int], name: str
) -> None:
    sizes += memory
    assert choose_device("auto").name == name
    assert choose_devices("all")[0].name == name


@pytest.mark.usefixtures("sizes")
def test_without_a_card_the_cpu_is_taken() -> None:
    assert choose_device("auto").torch_device.type == "cpu"
