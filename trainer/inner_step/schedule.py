"""Learning rate of the inner steps.

By planned steps: linear warm-up, then cosine (OpenDiLoCo, arXiv 2407.07852, section 3). By tokens
of the whole swarm: warm-up, stable, decay (`protocol.state.run_end`).
"""

from __future__ import annotations

import math

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.state.run_end import SchedulePlace


def learning_rate_of(
    first_step: int,
    step: int,
    inner: InnerConfig,
    place: SchedulePlace | None,
    whole_steps: float | None = None,
) -> float:
    """Learning rate of a round's inner step `step` (counts from 0).

    Args:
        first_step: planned inner steps before the round.
        place: the round's place in a schedule of tokens, which then decides.
        whole_steps: tokens of the round's steps up to this one that are trained on, in steps with
            as many as a step has at most; None: all are trained on.
    """
    if place is not None:
        return place.learning_rate(step if whole_steps is None else whole_steps - 1, inner)
    return learning_rate_at(first_step + step, inner)


def learning_rate_at(step: int, inner: InnerConfig) -> float:
    """Learning rate of the planned inner step `step` (counts from 0).

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
