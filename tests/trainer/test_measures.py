"""What a trainer tells of a step besides its loss: bits per byte, and where the time goes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gossamer.protocol.shard_index import PROMPT_BIT
from gossamer.trainer.ipc.measures import bits_per_byte
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.text_bytes import TextBytes
from tests.support.local_rounds import begin
from tests.trainer.conftest import STEP_SPAN, MakeTrainer, train


def test_bits_of_a_uniform_guess_at_plain_bytes() -> None:
    """256 bytes, each as likely: 8 bits for each."""
    assert bits_per_byte(math.log(256), 1000, 1000) == pytest.approx(8.0)
    assert bits_per_byte(math.log(256), 250, 1000) == pytest.approx(2.0)


@pytest.mark.parametrize(("loss", "text_bytes"), [(2.0, 0), (math.nan, 10), (math.inf, 10)])
def test_what_is_not_known_is_not_told(loss: float, text_bytes: int) -> None:
    assert bits_per_byte(loss, 10, text_bytes) is None


def test_steps_and_evaluations_count_the_text_behind_their_targets(
    make_trainer: MakeTrainer, shard: str
) -> None:
    trainer = make_trainer(tokenizer="bytes")
    (step,) = train(trainer, shard, 1)
    evaluated = trainer.evaluate((shard,), 500)
    assert step.tokens == 64
    assert 0 < step.text_bytes <= 64  # token 0 ends a document
    assert step.bits_per_byte == pytest.approx(step.loss / math.log(2) * 64 / step.text_bytes)
    assert evaluated.tokens == 500
    assert 0 < evaluated.text_bytes <= 500
    assert evaluated.bits_per_byte is not None


def test_a_round_counts_all_its_steps(make_trainer: MakeTrainer, shard: str) -> None:
    trainer = make_trainer(tokenizer="bytes")
    trainer.push(0, shard, 0, 3 * STEP_SPAN)
    begin(trainer, 1, 0, 3, 600.0)
    steps = [trainer.step() for _ in range(3)]
    finished = trainer.finish()
    assert finished.text_bytes == sum(step.text_bytes for step in steps if step is not None)
    assert finished.bits_per_byte == pytest.approx(
        finished.loss * finished.tokens / finished.text_bytes / math.log(2)
    )


def test_without_a_tokenizer_nothing_is_counted(make_trainer: MakeTrainer, shard: str) -> None:
    (step,) = train(make_trainer(), shard, 1)
    assert step.text_bytes == 0
    assert step.bits_per_byte is None


def test_a_tokenizer_that_cannot_be_read_costs_the_number_and_no_step(
    make_trainer: MakeTrainer, shard: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tokenizer="bpe", tokenizer_path=str(tmp_path / "none"))
    steps = train(trainer, shard, 3)
    assert [step.text_bytes for step in steps] == [0, 0, 0]
    assert caplog.text.count("bits per byte are not told") == 1


def test_a_prompt_is_no_text_that_is_learnt(make_trainer: MakeTrainer) -> None:
    model = make_trainer()._config.model
    config = TrainerConfig(
        model=model, inner=make_trainer()._config.inner, seed=1, token_bytes=4, tokenizer="bytes"
    )
    sequences = np.array([[5, 6 | PROMPT_BIT, 7 | PROMPT_BIT, 8, 0, 9]], dtype=np.int64)
    assert TextBytes(config).of_targets(sequences) == 2


def test_the_parts_of_a_step_fit_into_it(make_trainer: MakeTrainer, shard: str) -> None:
    steps = train(make_trainer(), shard, 3)
    for step in steps:
        assert step.times is not None
        parts = step.times
        within = parts.data + parts.forward + parts.backward + parts.optimizer
        assert min(parts.data, parts.forward, parts.backward, parts.optimizer) > 0
        assert within <= step.seconds
    assert steps[0].times is not None
    assert steps[0].times.handover > 0, "the round began from a state"
