"""Several CPU processes train as one: with gloo, against one process with the same batches."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.manifest import InnerConfig, InnerOptimizer
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.distro.shared_trainer import SharedTrainer
from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.ipc import messages as m
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.ranks.shares import Shares
from gossamer.trainer.ranks.spread import Spread
from gossamer.trainer.ranks.starting import useful
from gossamer.trainer.resources.device import choose_devices
from tests.support.local_rounds import begin, steps_of
from tests.support.small_model import INNER, MODEL
from tests.trainer.conftest import MakeTrainer, train
from tests.trainer.ranks.several import others, spread_over

LOSS_TOLERANCE = 1e-5
"""Relative, of a step's loss: sums of fp32 in another order."""

WORK_TOLERANCES = {"adamw": 1e-3, "muon": 2e-2}
"""Relative norm of the difference of two pseudo-gradients after ten steps. AdamW divides each
element by its own size, so elements near zero take over more than the rounding of the sums. Muon's
products are in bf16 on a CPU that has it."""


@pytest.fixture(scope="module")
def two() -> Iterator[Spread]:
    """One process beside this one, for all trainers of this module: it keeps nothing of a step."""
    with others() as spread:
        yield spread


@pytest.fixture
def model_config() -> ModelConfig:
    return MODEL


@pytest.fixture
def inner_config() -> InnerConfig:
    return INNER


def work_of(trainer: LocalTrainer, shard: str, num_steps: int = 10) -> tuple[list[float], bytes]:
    """Losses and pseudo-gradient of a round."""
    steps = train(trainer, shard, num_steps)
    return [step.loss for step in steps], trainer._pseudo_gradient.tobytes()


def relative(one: bytes, other: bytes) -> float:
    a, b = np.frombuffer(one, np.float32), np.frombuffer(other, np.float32)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_processes_give_what_one_gives(
    two: Spread, make_trainer: MakeTrainer, shard: str, optimizer: InnerOptimizer
) -> None:
    inner = msgspec.structs.replace(INNER, optimizer=optimizer)
    whole = work_of(make_trainer(inner=inner), shard)
    halves = work_of(make_trainer(inner=inner, micro_batch=2), shard)
    spread = work_of(spread_over(make_trainer(inner=inner), two), shard)
    assert spread[0] == pytest.approx(whole[0], rel=LOSS_TOLERANCE)
    assert relative(spread[1], whole[1]) < WORK_TOLERANCES[optimizer]
    # One process with two passes adds up the same halves: the bits are the same.
    assert spread[1] == halves[1] != whole[1]


def test_new_processes_give_the_same_bits(
    two: Spread, make_trainer: MakeTrainer, shard: str
) -> None:
    first = work_of(spread_over(make_trainer(), two), shard)
    assert work_of(spread_over(make_trainer(), two), shard) == first


def test_unequal_shares_give_the_same_gradient(
    two: Spread, make_trainer: MakeTrainer, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = work_of(make_trainer(), shard)
    shares = Shares(4, 2, by_speed=True)
    shares.counts = (3, 1)
    monkeypatch.setattr(two, "shares", shares)
    monkeypatch.setattr(shares, "measured", lambda seconds: None)
    spread = work_of(spread_over(make_trainer(), two), shard)
    assert spread[0] == pytest.approx(alone[0], rel=LOSS_TOLERANCE)
    assert relative(spread[1], alone[1]) < WORK_TOLERANCES["adamw"]


@pytest.mark.parametrize("moments", ["bf16", "8bit"])
def test_moments_in_less_and_their_file_are_the_first_devices_alone(
    two: Spread, make_trainer: MakeTrainer, shard: str, tmp_path: Path, moments: str
) -> None:
    path = str(tmp_path / "optimizer")
    trainer = spread_over(make_trainer(moments=moments, optimizer_path=path), two)
    train(trainer, shard, 3)
    assert trainer.save() == ""
    again = make_trainer(moments=moments, optimizer_path=path)  # with one device
    assert (again.optimizer_problem, steps_of(again)) == ("", 3)


def test_losses_of_a_state_are_those_of_one_device(
    two: Spread, make_trainer: MakeTrainer, shard: str
) -> None:
    alone, spread = make_trainer(), spread_over(make_trainer(), two)
    train(spread, shard, 2)
    assert spread.evaluate((shard,), 200) == alone.evaluate((shard,), 200)


def test_shared_steps_take_their_gradients_on_all_devices(two: Spread, shard: str) -> None:
    config = TrainerConfig(model=MODEL, inner=INNER, seed=7, token_bytes=2, device="cpu")
    updates = []
    for spread in (None, two):
        base, pseudo_gradient = np.zeros((2, MODEL.num_parameters), np.float32)
        steps = m.SharedSteps(top_k=4, lookahead=True)
        trainer = SharedTrainer(config, base, pseudo_gradient, steps=steps)
        trainer.genesis()
        if spread is not None:
            trainer.spread(spread)
        trainer.push(0, shard, 0, 4 * 17)
        begin(trainer, 1, 0, 1, 600.0)
        step, offer = trainer.step(), trainer.offer()
        assert step is not None
        assert offer is not None
        updates.append((step.loss, offer.update))
    assert updates[1][0] == pytest.approx(updates[0][0], rel=LOSS_TOLERANCE)
    ones, others_ = (np.frombuffer(update, np.uint8) for _, update in updates)
    # Signs of the strongest coefficients: rounding changes few of them.
    assert len(ones) == len(others_)
    assert np.mean(ones == others_) > 0.9


def test_more_devices_than_sequences_have_no_work(caplog: pytest.LogCaptureFixture) -> None:
    devices = choose_devices("cpu,cpu,cpu")
    assert useful(devices, 2) == devices[:2]
    assert "1 of 3 devices have no work" in caplog.text


def test_a_torch_without_distributed_trains_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "gossamer.trainer.ranks.group"
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", None)
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    group_type = importlib.import_module(name).Group
    with pytest.raises(TrainerError, match="give --device only one of them"):
        group_type(torch.device("cpu"), 0, 2, "")
