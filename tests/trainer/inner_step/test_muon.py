"""Muon for hidden matrices, beside AdamW for the rest: its arithmetic, its state, its rounds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ImportedShape, ModelConfig
from gossamer.trainer import local_trainer
from gossamer.trainer.inner_step import muon
from gossamer.trainer.inner_step.muon import Muon, optimizer_for, orthogonal
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.device import Device, cpu_has_bf16
from tests.support.local_rounds import steps_of
from tests.trainer.conftest import MakeTrainer, train

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def muon_config(inner_config: InnerConfig) -> InnerConfig:
    return msgspec.structs.replace(inner_config, optimizer="muon")


def set_gradients(decoder: Decoder, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in decoder.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_the_step_is_torchs_muon_and_adamw(
    model_config: ModelConfig, muon_config: InnerConfig
) -> None:
    model = msgspec.structs.replace(model_config, tied_embeddings=False)
    ours, theirs = Decoder(model), Decoder(model)
    for decoder in (ours, theirs):
        decoder.initialise(1)
    hidden = {f"layers.{name}": p for name, p in theirs.layers.named_parameters() if p.ndim > 1}
    assert len(hidden) == 2 * 7
    reference = torch.optim.Muon(
        hidden.values(), weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    others = {name: p for name, p in theirs.named_parameters() if name not in hidden}
    assert "embed_tokens.weight" in others
    assert "lm_head.weight" in others
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in others.values() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in others.values() if p.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=True,
    )
    optimizer = Muon(ours, muon_config, torch.bfloat16)
    for step in range(3):
        rate = 1e-2 * (step + 1)
        before = ours.flat.clone()
        for decoder in (ours, theirs):
            set_gradients(decoder, step)
        for group in (*reference.param_groups, *adamw.param_groups):
            group["lr"] = rate
        optimizer.step(rate)
        reference.step()  # type: ignore[no-untyped-call]
        adamw.step()
        for (name, found), expected in zip(
            ours.named_parameters(), theirs.parameters(), strict=True
        ):
            if name in others:
                assert torch.equal(found, expected), name
        # Iterations in bf16 round differently with the norm taken before the cast.
        error = (ours.flat - theirs.flat).norm() / (ours.flat - before).norm()
        assert error < 2e-2
    assert optimizer.num_steps == 3


def test_a_manifest_without_the_field_means_adamw(
    model_config: ModelConfig, inner_config: InnerConfig, muon_config: InnerConfig
) -> None:
    decoder = Decoder(model_config)
    explicit = msgspec.structs.replace(inner_config, optimizer="adamw")
    for inner in (inner_config, explicit):
        assert isinstance(optimizer_for(decoder, inner, torch.float32), AdamW)
    assert isinstance(optimizer_for(decoder, muon_config, torch.float32), Muon)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_iterations_bring_singular_values_near_one(dtype: torch.dtype, size: float) -> None:
    generator = torch.Generator().manual_seed(3)
    given = size * torch.randn((3, 24, 40), generator=generator)
    u, _, v = torch.linalg.svd(given, full_matrices=False)
    found = orthogonal(given.clone(), dtype).float()
    values = torch.linalg.svdvals(found)
    assert 0.65 < values.min() < values.max() < 1.25
    # In the basis of the given singular vectors it is almost diagonal.
    diagonal = u.mT @ found @ v.mT
    rest = diagonal - torch.diag_embed(diagonal.diagonal(dim1=1, dim2=2))
    assert rest.norm() < 0.05 * diagonal.norm()


def test_a_gradient_of_zeros_moves_nothing_but_by_the_decay() -> None:
    assert not orthogonal(torch.zeros((1, 4, 8)), torch.bfloat16).any()


def test_an_update_has_the_size_of_adamws(
    model_config: ModelConfig, muon_config: InnerConfig
) -> None:
    decoder = Decoder(model_config)
    decoder.initialise(1)
    before = [p.clone() for p in decoder.layers.parameters()]
    set_gradients(decoder, 1)
    inner = msgspec.structs.replace(muon_config, weight_decay=0.0)
    Muon(decoder, inner, torch.float32).step(1e-2)
    for old, new in zip(before, decoder.layers.parameters(), strict=True):
        rms = (new - old).square().mean().sqrt().item()
        assert rms == pytest.approx(0.2e-2 if new.ndim > 1 else 1e-2, rel=0.2)


def test_biases_and_norms_of_an_imported_family_are_adamws(
    model_config: ModelConfig, muon_config: InnerConfig
) -> None:
    shape = ImportedShape(family="qwen2", head_width=8, rope_scaling=None)
    model = msgspec.structs.replace(model_config, imported=shape)
    optimizer = Muon(Decoder(model), muon_config, torch.float32)
    num_hidden = 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 48)
    assert optimizer.momentum.tensors[""].numel() == model.hidden_matrices == num_hidden
    rest = model.num_parameters - num_hidden
    assert optimizer.vectors["first_moment"][0].tensors[""].numel() == rest
    assert optimizer.vectors["second_moment"][0].tensors[""].numel() == rest


def test_matrices_that_go_together_get_what_each_would_get_alone(
    model_config: ModelConfig, muon_config: InnerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for elements_max in (1, 2**22):
        monkeypatch.setattr(muon, "_BATCH_ELEMENTS_MAX", elements_max)
        decoder = Decoder(model_config)
        decoder.initialise(1)
        set_gradients(decoder, 1)
        optimizer = Muon(decoder, muon_config, torch.float32)
        optimizer.step(1e-2)
        found.append(decoder.flat.clone())
        assert len(optimizer._batches) == (14 if elements_max == 1 else 3)
    torch.testing.assert_close(found[0], found[1])


def test_the_loss_falls_and_a_seed_has_one_result(
    make_trainer: MakeTrainer, muon_config: InnerConfig, shard: str
) -> None:
    trainers = [make_trainer(inner=muon_config) for _ in range(2)]
    steps = [train(trainer, shard, 40) for trainer in trainers]
    assert steps[0][-1].loss < 0.7 * steps[0][0].loss
    one, other = (trainer._pseudo_gradient for trainer in trainers)
    assert one.tobytes() == other.tobytes()
    adamw = make_trainer()
    train(adamw, shard, 40)
    assert (adamw._pseudo_gradient != one).any()


def test_passes_of_any_size_take_the_same_steps(
    make_trainer: MakeTrainer, muon_config: InnerConfig, shard: str
) -> None:
    whole, parts = (make_trainer(inner=muon_config, micro_batch=size) for size in (4, 1))
    for one, other in zip(train(whole, shard, 5), train(parts, shard, 5), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-3)
    error = np.linalg.norm(whole._pseudo_gradient - parts._pseudo_gradient)
    assert error < 0.05 * np.linalg.norm(whole._pseudo_gradient)


def test_fp16_and_its_scale_learn_like_fp32(
    make_trainer: MakeTrainer,
    muon_config: InnerConfig,
    shard: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = train(make_trainer(inner=muon_config), shard, 20)
    device = Device(torch.device("cpu"), "a card without bf16", "fp16")
    monkeypatch.setattr(local_trainer, "take_device", lambda _wanted, _width: device)
    half = train(make_trainer(inner=muon_config), shard, 20)
    assert not any(step.skipped for step in half)
    assert half[-1].loss == pytest.approx(full[-1].loss, rel=0.05)


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(
    make_trainer: MakeTrainer, muon_config: InnerConfig, shard: str, tmp_path: Path
) -> None:
    path = tmp_path / "optimizer"
    trainer = make_trainer(inner=muon_config, optimizer_path=str(path))
    train(trainer, shard, 5)
    assert trainer.save() == ""
    again = make_trainer(inner=muon_config, optimizer_path=str(path))
    assert (again.optimizer_problem, steps_of(again)) == ("", 5)
    assert isinstance(trainer._optimizer, Muon)
    assert isinstance(again._optimizer, Muon)
    for name, (vector, _) in trainer._optimizer.vectors.items():
        values = vector.tensors[""]
        assert values.any()
        assert torch.equal(values, again._optimizer.vectors[name][0].tensors[""]), name
    again._decoder.flat.copy_(trainer._decoder.flat)
    again._has_local = True
    train(trainer, shard, 3, 5)
    train(again, shard, 3, 5)
    assert trainer._pseudo_gradient.tobytes() == again._pseudo_gradient.tobytes()


@pytest.mark.parametrize("is_muon_first", [True, False])
def test_moments_of_another_optimizer_are_reported_and_ignored(
    make_trainer: MakeTrainer,
    inner_config: InnerConfig,
    muon_config: InnerConfig,
    shard: str,
    tmp_path: Path,
    is_muon_first: bool,
) -> None:
    path = tmp_path / "optimizer"
    configs = (muon_config, inner_config) if is_muon_first else (inner_config, muon_config)
    trainer = make_trainer(inner=configs[0], optimizer_path=str(path))
    train(trainer, shard, 1)
    trainer.save()
    again = make_trainer(inner=configs[1], optimizer_path=str(path))
    assert "another model or format" in again.optimizer_problem
    assert steps_of(again) == 0


def test_damage_in_the_momentum_is_found(
    make_trainer: MakeTrainer, muon_config: InnerConfig, shard: str, tmp_path: Path
) -> None:
    path = tmp_path / "optimizer"
    trainer = make_trainer(inner=muon_config, optimizer_path=str(path))
    train(trainer, shard, 1)
    assert isinstance(trainer._optimizer, Muon)
    trainer._optimizer.momentum.tensors[""][5] = float("nan")
    trainer.save()
    again = make_trainer(inner=muon_config, optimizer_path=str(path))
    assert "not finite" in again.optimizer_problem
    assert isinstance(again._optimizer, Muon)
    assert not again._optimizer.momentum.tensors[""].any()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fma avx512f avx512_bf16", True), ("amx_bf16", True), ("avx512f avx2", False), ("", False)],
)
def test_a_processor_says_whether_it_multiplies_bf16(
    tmp_path: Path, flags: str, expected: bool
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"model name\t: One\nflags\t\t: fpu {flags}\n")
    assert cpu_has_bf16(tmp_path) is expected
