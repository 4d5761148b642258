"""The precision of a device, on fakes of two cards; and fp16 with its scale, on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer import local_trainer
from gossamer.trainer.inner_step.gradients import GOOD_STEPS, SCALE_FIRST, LossScale
from gossamer.trainer.layers import Layer
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources import accelerator
from gossamer.trainer.resources import device as device_module
from gossamer.trainer.resources.device import Device, choose_device, grouped_dtypes_of
from tests.trainer.conftest import MakeTrainer, train

# Generations of NVIDIA's: Pascal, Volta, Turing, Ampere.
CAPABILITIES = {"P40": (6, 1), "V100": (7, 0), "T4": (7, 5), "A10": (8, 6)}
GIGABYTES = {"P40": 24, "V100": 16, "T4": 16, "A10": 24}


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes torch see these cards. The first is the current one, as always at the start."""

    def make(*names: str) -> None:
        current = [0]

        @contextmanager
        def device(chosen: torch.device) -> Iterator[None]:
            before, current[0] = current[0], chosen.index or 0
            try:
                yield
            finally:
                current[0] = before

        def properties(chosen: torch.device | int | None = None) -> SimpleNamespace:
            index = chosen.index if isinstance(chosen, torch.device) else chosen
            name = names[current[0] if index is None else index]
            major, minor = CAPABILITIES[name]
            return SimpleNamespace(major=major, minor=minor, total_memory=GIGABYTES[name])

        def capability(chosen: torch.device | None = None) -> tuple[int, int]:
            found = properties(chosen)
            return found.major, found.minor

        fakes = {
            "is_available": lambda: True,
            "device_count": lambda: len(names),
            "current_device": lambda: current[0],
            "device": device,
            "get_device_name": lambda chosen: names[chosen.index],
            "get_device_properties": properties,
            "get_device_capability": capability,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: len(names))

    return make


@pytest.mark.parametrize(
    ("names", "wanted", "precision"),
    [
        (("A10", "T4"), "cuda:0", "bf16"),
        (("A10", "T4"), "cuda:1", "fp16"),
        (("T4", "A10"), "cuda:1", "bf16"),
        (("T4", "A10"), "cuda:0", "fp16"),
        (("V100",), "auto", "fp16"),
        (("P40", "A10"), "auto", "fp32"),
    ],
)
def test_the_chosen_card_is_asked_for_its_precision(
    cards: Callable[..., None], names: tuple[str, ...], wanted: str, precision: str
) -> None:
    cards(*names)
    device = choose_device(wanted)
    index = int(wanted.partition(":")[2] or 0)
    assert (device.name, device.torch_device.index) == (names[index], index)
    assert device.precision == precision


@pytest.mark.parametrize("index", [0, 1])
def test_bf16_that_an_intel_card_emulates_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    cards = [SimpleNamespace(has_bfloat16_conversions=has_bf16) for has_bf16 in (False, True)]
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.xpu, "get_device_properties", lambda device=None: cards[device.index if device else 0]
    )
    precision = accelerator.precision_of(torch.device("xpu", index))
    assert precision == ("fp16", "bf16")[index]


@pytest.mark.parametrize(
    ("has_bf16", "width", "precision"),
    [(True, 256, "bf16"), (True, 128, "fp32"), (True, 0, "fp32"), (False, 256, "fp32")],
)
def test_a_cpu_takes_bf16_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool, width: int, precision: str
) -> None:
    monkeypatch.setattr(device_module, "cpu_has_bf16", lambda: has_bf16)
    assert choose_device("cpu", width).precision == precision


def test_bf16_on_a_cpu_learns_like_fp32(
    make_trainer: MakeTrainer, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = train(make_trainer(), shard, 40)
    monkeypatch.setattr(device_module, "cpu_has_bf16", lambda: True)
    monkeypatch.setattr(device_module, "CPU_BF16_WIDTH_MIN", 32)
    trainer = make_trainer()
    assert trainer.device.precision == "bf16"
    half = train(trainer, shard, 40)
    assert half[-1].loss == pytest.approx(full[-1].loss, rel=0.03)
    assert [step.loss for step in half] != [step.loss for step in full]
    again = train(make_trainer(), shard, 40)
    assert [step.loss for step in half] == [step.loss for step in again]


@pytest.mark.parametrize(
    ("kind", "dtype", "wanted"),
    [
        ("cuda:1", torch.bfloat16, True),
        ("cuda:1", torch.float32, False),
        ("cuda:0", torch.float16, False),
        ("mps", torch.float32, False),
        ("cpu", torch.float32, True),
    ],
)
def test_grouped_queries_without_a_kernel_get_copies_of_their_keys(
    cards: Callable[..., None], kind: str, dtype: torch.dtype, wanted: bool
) -> None:
    """Otherwise torch's plain attention is taken, which builds a matrix of tokens by tokens."""
    cards("T4", "A10")
    assert (dtype in grouped_dtypes_of(torch.device(kind))) is wanted


def test_copies_of_keys_give_the_same_attention(model_config: ModelConfig) -> None:
    decoder = Decoder(model_config)
    decoder.initialise(5)
    tokens = torch.arange(32).reshape(2, 16)
    with torch.no_grad():
        grouped = decoder(tokens)
        for layer in decoder.layers:
            assert isinstance(layer, Layer)
            layer.self_attn.grouped_dtypes = ()
        torch.testing.assert_close(decoder(tokens), grouped)


def test_fp32_is_fp32(cards: Callable[..., None]) -> None:
    """The tensor cores' TF32 has ten bits of a product's inputs, and no fp32 product takes it."""
    cards("P40", "A10")
    for wanted in ("cuda:0", "cuda:1"):
        torch.set_float32_matmul_precision("high")
        try:
            choose_device(wanted)
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cuda.matmul.allow_tf32
        finally:
            torch.set_float32_matmul_precision("highest")


def _half(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(torch.device("cpu"), "a card without bf16", "fp16")
    monkeypatch.setattr(local_trainer, "take_device", lambda _wanted, _width: device)


def test_fp16_learns_like_fp32(
    make_trainer: MakeTrainer, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = train(make_trainer(), shard, 40)
    _half(monkeypatch)
    trainer = make_trainer()
    assert trainer.device.precision == "fp16"
    half = train(trainer, shard, 40)
    assert half[-1].loss < 0.7 * half[0].loss
    assert not any(step.skipped for step in half)
    for one, other in zip(full[:5], half[:5], strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-2)
        assert other.gradient_norm == pytest.approx(one.gradient_norm, rel=2e-2)


def test_small_gradients_survive_fp16(
    model_config: ModelConfig, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient below fp16's range is zero without a scale."""
    _half(monkeypatch)
    real, tiny = Decoder.loss_sum, 2.0**-24
    monkeypatch.setattr(Decoder, "loss_sum", lambda self, sequences: real(self, sequences) * tiny)
    sequences = np.arange(4 * 17).reshape(4, 17) % model_config.vocabulary
    norms = []
    for scale in (1.0, SCALE_FIRST):
        gradients = make_trainer()._own
        gradients._scale.value = scale
        norms.append(gradients.take(sequences)[1])
    assert norms[1] > 1.2 * norms[0]


def test_a_gradient_that_overflows_is_taken_again_with_a_smaller_scale(
    make_trainer: MakeTrainer, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _half(monkeypatch)
    trainer = make_trainer()
    scale = trainer._own._scale
    scale.value = 2.0**30
    steps = train(trainer, shard, 2)
    assert scale.value < 2.0**30
    assert not any(step.skipped for step in steps)
    assert all(np.isfinite(step.gradient_norm) for step in steps)


def test_a_model_that_is_broken_is_no_reason_for_another_scale(
    make_trainer: MakeTrainer,
    shard: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _half(monkeypatch)
    trainer = make_trainer()
    trainer._base[0] = np.nan
    calls = []
    real = Decoder.loss_sum

    def loss_sum(self: Decoder, sequences: torch.Tensor) -> torch.Tensor:
        calls.append(len(sequences))
        return real(self, sequences)

    monkeypatch.setattr(Decoder, "loss_sum", loss_sum)
    steps = train(trainer, shard, 1)
    assert steps[0].skipped
    assert len(calls) == 1
    assert trainer._own._scale.value == SCALE_FIRST


def test_the_scale_grows_after_many_good_steps_and_has_bounds() -> None:
    scale = LossScale()
    for _ in range(GOOD_STEPS - 1):
        scale.went_well()
    assert scale.value == SCALE_FIRST
    scale.went_well()
    assert scale.value == 2 * SCALE_FIRST
    for _ in range(20 * GOOD_STEPS):
        scale.went_well()
    largest = scale.value
    assert largest == 2.0**24
    attempts = 0
    while scale.overflowed():
        attempts += 1
    assert attempts == 24
    assert scale.value == 1.0
