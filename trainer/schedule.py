"""Learning rate of the inner steps: linear warm-up, then cosine (OpenDiLoCo, arXiv 2407.07852,
section 3)."""

from __future__ import annotations

import math

from gossamer.protocol.manifest import InnerConfig


def learning_rate_at(step: int, inner: InnerConfig) -> float:
    """Learning rate of inner step `step` (counts from 0).

    Step 0 has `learning_rate / warmup_steps` and not 0, so that no step is lost; the cosine runs
    from the end of the warm-up to `total_steps` and stays at `final_fraction * learning_rate`
    afterwards.
    """
    if step < inner.warmup_steps:
        return inner.learning_rate * (step + 1) / inner.warmup_steps
    length = max(inner.total_steps - inner.warmup_steps, 1)
    progress = min((step - inner.warmup_steps) / length, 1.0)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return inner.learning_rate * (inner.final_fraction + (1.0 - inner.final_fraction) * cosine)
