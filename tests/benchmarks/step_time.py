"""What does a step cost on one CPU thread: in fp32 and in bf16, with AdamW and with Muon?

    python -m tests.benchmarks.step_time
    python -m tests.benchmarks.step_time --presets 5m --sequences 8 --repeats 5
    python -m tests.benchmarks.step_time --losses    # what bf16 costs the model

Times are of the processor (not of the clock, so a busy machine spoils them less), the least of some
repetitions, in milliseconds:

    pass fp32, bf16   forward and backward of so many sequences
    AdamW             one update of all parameters
    Muon fp32, bf16   the same with Muon for hidden matrices, by the type of its iterations
    torch             `torch.optim.Muon` on these matrices alone
    share             of Muon in a step of the preset's size, both by the faster type

With `--losses` two workers with outer steps train `tiny` with twice its width for 200 steps, in
each precision; the loss is of 32,768 held-out tokens of the default corpus.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from gossamer.trainer.inner_step.muon import Muon
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources import device as device_module
from gossamer.trainer.resources.accelerator import Precision
from gossamer.trainer.resources.device import choose_device, cpu_has_bf16
from gossamer.trainer.text.shard_folder import cut_text
from gossamer.trainer.train import Swarm, Worker

RATE = 1e-9
"""Of the updates: they leave the weights as they are, more or less."""


def least_milliseconds(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return 1000 * min(times)


def measure(preset: Preset, num_sequences: int, repeats: int) -> list[float]:
    """Milliseconds in the order of the table's columns, and Muon's share in a step."""
    decoder = Decoder(preset.model)
    decoder.initialise(1)
    generator = torch.Generator().manual_seed(1)
    shape = (num_sequences, preset.model.context + 1)
    tokens = torch.randint(0, preset.model.vocabulary, shape, generator=generator)
    device = choose_device("cpu")

    def one_pass(precision: Precision) -> None:
        with replace(device, precision=precision).autocast():
            loss = decoder.loss_sum(tokens)
        loss.backward()  # type: ignore[no-untyped-call]

    passes = [least_milliseconds(lambda p=p: one_pass(p), repeats) for p in ("fp32", "bf16")]  # type: ignore[misc]
    inner = msgspec.structs.replace(preset.inner, optimizer="muon")
    hidden = [p for p in decoder.layers.parameters() if p.ndim > 1]
    adamw = AdamW(decoder.parameters(), inner)
    updates: list[Callable[[], object]] = [lambda: adamw.step(RATE)]
    for dtype in (torch.float32, torch.bfloat16):
        muon = Muon(decoder, inner, dtype)
        updates.append(lambda muon=muon: muon.step(RATE))  # type: ignore[misc]
    theirs = torch.optim.Muon(hidden, lr=RATE, adjust_lr_fn="match_rms_adamw")
    updates.append(theirs.step)
    steps = [least_milliseconds(update, repeats) for update in updates]
    whole_step = min(passes) * preset.inner.sequences_per_step / num_sequences
    muon_time = min(steps[1:3])
    return [*passes, *steps, muon_time / (whole_step + muon_time)]


def loss_of(seed: int, *, has_bf16: bool, folder: Path) -> float:
    """Held-out loss in nats after 200 steps of a model of width 192."""
    preset = PRESETS["tiny"]
    model = msgspec.structs.replace(preset.model, width=192, hidden_width=512, num_heads=6)
    model = msgspec.structs.replace(model, num_kv_heads=6)
    inner = msgspec.structs.replace(preset.inner, total_steps=200, optimizer="adamw")
    outer = msgspec.structs.replace(preset.outer, inner_steps=10, warmup_rounds=20, codec="fp32")
    outer = msgspec.structs.replace(outer, warmup_inner_steps=4)
    run = msgspec.structs.replace(preset, model=model, inner=inner, outer=outer)
    text = cut_text((), folder, run.tokenizer, model, seed)
    with patch.object(device_module, "cpu_has_bf16", lambda: has_bf16):
        workers = [Worker(run, text.token_bytes, "cpu") for _ in range(2)]
        assert workers[0]._device.precision == ("bf16" if has_bf16 else "fp32")
        swarm = Swarm(run, "diloco", seed)
        for number, worker in enumerate(workers):
            text.push_shards(worker.queue.push, range(number, len(text.index.shards), len(workers)))
        for number in range(1, outer.round_of_inner_step(inner.total_steps) + 1):
            swarm.round(number, workers)
    with patch.object(device_module, "cpu_has_bf16", lambda: False):
        judge = Worker(run, text.token_bytes, "cpu")
    return judge.loss(swarm.parameters, list(text.heldout(model.vocabulary)))


def compare_losses(seeds: Sequence[int]) -> None:
    for seed in seeds:
        with TemporaryDirectory() as folder:
            fp32, bf16 = (
                loss_of(seed, has_bf16=has_bf16, folder=Path(folder)) for has_bf16 in (False, True)
            )
        print(f"seed {seed}: fp32 {fp32:.4f}, bf16 {bf16:.4f} nats, {bf16 / fp32 - 1:+.2%}")


def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", default=["tiny", "1m", "5m", "10m"])
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.losses:
        compare_losses(options.seeds)
        return
    words = "with" if cpu_has_bf16() else "without"
    table = Table(title=f"{choose_device('cpu').name}, {words} bf16 instructions; milliseconds")
    columns = "preset|width|pass fp32|bf16|times|AdamW|Muon fp32|bf16|torch|share"
    for heading in columns.split("|"):
        table.add_column(heading, justify="right")
    for name in options.presets:
        preset = PRESETS[name]
        *times, share = measure(preset, options.sequences, options.repeats)
        numbers = [f"{value:.1f}" for value in times]
        numbers.insert(2, f"{times[0] / times[1]:.2f}")
        table.add_row(name, str(preset.model.width), *numbers, f"{share:.1%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
