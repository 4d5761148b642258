"""Samples that a trainer takes of the committed state."""

import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.ipc import framing, messages, pipe
from gossamer.trainer.model import Decoder
from tests.support.local_rounds import begin
from tests.trainer.conftest import MakeTrainer

TASK = messages.Sample(
    prompts=("12", "(34)"),
    tokens=40,
    temperature=0.8,
    seed=0,
    seconds_max=60.0,
    tokenizer="bytes",
    tokenizer_path="",
)
"""Two prompts whose bytes are below the 64 tokens of the test's model."""


@pytest.fixture
def base(model_config: ModelConfig) -> np.ndarray:
    decoder = Decoder(model_config)
    decoder.initialise(7)
    return decoder.flat.numpy().copy()


def test_the_committed_state_writes_and_the_local_one_stays(
    make_trainer: MakeTrainer, base: np.ndarray, shard: str
) -> None:
    trainer = make_trainer(base, np.zeros_like(base))
    first = trainer.sample(TASK)
    assert len(first.texts) == 2
    assert all(first.texts)
    assert first == trainer.sample(TASK), "the same state and seed write the same"
    framing.decode_from_worker(framing.encode(first)[pipe.LENGTH_BYTES :])
    trainer.push(0, shard, 0, 1000)
    begin(trainer, 1, 0, 1, 60.0)
    with pytest.raises(TrainerError, match="Sample"):
        trainer.sample(TASK)
    trainer.step()
    trainer.finish()
    local = trainer._decoder.flat.clone()
    assert trainer.sample(TASK) == first, "the work of a round is not in the committed state"
    assert (trainer._decoder.flat == local).all()


def test_the_time_is_shared_and_no_text_is_longer(
    make_trainer: MakeTrainer, base: np.ndarray
) -> None:
    trainer = make_trainer(base, np.zeros_like(base))
    assert trainer.sample(replace(TASK, seconds_max=0.0)).texts == ("", "")
    longest = max(map(len, trainer.sample(replace(TASK, tokens=5)).texts))
    assert 0 < longest <= 5


def test_what_goes_wrong_costs_the_samples_and_nothing_else(
    make_trainer: MakeTrainer, base: np.ndarray
) -> None:
    trainer = make_trainer(base, np.zeros_like(base))
    assert (
        "tokens that its model does not have"
        in trainer.sample(replace(TASK, prompts=("x",))).problem
    )
    base[:] = math.nan
    assert "diverged" in trainer.sample(TASK).problem
    assert trainer.sample(TASK).texts == ()


def test_a_tokenizer_that_cannot_be_read_costs_the_samples_and_nothing_else(
    make_trainer: MakeTrainer, base: np.ndarray, tmp_path: Path
) -> None:
    trainer = make_trainer(base, np.zeros_like(base))
    gone = replace(TASK, tokenizer="bpe", tokenizer_path=str(tmp_path / "gone"))
    assert "cannot be read" in trainer.sample(gone).problem
    assert all(trainer.sample(TASK).texts)
