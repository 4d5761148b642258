"""What does it cost to measure the parts of an inner step?

    python -m tests.benchmarks.step_clock
    python -m tests.benchmarks.step_clock --preset 1m --steps 60

One trainer takes steps of a preset, in turn with and without the measuring: its clock, and the
count of the text's bytes. Printed are the medians of the processor's time, and what the measuring
takes by itself: as many marks as a step has, and the count, as the mean of 200.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import zstandard

from gossamer.trainer.inner_step.step_clock import Part, StepClock, clock_of
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text_bytes import TextBytes
from tests.support.local_rounds import begin

REPEATS = 200


class _NoClock(StepClock):
    """Measures nothing."""

    def begins(self, part: Part | None) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser("tests.benchmarks.step_clock")
    parser.add_argument("--preset", default="tiny", choices=PRESETS)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    preset = PRESETS[options.preset]
    model, inner = preset.model, preset.inner
    common = {"model": model, "inner": inner, "seed": 1, "token_bytes": 2, "device": "cpu"}
    config = TrainerConfig(**common, tokenizer="bytes")  # type: ignore[arg-type]
    base = np.zeros(model.num_parameters, np.float32)
    trainer = LocalTrainer(config, base, base.copy())
    trainer.genesis()
    tokens = np.random.default_rng(1).integers(0, 256, 2**20).astype("<u2")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shard"
        path.write_bytes(zstandard.compress(tokens.tobytes()))
        needed = 2 * options.steps * inner.sequences_per_step * (model.context + 1)
        for shard in range(-(-needed // len(tokens))):
            trainer.push(shard, str(path), 0, len(tokens))
        begin(trainer, 1, 0, 2 * options.steps, 1e9)
        clock, counts, nothing = (
            trainer._clock,
            trainer._text_bytes,
            TextBytes(
                TrainerConfig(**common)  # type: ignore[arg-type]
            ),
        )
        for number in range(2 * options.steps):
            measures = number % 2 == 0
            trainer._clock = trainer._own._clock = clock if measures else _NoClock()
            trainer._text_bytes = counts if measures else nothing
            started = time.process_time()
            assert trainer.step() is not None
            seconds[measures].append(time.process_time() - started)
    passes = -(-inner.sequences_per_step // trainer.micro_batch)
    with_, without = (statistics.median(seconds[each][2:]) for each in (True, False))
    print(f"{options.preset}: {passes} passes; with {1000 * with_:.2f} ms, without "
          f"{1000 * without:.2f} ms, {100 * (with_ / without - 1):+.2f} %")  # fmt: skip
    own = clock_of(trainer.device.torch_device)
    started = time.process_time()
    for _ in range(REPEATS):
        with own.of("data"):
            pass
        for _ in range(passes):
            own.begins("forward")
            own.begins("backward")
        own.begins("optimizer")
        own.begins(None)
        own.take()
    marks = (time.process_time() - started) / REPEATS
    sequences = np.random.default_rng(1).integers(
        0, 256, (inner.sequences_per_step, model.context + 1)
    )
    started = time.process_time()
    for _ in range(REPEATS):
        counts.of_targets(sequences)
    count = (time.process_time() - started) / REPEATS
    print(f"marks {1e6 * marks:.0f} us, count of bytes {1e6 * count:.0f} us: "
          f"{100 * (marks + count) / without:.3f} % of a step")  # fmt: skip


if __name__ == "__main__":
    main()
