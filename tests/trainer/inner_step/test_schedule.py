"""Learning rate by step."""

from __future__ import annotations

import msgspec
import pytest

from gossamer.protocol.manifest import InnerConfig
from gossamer.trainer.inner_step.schedule import learning_rate_at


@pytest.mark.parametrize(
    ("step", "fraction"),
    [
        (0, 0.25),
        (3, 1.0),
        (4, 1.0),  # the cosine starts at the top
        (52, 0.55),  # half-way: the middle of 1 and 0.1
        (100, 0.1),
        (10**6, 0.1),
    ],
)
def test_values(inner_config: InnerConfig, step: int, fraction: float) -> None:
    assert learning_rate_at(step, inner_config) == pytest.approx(1e-2 * fraction, rel=1e-12)


def test_no_warm_up_and_no_cosine(inner_config: InnerConfig) -> None:
    inner = msgspec.structs.replace(inner_config, warmup_steps=0, total_steps=1)
    assert learning_rate_at(0, inner) == 1e-2
    assert learning_rate_at(1, inner) == pytest.approx(1e-3)
