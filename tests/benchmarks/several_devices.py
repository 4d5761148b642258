"""How much faster do several devices take the steps of one peer?

    python -m tests.benchmarks.several_devices --devices all --preset 150m
    python -m tests.benchmarks.several_devices --devices cpu,cpu --preset tiny --steps 20

The first device takes steps alone, then all of them together, and so on in turn. Each row is the
median of the times of the later steps. Scaling is the speed of all, divided by that of one and by
their number: 100 % would be as many times as fast as there are devices. With unequal devices it is
what one alone would reach of their sum, which is less.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import zstandard

from gossamer.trainer.ipc.messages import Configure, TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.ranks.spread import Spread
from gossamer.trainer.ranks.starting import start_others
from gossamer.trainer.resources.device import Device, choose_devices
from tests.support.local_rounds import begin

TOKEN_BYTES = 4
WARM_UP_STEPS = 5


def trainer_on(preset: str, device: Device, spread: Spread | None) -> LocalTrainer:
    run = PRESETS[preset]
    base = np.zeros(run.model.num_parameters, np.float32)
    config = TrainerConfig(
        model=run.model,
        inner=run.inner,
        seed=1,
        token_bytes=TOKEN_BYTES,
        device=str(device.torch_device),
    )
    trainer = LocalTrainer(config, base, np.zeros_like(base))
    trainer.genesis()
    if spread is not None:
        trainer.spread(spread)
    return trainer


def seconds_of_step(trainer: LocalTrainer, shard: str, num_steps: int) -> float:
    """The median of the steps behind the first ones."""
    length = trainer._config.model.context + 1
    num_tokens = (num_steps + 1) * trainer._config.inner.sequences_per_step * length
    trainer.push(0, shard, 0, num_tokens)
    begin(trainer, 1, 0, num_steps, 1e9)
    times = []
    while not trainer.round.is_over:
        step = trainer.step()
        assert step is not None
        times.append(step.seconds)
    trainer.finish()
    trainer.forget()
    return statistics.median(times[WARM_UP_STEPS:])


def compare(preset: str, devices: Sequence[Device], num_steps: int, repeats: int) -> None:
    run = PRESETS[preset]
    num_tokens = run.inner.sequences_per_step * run.model.context
    setting = ",".join(str(device.torch_device) for device in devices)
    configure = Configure(
        model=run.model,
        inner=run.inner,
        device=setting,
        seed=1,
        base_fd=-1,
        pseudo_gradient_fd=-1,
        token_bytes=TOKEN_BYTES,
    )
    print(f"{preset}, {num_tokens:,} tokens a step, {[device.name for device in devices]}")
    spread = start_others(
        configure,
        devices,
        is_confined=False,
        on_progress=lambda: None,
        on_lost=lambda reason: print(reason, flush=True),
    )
    with tempfile.TemporaryDirectory() as folder:
        count = (num_steps + 1) * run.inner.sequences_per_step * (run.model.context + 1)
        tokens = np.random.default_rng(1).integers(0, run.model.vocabulary, count)
        shard = Path(folder) / "shard"
        shard.write_bytes(zstandard.compress(tokens.astype("<u4").tobytes()))
        for _ in range(repeats):
            one, all_ = (
                seconds_of_step(trainer_on(preset, devices[0], others), str(shard), num_steps)
                for others in (None, spread)
            )
            scaling = one / all_ / len(devices)
            print(
                f"one {num_tokens / one:,.0f} tokens/s, all {num_tokens / all_:,.0f} tokens/s, "
                f"scaling {scaling:.1%}, shares {spread.shares.counts}",
                flush=True,
            )
    spread.close()
    spread.group.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="all")
    parser.add_argument("--preset", default="150m", choices=sorted(PRESETS))
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    devices = choose_devices(options.devices, PRESETS[options.preset].model.width)
    if len(devices) < 2:
        parser.error(f"{options.devices} is one device here: {devices[0].name}")
    compare(options.preset, devices, options.steps, options.repeats)


if __name__ == "__main__":
    main()
