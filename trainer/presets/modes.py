"""The presets, whose settings are for `sync = "diloco"`, as the other modes want them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gossamer.protocol.manifest import InnerOptimizer, Trust
from gossamer.protocol.sync_modes import SyncMode
from gossamer.trainer.presets.preset import Preset


class _Distro(NamedTuple):
    """The settings that only `sync = "distro"` has."""

    learning_rate: float
    """A step moves every parameter by it."""
    decay: float
    """Decay of the decoupled momentum; the manifest's `beta1`."""
    top_k: int


SMALL_DISTRO = _Distro(3e-3, 0.95, 32)
"""DeMo's decay is 0.999, for models a thousand times as large: what was not sent then comes a
thousand steps later, which is more than a small run has. These were the best of a search with 0.12
million parameters (`losses.py --small`, losses_tuning.json); four times the values gave 4 %."""

_MEDIUM_DISTRO = _Distro(1e-3, 0.95, 8)
"""These settings were as good in the trial of `40m` as 32 values (6.90), with which a step of eight
peers would not fit a block. They were also as good as 3e-3; what a smaller rate is better for does
not show in short trials."""

_LARGE_DISTRO = _Distro(4e-4, 0.999, 4)
"""DeMo's decay (arXiv 2411.19870), and rate and number of values of DisTrO's report on 1.2 B
parameters. They were the worst in short trials, up to `150m`."""

_MEDIUM_PARAMETERS, _LARGE_PARAMETERS = 30e6, 100e6

DISTRO_STEPS = 50
"""Shared steps for which a roster holds: agreeing on one takes about a second."""


def _distro_of(num_parameters: int) -> _Distro:
    if num_parameters >= _LARGE_PARAMETERS:
        return _LARGE_DISTRO
    return _MEDIUM_DISTRO if num_parameters >= _MEDIUM_PARAMETERS else SMALL_DISTRO


def default_optimizer(
    sync: SyncMode,
    *,
    trust: Trust = "members",
    lora: bool = False,
    from_weights: bool = False,
) -> InnerOptimizer:
    """Returns the inner optimiser of a new run whose founder names none.

    Muon, with which a swarm learns more from the same tokens (docs/benchmarks/training.md). It is
    AdamW where `distro` and adapters refuse Muon, and where nobody has tried Muon here: among
    strangers, whose averages and audits were measured with AdamW, and for published weights, which
    AdamW made.

    Args:
        trust: whom the run's averages trust.
        lora: whether the parameters are adapters.
        from_weights: whether the run begins with the weights of a folder (`--init-from`).
    """
    has_trial = sync != "distro" and trust == "members" and not lora and not from_weights
    return "muon" if has_trial else "adamw"


def adapted(preset: Preset, sync: SyncMode, optimizer: InnerOptimizer | None = None) -> Preset:
    """The preset with the settings of another mode. Its own are for `diloco`.

    Args:
        optimizer: inner optimiser; None: the mode's default.
    """
    replace = msgspec.structs.replace
    optimizer = optimizer or default_optimizer(sync)
    inner = replace(preset.inner, optimizer=optimizer)
    steps = preset.sparse_steps if sync == "sparse" else preset.dense_steps
    outer = replace(preset.outer, **steps.of(optimizer)._asdict())
    if sync == "sparse" and optimizer == "muon":
        outer = replace(outer, top_k=preset.muon_top_k)
    if sync == "distro":
        distro = _distro_of(preset.model.num_parameters)
        inner = replace(
            inner,
            learning_rate=distro.learning_rate,
            beta1=distro.decay,
            schedule=msgspec.UNSET,  # its steps are all taken, so they are counted as planned
        )
        outer = replace(
            outer,
            inner_steps=DISTRO_STEPS,
            displacement=0.0,
            warmup_rounds=0,
            overlap=False,
            top_k=distro.top_k,
        )
    return replace(preset, inner=inner, outer=outer)
