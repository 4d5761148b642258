"""What only a card shows: its own kernels, its memory, its compiler. Skipped on a machine without.

    pytest tests/trainer/on_card

Cards of NVIDIA's from Ampere on, and AMD's through ROCm. Some two minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.compiling.compiler import Compiler
from gossamer.trainer.inner_step.gradients import Gradients
from gossamer.trainer.inner_step.muon import optimizer_for
from gossamer.trainer.ipc.messages import Step
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.model import Decoder, decoder_on
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources import accelerator
from gossamer.trainer.resources.device import Device, choose_device
from gossamer.trainer.resources.passes import Pass, Passes
from gossamer.trainer.resources.transfer import Transfer
from tests.support.local_rounds import begin
from tests.support.small_model import INNER, MODEL

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch finds no CUDA card"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own compiler
]

WIDE = msgspec.structs.replace(
    PRESETS["10m"].model, num_layers=2, vocabulary=4096, context=128, num_kv_heads=3
)
"""Heads of 64 values, in groups, as flash attention takes them."""


@pytest.fixture(scope="module")
def card() -> Device:
    return choose_device("cuda:0", WIDE.width)


def sequences_of(model: ModelConfig, count: int) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(0, model.vocabulary, (count, model.context + 1))


def gradients_on(
    device: Device, model: ModelConfig, sequences: np.ndarray, compiler: bool = False
) -> tuple[float, list[torch.Tensor], Gradients, Compiler]:
    decoder = decoder_on(model, device)
    decoder.initialise(3)
    decoder.loss_rows = 256  # so that the loss of a pass is in two chunks
    found = Compiler(decoder, device, model, "on" if compiler else "off")
    passes = Passes(device, model, len(sequences), wanted=4)
    gradients = Gradients(decoder, device, passes, lambda: None, None, found)
    loss, _ = gradients.take(sequences)
    return loss, taken(decoder), gradients, found


def taken(decoder: Decoder) -> list[torch.Tensor]:
    return [p.grad.float().cpu() for p in decoder.parameters() if p.grad is not None]


def largest_difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    pairs = zip(one, other, strict=True)
    return max(float((a - b).norm() / a.norm()) for a, b in pairs)


def test_half_precision_on_the_card_is_fp32_on_the_cpu_but_for_rounding(card: Device) -> None:
    sequences = sequences_of(WIDE, 8)
    loss, gradients, *_ = gradients_on(choose_device("cpu"), WIDE, sequences)
    card_loss, card_gradients, *_ = gradients_on(card, WIDE, sequences)
    assert card.precision in ("bf16", "fp16")
    assert card_loss == pytest.approx(loss, rel=2e-3)
    assert largest_difference(gradients, card_gradients) < 5e-2


def test_grouped_queries_take_flash_attention(card: Device) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sequences = sequences_of(WIDE, 4)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error if it does not take them
        flash, gradients, *_ = gradients_on(card, WIDE, sequences)
    plain, others, *_ = gradients_on(card, WIDE, sequences)
    assert flash == pytest.approx(plain, rel=1e-3)
    assert largest_difference(gradients, others) < 2e-2


def test_the_compiled_layers_have_the_gradients_of_the_eager_ones(
    card: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    sequences = sequences_of(WIDE, 8)
    loss, eager, gradients, compiler = gradients_on(card, WIDE, sequences, compiler=True)
    deadline = time.monotonic() + 200
    while not compiler.is_in_use:
        gradients.drop()
        assert compiler._is_on, "see the log"
        assert time.monotonic() < deadline
        gradients.take(sequences)
    gradients.drop()
    compiled_loss, _ = gradients.take(sequences)
    assert compiler.is_in_use
    assert compiled_loss == pytest.approx(loss, rel=1e-3)
    assert largest_difference(eager, taken(gradients._decoder)) < 2e-2


@contextmanager
def limited_to(device: torch.device, num_bytes: float) -> Iterator[None]:
    """The process has this much of the card, and nothing of it is taken yet."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    accelerator.limit_memory(device, num_bytes / accelerator.total_bytes(device))
    try:
        yield
    finally:
        accelerator.limit_memory(device, 1.0)


def test_memory_that_runs_out_makes_passes_smaller(card: Device) -> None:
    """The owner's limit on the card's memory is torch's, and its error is the real one."""
    model = PRESETS["10m"].model
    device = card.torch_device
    with limited_to(device, 1.5e9):
        decoder = decoder_on(model, card)
        decoder.initialise(3)
        passes = Passes(card, model, 256, wanted=256)
        gradients = Gradients(decoder, card, passes, lambda: None)
        loss, norm = gradients.take(sequences_of(model, 256))
        assert np.isfinite([loss, norm]).all()
        assert passes.present.sequences < 256 or passes.present.checkpointing
        assert torch.cuda.max_memory_reserved(device) <= 1.6e9


@pytest.mark.parametrize("length", [1, 1000, 2_000_000])
def test_vectors_come_and_go_whole(card: Device, length: int) -> None:
    transfer = Transfer(card.torch_device, piece_elements=300_000)
    random = np.random.default_rng(1)
    vector, other = random.standard_normal((2, length)).astype(np.float32)
    flat = torch.zeros(length, device=card.torch_device)
    transfer.load(flat, vector)
    back = torch.from_numpy(other.copy())
    transfer.receive(flat, lambda place, values: back[place].sub_(values))
    assert np.array_equal(back.numpy(), other - vector)
    before, after = torch.from_numpy(vector), torch.from_numpy(other)
    transfer.send(
        flat,
        lambda place, buffer: torch.sub(after[place], before[place], out=buffer),
        lambda part, moved: part.add_(moved),
    )
    assert np.array_equal(flat.cpu().numpy(), vector + (other - vector))


MakeOnCard = Callable[..., LocalTrainer]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("moments", ["fp32", "bf16", "8bit"])
def test_a_trainer_learns_on_the_card(
    make_trainer: MakeOnCard, shard: str, optimizer: str, moments: str
) -> None:
    inner = msgspec.structs.replace(INNER, optimizer=optimizer)
    trainer = make_trainer(device="cuda:0", inner=inner, moments=moments)
    trainer.genesis()
    steps: list[Step] = []
    for number in range(4):
        first = 10 * number
        trainer.push(0, shard, 4 * 17 * first, 4 * 17 * (first + 10))
        begin(trainer, number + 1, first, 10, 600.0, "local")
        while not trainer.round.is_over:
            step = trainer.step()
            assert step is not None
            steps.append(step)
        assert trainer.finish().tokens > 0
    assert steps[-1].loss < 0.8 * steps[0].loss
    times = [step.times for step in steps if step.times is not None]
    assert len(times) == len(steps)
    assert sum(each.backward for each in times) > 0
    assert steps[-1].device_memory_bytes > 0


def test_the_work_that_is_handed_over_is_the_difference(
    make_trainer: MakeOnCard, shard: str
) -> None:
    base = np.zeros(MODEL.num_parameters, np.float32)
    work = np.zeros_like(base)
    trainer = make_trainer(base, work, device="cuda:0")
    trainer.genesis()
    trainer.push(0, shard, 0, 4 * 17 * 5)
    begin(trainer, 1, 0, 5, 600.0)
    while not trainer.round.is_over:
        assert trainer.step() is not None
    trainer.finish()
    assert np.array_equal(work, base - trainer._decoder.flat.cpu().numpy())


@pytest.mark.parametrize("name", ["40m", "150m"])
def test_the_pass_that_fits_by_the_estimate_fits(card: Device, name: str) -> None:
    """At the first try, or after one halving, in 8 GB."""
    run = PRESETS[name]
    with limited_to(card.torch_device, 8e9):
        limited = _Limited(card.torch_device, card.name, card.precision)
        decoder = decoder_on(run.model, limited)
        decoder.flat.normal_(0.0, 0.02)
        optimizer = optimizer_for(decoder, run.inner, card.coarse_dtype, "fp32")
        passes = Passes(limited, run.model, run.inner.sequences_per_step)
        chosen: Pass = passes.present
        gradients = Gradients(decoder, limited, passes, lambda: None)
        count = min(run.inner.sequences_per_step, 2 * chosen.sequences)
        loss, _ = gradients.take(sequences_of(run.model, count))
        assert np.isfinite(loss)
        assert passes.present.sequences >= chosen.sequences // 2
        optimizer.step(1e-6)


class _Limited(Device):
    """A card of which 8 GB are there."""

    def free_bytes(self) -> int:
        return 8 * 10**9 - torch.cuda.memory_allocated(self.torch_device)
