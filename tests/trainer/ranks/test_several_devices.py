"""Several CPU processes train as one: with gloo, against one process with the same batches."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.ipc import messages as m
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.ranks import followers as followers_module
from gossamer.trainer.ranks.shares import Shares
from gossamer.trainer.ranks.spread import Spread
from gossamer.trainer.ranks.starting import start_others
from gossamer.trainer.resources.device import choose_devices
from tests.trainer.conftest import MakeTrainer, train

LOSS_TOLERANCE = 1e-5
"""Relative, of a step's loss: sums of fp32 in another order."""

WORK_TOLERANCE = 1e-3
"""Relative norm of the difference of two pseudo-gradients after ten steps. AdamW divides each
element by its own size, so elements near zero take over more than the rounding of the sums."""


@contextmanager
def others(
    model: ModelConfig,
    inner: InnerConfig,
    num_devices: int = 2,
    on_lost: Callable[[str], None] = lambda reason: None,
) -> Iterator[Spread]:
    """The processes beside this one."""
    configure = m.Configure(
        model=model,
        inner=inner,
        device=",".join(["cpu"] * num_devices),
        limits=m.Limits(threads=num_devices),
        seed=0,
        base_fd=-1,
        pseudo_gradient_fd=-1,
        token_bytes=2,
    )
    spread = start_others(
        configure,
        choose_devices(configure.device),
        is_confined=False,
        on_progress=lambda: None,
        on_lost=on_lost,
    )
    try:
        yield spread
    finally:
        spread.close()
        spread.group.leave()


def work_of(trainer: LocalTrainer, shard: str, num_steps: int = 10) -> tuple[list[float], bytes]:
    """Losses and pseudo-gradient of a round."""
    steps = train(trainer, shard, num_steps)
    return [step.loss for step in steps], trainer._pseudo_gradient.tobytes()


def relative(one: bytes, other: bytes) -> float:
    a, b = np.frombuffer(one, np.float32), np.frombuffer(other, np.float32)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_processes_give_what_one_gives_and_the_same_bits_each_time(
    make_trainer: MakeTrainer,
    model_config: ModelConfig,
    inner_config: InnerConfig,
    shard: str,
    optimizer: str,
) -> None:
    import msgspec

    inner = msgspec.structs.replace(inner_config, optimizer=optimizer)
    alone = work_of(make_trainer(inner=inner), shard)
    runs = []
    for _ in range(2):
        with others(model_config, inner) as spread:
            trainer = make_trainer(inner=inner)
            trainer.spread(spread)
            runs.append(work_of(trainer, shard))
    assert runs[0] == runs[1]
    print(
        np.max(np.abs(np.array(runs[0][0]) / np.array(alone[0]) - 1)),
        relative(runs[0][1], alone[1]),
    )
    assert runs[0][0] == pytest.approx(alone[0], rel=LOSS_TOLERANCE)
    assert relative(runs[0][1], alone[1]) < WORK_TOLERANCE
    assert runs[0][1] != alone[1], "the sums were taken in one process"
