"""What do moments in bf16 or 8 bits cost the model?

    python -m tests.benchmarks.moments
    python -m tests.benchmarks.moments --small --seeds 1 2 3 4 5 6
    python -m tests.benchmarks.moments --small --optimizer muon
    python -m tests.benchmarks.moments --small --beta2 0.999 --formats fp32 bf16 nearest

One peer takes inner steps with the smallest preset on the default corpus, from the same weights and
on the same tokens for each format; the loss is of 32,768 held-out tokens at the end, in nats.
One CPU thread.

    again     fp32, from weights that differ by a millionth: what is chance
    nearest   bf16 that is always rounded to the nearest value
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import get_args
from unittest.mock import patch

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from gossamer.protocol.manifest import InnerOptimizer
from gossamer.trainer.inner_step import moments
from gossamer.trainer.inner_step.moments import Span
from gossamer.trainer.ipc.choices import MomentFormat
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text.shard_folder import ShardFolder, cut_text
from gossamer.trainer.train import Swarm, Worker

FORMATS = {**{name: name for name in get_args(MomentFormat)}, "nearest": "bf16", "again": "fp32"}


def _write_nearest(self: moments._Bf16, span: Span, values: Tensor, turn: int) -> None:
    self._values[span.start : span.stop] = values


def loss_of(run: Preset, name: str, seed: int, text: ShardFolder) -> float:
    """Held-out loss in nats at the end."""
    worker = Worker(run, text.token_bytes, "cpu", FORMATS[name])
    text.push_shards(worker.queue.push, range(len(text.index.shards)))
    parameters = Swarm(run, "diloco", seed).parameters
    if name == "again":
        parameters *= np.float32(1 + 1e-6)
    nearest = patch.object(moments._Bf16, "write", _write_nearest)
    with nearest if name == "nearest" else nullcontext():
        worker.train(parameters, 0, run.inner.total_steps)
    parameters -= worker.pending
    return worker.loss(parameters, list(text.heldout(run.model.vocabulary)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--small", action="store_true", help="half the preset's width")
    parser.add_argument("--steps", type=int, default=400, help="inner steps")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--formats", nargs="+", choices=FORMATS, default=["fp32", "again", "bf16", "8bit"]
    )
    parser.add_argument("--optimizer", choices=get_args(InnerOptimizer), default="adamw")
    parser.add_argument("--rate", type=float, help="learning rate instead of the preset's")
    parser.add_argument("--beta2", type=float, help="instead of the preset's")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run = PRESETS[options.preset]
    inner = replace(run.inner, total_steps=options.steps, optimizer=options.optimizer)
    inner = replace(inner, warmup_steps=min(inner.warmup_steps, options.steps // 10))
    inner = replace(inner, learning_rate=options.rate or inner.learning_rate)
    inner = replace(inner, beta2=options.beta2 or inner.beta2)
    model = run.model
    if options.small:
        model = replace(model, num_layers=4, width=48, num_heads=4, num_kv_heads=4)
        model = replace(model, hidden_width=128)
    run = replace(run, inner=inner, model=model)
    losses: dict[str, list[float]] = {name: [] for name in options.formats}
    for seed in options.seeds:
        with TemporaryDirectory() as folder:
            text = cut_text((), Path(folder), run.tokenizer, model, seed)
            for name, found in losses.items():
                found.append(loss_of(run, name, seed, text))
                show(f"seed {seed}", name, found, losses[options.formats[0]])
    for name, found in losses.items():
        base = losses[options.formats[0]]
        show("mean", name, [fmean(found)], [fmean(base)])


def show(seed: str, name: str, found: Sequence[float], base: Sequence[float]) -> None:
    print(f"{seed:<8}{name:<8} {found[-1]:.4f}  {found[-1] / base[-1] - 1:+.2%}", flush=True)


if __name__ == "__main__":
    main()
