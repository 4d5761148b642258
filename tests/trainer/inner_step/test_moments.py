"""Moments in bf16 and in 8 bits: what they keep, updates with them, and their file."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.inner_step import moments
from gossamer.trainer.inner_step.moments import MomentVector, Span, code_values, spans_of, zeros
from gossamer.trainer.inner_step.muon import Muon, optimizer_for
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.ipc.choices import MomentFormat
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.memory_estimate import MOMENT_BLOCK, moment_bytes
from tests.support.local_rounds import steps_of
from tests.trainer.conftest import MakeTrainer, train

CPU = torch.device("cpu")
FORMATS: tuple[MomentFormat, ...] = get_args(MomentFormat)
COMPACT: tuple[MomentFormat, ...] = ("bf16", "8bit")
LENGTHS = (3 * MOMENT_BLOCK, 100, 1)
"""A parameter of whole blocks, one with a part of a block, and a single number."""


def spans(moment_format: MomentFormat) -> list[Span]:
    return [span for pieces in spans_of(LENGTHS, moment_format) for span in pieces]


def filled(
    moment_format: MomentFormat, *, is_signed: bool = True
) -> tuple[MomentVector, np.ndarray]:
    """A vector, and what was written to it: values of many magnitudes."""
    generator = np.random.default_rng(1)
    values = generator.normal(size=sum(LENGTHS)) * 10.0 ** generator.integers(-6, 0, sum(LENGTHS))
    given = (values if is_signed else np.abs(values)).astype(np.float32)
    vector = zeros(spans(moment_format), moment_format, CPU, is_signed=is_signed)
    for span in spans(moment_format):
        vector.write(span, torch.from_numpy(given[span.start : span.stop].copy()), 0)
    return vector, given


def read(vector: MomentVector, moment_format: MomentFormat) -> np.ndarray:
    return np.concatenate([vector.read(span).numpy() for span in spans(moment_format)])


@pytest.mark.parametrize("is_signed", [True, False])
def test_eight_bits_are_the_nearest_numbers_of_each_block(is_signed: bool) -> None:
    vector, given = filled("8bit", is_signed=is_signed)
    numbers = np.array(code_values(is_signed=is_signed), np.float32)
    expected = []
    for span in spans("8bit"):
        for start in range(span.start, span.stop, MOMENT_BLOCK):
            block = given[start : min(start + MOMENT_BLOCK, span.stop)]
            scale = np.abs(block).max()
            nearest = np.abs(block[:, None] / scale - numbers).argmin(1)
            expected.append(numbers[nearest] * scale)
    np.testing.assert_allclose(read(vector, "8bit"), np.concatenate(expected), rtol=1e-6)


def test_codes_are_those_of_dynamic_quantization() -> None:
    """Figures of bitsandbytes' `create_dynamic_map`, except for the 0 without a sign."""
    signed, unsigned = code_values(is_signed=True), code_values(is_signed=False)
    for numbers in (signed, unsigned):
        assert len(set(numbers)) == 256
        assert sorted(numbers) == list(numbers)
        assert numbers[-1] == 1.0
    assert signed[0] == pytest.approx(-0.99296875)
    assert signed[127] == 0.0
    assert signed[128] == pytest.approx(5.5e-7)
    assert [-each for each in signed[:127]] == list(reversed(signed[128:255]))
    assert unsigned[1] == pytest.approx(3.25e-7)
    assert unsigned[-2] == pytest.approx(0.996484375)
    assert 0 < unsigned[0] < unsigned[1]


def test_a_block_of_zeros_stays_zero() -> None:
    for moment_format, is_signed in product(FORMATS, (True, False)):
        vector = zeros(spans(moment_format), moment_format, CPU, is_signed=is_signed)
        assert not read(vector, moment_format).any()
        for span in spans(moment_format):
            vector.write(span, torch.zeros(span.length), 3)
        assert not read(vector, moment_format).any()


def test_bf16_is_right_in_the_mean() -> None:
    (span,) = (spans("bf16")[0],)
    given = torch.linspace(-1.0, 1.0, span.length)
    vector = zeros([span], "bf16", CPU)
    total = torch.zeros(span.length, dtype=torch.float64)
    for turn in range(256):
        vector.write(span, given.clone(), turn)
        kept = vector.read(span)
        assert ((kept - given).abs() <= given.abs() / 128).all()
        total += kept
    # A value of bf16 is at most 2^-7 of it away, and 256 turns leave at most some 2^-7 of that.
    assert ((total / 256 - given).abs() <= given.abs() * 2.0**-13).all()


def test_a_slow_moment_does_not_stand_still_in_bf16() -> None:
    """With a decay of 0.999 a step changes it by less than half a unit of bf16."""
    span = Span(0, 1000, 0)
    vector = zeros([span], "bf16", CPU, is_signed=False)
    vector.write(span, torch.ones(1000), 0)
    for turn in range(1, 1001):
        vector.write(span, vector.read(span).lerp_(torch.zeros(1000), 1e-3), turn)
    assert vector.read(span).mean().item() == pytest.approx(0.999**1000, rel=0.02)


def set_gradients(decoder: Decoder, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in decoder.parameters():
        parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=generator)


def updated(
    model: ModelConfig, inner: InnerConfig, moment_format: MomentFormat, num_steps: int = 5
) -> tuple[torch.Tensor, AdamW | Muon]:
    """The change of the parameters by some updates, and the optimiser."""
    decoder = Decoder(model)
    decoder.initialise(1)
    before = decoder.flat.clone()
    optimizer = optimizer_for(decoder, inner, torch.float32, moment_format)
    for step in range(num_steps):
        set_gradients(decoder, step)
        optimizer.step(1e-3)
    return decoder.flat - before, optimizer


@pytest.mark.parametrize("moment_format", COMPACT)
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_updates_are_nearly_those_with_fp32(
    model_config: ModelConfig, inner_config: InnerConfig, name: str, moment_format: MomentFormat
) -> None:
    inner = msgspec.structs.replace(inner_config, optimizer=name)
    expected, _ = updated(model_config, inner, "fp32")
    found, optimizer = updated(model_config, inner, moment_format)
    assert (found - expected).norm() < 0.03 * expected.norm()
    assert optimizer.num_steps == 5


@pytest.mark.parametrize("moment_format", COMPACT)
def test_an_update_is_that_of_fp32_with_what_is_read(
    model_config: ModelConfig, inner_config: InnerConfig, moment_format: MomentFormat
) -> None:
    """The plain reference: all moments are read, updated in fp32 and written."""
    _, optimizer = updated(model_config, inner_config, moment_format)
    ours, theirs = Decoder(model_config), Decoder(model_config)
    for decoder in (ours, theirs):
        decoder.initialise(1)
        set_gradients(decoder, 9)
    resumed = AdamW(ours.parameters(), inner_config, moment_format)
    plain = AdamW(theirs.parameters(), inner_config)
    for each in (resumed, plain):
        each.restore({name: vector for name, (vector, _) in optimizer.vectors.items()}, 5)
        each.step(1e-3)
    assert torch.equal(ours.flat, theirs.flat)
    for name, (vector, pieces) in resumed.vectors.items():
        kept = zeros(pieces, moment_format, CPU, is_signed=vector.is_signed)
        for span in pieces:
            kept.write(span, plain.vectors[name][0].read(span).clone(), 5)
        for part, tensor in kept.tensors.items():
            assert torch.equal(tensor, vector.tensors[part]), name + part


@pytest.mark.parametrize("moment_format", COMPACT)
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_large_parameters_go_in_pieces(
    model_config: ModelConfig,
    inner_config: InnerConfig,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    moment_format: MomentFormat,
) -> None:
    inner = msgspec.structs.replace(inner_config, optimizer=name)
    whole, _ = updated(model_config, inner, moment_format)
    monkeypatch.setattr(moments, "PIECE_ELEMENTS", MOMENT_BLOCK)
    monkeypatch.setattr("gossamer.trainer.inner_step.optimizer.PIECE_ELEMENTS", MOMENT_BLOCK)
    found, optimizer = updated(model_config, inner, moment_format)
    assert max(span.length for _, pieces in optimizer.vectors.values() for span in pieces) == 256
    # torch's update may round the last elements of a vector differently from those before them.
    torch.testing.assert_close(found, whole, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("moment_format", FORMATS)
def test_the_vectors_have_the_bytes_of_the_estimate(
    model_config: ModelConfig, inner_config: InnerConfig, moment_format: MomentFormat
) -> None:
    optimizer = AdamW(Decoder(model_config).parameters(), inner_config, moment_format)
    found = sum(
        tensor.nbytes
        for vector, _ in optimizer.vectors.values()
        for tensor in vector.tensors.values()
    )
    # A parameter's last block may be a part of one.
    assert found == pytest.approx(
        moment_bytes(2 * model_config.num_parameters, moment_format), 0.01
    )


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize(("before", "after"), list(product(FORMATS, FORMATS)))
def test_a_restart_may_have_another_format(
    make_trainer: MakeTrainer,
    inner_config: InnerConfig,
    shard: str,
    tmp_path: Path,
    name: str,
    before: MomentFormat,
    after: MomentFormat,
) -> None:
    inner = msgspec.structs.replace(inner_config, optimizer=name)
    path = str(tmp_path / "optimizer")
    trainer = make_trainer(inner=inner, optimizer_path=path, moments=before)
    assert trainer.moments == before
    train(trainer, shard, 5)
    assert trainer.save() == ""
    again = make_trainer(inner=inner, optimizer_path=path, moments=after)
    assert (again.optimizer_problem, steps_of(again)) == ("", 5)
    assert trainer._optimizer is not None
    assert again._optimizer is not None
    for key, (vector, pieces) in trainer._optimizer.vectors.items():
        loaded, _ = again._optimizer.vectors[key]
        for span in pieces:
            # A number of 8 bits is at most 1/14 of its block's largest away.
            atol = 0.0 if before == after else 0.01 * vector.read(span).abs().max().item()
            rtol = 0.0 if before == after else 0.15
            torch.testing.assert_close(loaded.read(span), vector.read(span), rtol=rtol, atol=atol)
    train(again, shard, 3, 5)
    if before == after:
        again = make_trainer(inner=inner, optimizer_path=path, moments=after)
        again._decoder.flat.copy_(trainer._decoder.flat)
        again._has_local = True
        train(trainer, shard, 3, 5)
        train(again, shard, 3, 5)
        assert trainer._pseudo_gradient.tobytes() == again._pseudo_gradient.tobytes()


@pytest.mark.parametrize("part", ["second_moment", "second_moment.scales"])
def test_damage_in_compact_moments_is_found(
    make_trainer: MakeTrainer, shard: str, tmp_path: Path, part: str
) -> None:
    path = str(tmp_path / "optimizer")
    moment_format: MomentFormat = "8bit" if part.endswith("scales") else "bf16"
    trainer = make_trainer(optimizer_path=path, moments=moment_format)
    train(trainer, shard, 1)
    assert trainer._optimizer is not None
    name, _, end = part.partition(".")
    vector, _ = trainer._optimizer.vectors[name]
    for damage in (-1.0, float("nan")):
        vector.tensors[f".{end}" if end else ""][3] = damage
        trainer.save()
        again = make_trainer(optimizer_path=path, moments=moment_format)
        assert "damaged" in again.optimizer_problem
        assert steps_of(again) == 0


def test_a_cpu_has_fp32_unless_its_owner_says_otherwise(make_trainer: MakeTrainer) -> None:
    assert make_trainer().moments == "fp32"
    assert make_trainer(moments="8bit").moments == "8bit"
