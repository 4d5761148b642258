"""How much memory does a trainer take on a CPU?

Each preset trains in a process of its own, which has nothing else in it, and prints the peak of its
resident memory. `base` and `pseudo_gradient` are in it, 8 bytes a parameter, which daemon and
trainer share in a node. A pass has as many sequences as the trainer chooses by itself, and a step
has two passes at most: more of them take time and no more memory.

    python -m tests.benchmarks.trainer_memory
    python -m tests.benchmarks.trainer_memory --presets 40m --steps 1
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import zstandard

from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.presets.table import PRESETS
from tests.support.local_rounds import begin

PASS_TOKENS = 4096
"""Of the largest pass on a CPU."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=["tiny", "1m", "5m"])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="in this process, for one preset")
    options = parser.parse_args()
    for name in options.presets:
        if options.here:
            measure(name, options.steps)
            continue
        command = [sys.executable, "-m", "tests.benchmarks.trainer_memory", "--here"]
        subprocess.run([*command, "--presets", name, "--steps", str(options.steps)], check=True)


def measure(name: str, num_steps: int) -> None:
    """Trains some steps and prints the peak of this process."""
    model, inner = PRESETS[name].model, PRESETS[name].inner
    sequences = min(inner.sequences_per_step, max(1, 2 * PASS_TOKENS // model.context))
    inner = msgspec.structs.replace(inner, sequences_per_step=sequences)
    base, work = np.zeros((2, model.num_parameters), np.float32)
    num_tokens = (num_steps + 4) * sequences * (model.context + 1)
    tokens = np.random.default_rng(0).integers(0, model.vocabulary, num_tokens).astype("<u2")
    with TemporaryDirectory() as folder:
        shard = Path(folder, "shard")
        shard.write_bytes(zstandard.compress(tokens.tobytes()))
        config = TrainerConfig(model=model, inner=inner, seed=1, token_bytes=2, device="cpu")
        trainer = LocalTrainer(config, base, work)
        trainer.genesis()
        trainer.push(0, str(shard), 0, num_tokens)
        begin(trainer, 1, 0, num_steps, float("inf"))
        while not trainer.round.is_over:
            assert trainer.step() is not None
        trainer.finish()
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{name}: {model.num_parameters:,} parameters, {trainer.micro_batch} of {sequences} "
        f"sequences of {model.context} at once, {peak_bytes / 1e6:,.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
