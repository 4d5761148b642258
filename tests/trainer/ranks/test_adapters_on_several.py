"""A run of adapters on three devices: each has the weights that stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gossamer.trainer.model import Decoder
from tests.support.small_model import INNER, MODEL
from tests.trainer.conftest import train
from tests.trainer.ranks.several import others, spread_over
from tests.trainer.test_adapters import LORA, trainer_of, write_blocks


def test_adapters_are_trained_on_three_devices(tmp_path: Path, shard: str) -> None:
    model = replace(MODEL, lora=LORA)
    whole = Decoder(model.whole)
    whole.initialise(3)
    paths = write_blocks(tmp_path, whole.flat.numpy(), LORA)
    alone = trainer_of(model, INNER, paths)
    losses = [step.loss for step in train(alone, shard, 5)]
    with others(3, model=model, frozen_paths=paths) as spread:
        assert spread.shares.counts == (2, 1, 1)
        together = spread_over(trainer_of(model, INNER, paths), spread)
        steps = train(together, shard, 5)
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-5)
    difference = np.linalg.norm(together._pseudo_gradient - alone._pseudo_gradient)
    assert difference < 1e-3 * np.linalg.norm(alone._pseudo_gradient)
