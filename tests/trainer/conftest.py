"""A small model, AdamW settings and a shard of learnable text for the trainer's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc.messages import Step, TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from tests.support.local_rounds import begin
from tests.support.small_model import INNER, MODEL

torch.set_num_threads(1)

MakeTrainer = Callable[..., LocalTrainer]

STEP_SPAN = 4 * 17
"""Tokens of a shard that a step of `inner_config` uses up."""


def train(trainer: LocalTrainer, shard: str, num_steps: int, first: int = 0) -> list[Step]:
    """Trains a round on a part of a shard, from where the last one ended."""
    trainer.push(0, shard, STEP_SPAN * first, STEP_SPAN * (first + num_steps))
    begin(trainer, 1, first, num_steps, 600.0, "local")
    steps = []
    while not trainer.round.is_over:
        step = trainer.step()
        assert step is not None
        steps.append(step)
    trainer.finish()
    return steps


@pytest.fixture
def model_config() -> ModelConfig:
    return MODEL


@pytest.fixture
def inner_config() -> InnerConfig:
    return INNER


@pytest.fixture
def shard(tmp_path: Path) -> str:
    """4,400 tokens that repeat with a period of 40: their successor can be learnt."""
    period = np.random.default_rng(0).integers(0, 64, 40)
    return write_shard(tmp_path / "shard", np.tile(period, 110))


@pytest.fixture
def make_trainer(model_config: ModelConfig, inner_config: InnerConfig) -> MakeTrainer:
    """A trainer on the CPU with `base` from the seed."""

    def make(
        base: np.ndarray | None = None,
        pseudo_gradient: np.ndarray | None = None,
        inner: InnerConfig = inner_config,
        device: str = "cpu",
        **options: object,
    ) -> LocalTrainer:
        fresh = base is None
        zeros = np.zeros(model_config.num_parameters, np.float32)
        config = TrainerConfig(
            model=model_config,
            inner=inner,
            seed=7,
            token_bytes=2,
            device=device,
            **options,  # type: ignore[arg-type]
        )
        trainer = LocalTrainer(
            config,
            zeros if base is None else base,
            zeros.copy() if pseudo_gradient is None else pseudo_gradient,
        )
        if fresh:
            trainer.genesis()
        return trainer

    return make


def write_shard(path: Path, tokens: np.ndarray) -> str:
    path.write_bytes(zstandard.compress(tokens.astype("<u2").tobytes()))
    return str(path)
