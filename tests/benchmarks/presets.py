"""Which rates suit a preset, and what does it need? Short trials of the settings of each size.

    python -m tests.benchmarks.presets                            # 1m to 40m: an hour
    python -m tests.benchmarks.presets --presets 1m --minutes 5
    python -m tests.benchmarks.presets --presets 10m --factors 4  # one more rate
    python -m tests.benchmarks.presets --presets 150m --minutes 60 --factors 1
    python -m tests.benchmarks.presets --presets 1m --minutes 6 --factors 0.5 1 --warmup-steps 100
    python -m tests.benchmarks.presets --modes                    # another 40 minutes
    python -m tests.benchmarks.presets --presets 1.1b --context 128 --steps 8 --factors 1  # hours

For each preset, on the default corpus (the Python library's sources) and one thread:

1. One peer trains a round of a few steps of one micro-batch in a process of its own: CPU seconds
   a sequence and peak resident memory. A preset that needs more memory than there is, swap space
   included, stays at the count of bytes (`1.1b` had 24 GB of memory and up to 66 of swap space).
2. One worker alone with the preset's inner learning rate times each of `--factors`.
3. Two workers with the same inner rates and the outer step of the preset.
4. Two workers with the other outer steps of `OUTER_STEPS`, at the rate that was best for two.
5. With --modes, two workers with `sparse` and `distro`: as the preset has them, as published, and
   some between (`mode_arms`). Theirs are the names of losses.py; `distro` has rates of its own.

A trial has as many steps as all of them have time for in `--minutes` of CPU time, and warm-up,
cosine, H and warm-up rounds in proportion. Where that would be under `STEPS_WANTED` steps it has
fewer sequences a step; under `STEPS_MIN` with a single one, there are no trials, unless `--steps`
asks for so many of a single sequence. The loss is of a sample of the held-out text at the end. The
seed draws the weights only; the text is the same.

What short trials cannot say: they favour high rates (nothing is lost yet by not settling), but a
warm-up as short as they are (`--warmup-steps` sets it) and few sequences a step favour low ones;
and an outer momentum of 0.9 needs some tens of rounds to show what it does. So only clear
differences count: clear against those between `--seeds`, too.

Results are kept in `--output` (JSON); trials that are in it are not run again, unless `--fresh` is
given or what they depend on has changed.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

from gossamer.node.runs.planning.draft import draft_of_preset
from gossamer.protocol.manifest import InnerConfig, OuterConfig
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.presets.modes import adapted
from gossamer.trainer.presets.preset import OuterStep, Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources.device import choose_device
from gossamer.trainer.text.data import Tokens
from tests.benchmarks._losses_arms import Arm, arm_of
from tests.benchmarks._losses_diloco import Setting
from tests.benchmarks._losses_distro import train_distro
from tests.benchmarks._losses_sparse import train_sparse
from tests.benchmarks._parity_training import (
    Curve,
    Text,
    local_rounds,
    prepare_text,
    rounds_of,
    synchronous,
)
from tests.support.local_rounds import begin

DEFAULT_PRESETS = ("1m", "5m", "10m", "40m")
DEFAULT_MINUTES = 12.0
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "presets.json"

FACTORS = (0.5, 1.0, 2.0)
NUM_WORKERS = 2

MEASURED_STEPS_MIN, MEASURED_STEPS_MAX = 2, 20
MEASURED_SECONDS = 30.0

STEPS_WANTED = 32
STEPS_MIN = 16
STEPS_MAX = 400
ROUNDS_WANTED = 16
"""Outer steps with momentum of a trial; H is smaller than the preset's if it must be."""
WARMUP_SHARE_MIN = 0.1
"""Smallest share of warm-up steps: a cold AdamW needs some ten, however short the trial."""

HELDOUT_PIECES = 32
PIECE_TOKENS = 512

# Vectors of P fp32 values. Trainer: weights, gradients, two moments, `base`, pseudo-gradient.
# Daemon: `pending`, momentum and two for the next state; with fp16, averages and chunks on their
# way together have the size of one more.
_VECTORS_OF_A_PEER = 6 + 4 + 1

console = Console()

OUTER_STEPS = (OuterStep(1.0, 0.8), OuterStep(0.7, 0.9), OuterStep(1.0, 0.9, displacement=1.4))


class Trial(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One training run."""

    seed: int
    learning_rate: float
    outer: OuterStep | None = None
    """None: one worker alone, or an `arm`."""
    arm: str = ""
    """Arm of another mode than `diloco`, named as in losses.py."""
    rounds: int = 0
    loss: float
    """Nats per token."""
    seconds: float
    """CPU time."""


class Entry(msgspec.Struct, kw_only=True):
    """The results about one preset."""

    settings: str
    """The settings on which the trials depend."""
    num_parameters: int
    vector_bytes: int
    """Memory of a peer's vectors, trainer and daemon together, by their count."""
    sequence_seconds: float | None = None
    """Duration of a sequence; None: it needs more memory than there was."""
    peak_bytes: int | None = None
    """Peak memory of the training process, with `micro_batch` sequences at once."""
    micro_batch: int = 0
    steps: int = 0
    """Steps of each trial; 0 if there are no trials."""
    sequences: int = 0
    warmup_steps: int = 0
    """Warm-up steps of AdamW in each trial."""
    trials: list[Trial] = []

    def get(self, learning_rate: float, outer: OuterStep | None, arm: str = "") -> list[Trial]:
        """The trials of these rates, one a seed."""
        return [
            t
            for t in self.trials
            if (t.outer, t.arm) == (outer, arm) and math.isclose(t.learning_rate, learning_rate)
        ]

    def mean_loss(self, learning_rate: float, outer: OuterStep | None) -> float:
        return statistics.fmean(trial.loss for trial in self.get(learning_rate, outer))


class SampledText(Text):
    """The same text, with pieces from all over the held-out part in place of all of it."""

    def heldout(self, vocabulary: int) -> Iterator[Tokens]:
        tokens = np.concatenate(list(super().heldout(vocabulary)))
        for start in np.linspace(0, len(tokens) - PIECE_TOKENS - 1, HELDOUT_PIECES).astype(int):
            yield tokens[start : start + PIECE_TOKENS + 1]


def sampled_text(preset: Preset, folder: Path) -> SampledText:
    text = prepare_text(draft_of_preset(preset.name), folder)
    return SampledText(text.folder, text.index, text.token_bytes, text.bytes_per_token)


def one_round(preset: Preset, text: Text) -> tuple[int, float, int]:
    """(micro-batch, CPU seconds a sequence, peak resident bytes) of steps of a single micro-batch.

    For a process of its own, so that the peak is of this alone. CPU time, because with one thread
    that is the step's length on a machine that does nothing else.
    """
    torch.set_num_threads(1)
    model = preset.model
    micro_batch = choose_device("cpu").micro_batch_of(
        preset.inner.sequences_per_step, model.context
    )
    base = np.zeros(model.num_parameters, np.float32)
    config = TrainerConfig(
        model=model,
        inner=msgspec.structs.replace(preset.inner, sequences_per_step=micro_batch),
        seed=1,
        token_bytes=text.token_bytes,
        device="cpu",
    )
    trainer = LocalTrainer(config, base, np.zeros_like(base))
    for number, shard in enumerate(text.index.shards):
        trainer.push(number, text.path_of(shard.digest), 0, shard.num_tokens)
    trainer.genesis()
    begin(trainer, 1, 0, MEASURED_STEPS_MAX, MEASURED_SECONDS)
    seconds: list[float] = []
    while len(seconds) < MEASURED_STEPS_MIN or not trainer.round.is_over:
        started = time.process_time()
        step = trainer.step()
        assert step is not None, "the corpus is too small for a step"
        seconds.append(time.process_time() - started)
    trainer.finish()
    # Linux counts in KiB, others in bytes.
    unit = 1024 if sys.platform == "linux" else 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return micro_batch, statistics.median(seconds[1:]) / micro_batch, peak


def settings_of(preset: Preset) -> str:
    """All that trials take from the preset but the rates, which they are about."""
    inner = msgspec.structs.replace(preset.inner, learning_rate=0.0)
    outer = preset.outer
    lengths = (outer.inner_steps, outer.warmup_rounds, outer.warmup_inner_steps)
    return " ".join(map(str, (preset.model, inner, lengths)))


def plan_of(preset: Preset, sequence_seconds: float, seconds: float) -> tuple[int, int]:
    """(steps, sequences a step) of each trial, or (0, 0)."""
    worker_runs = len(FACTORS) + NUM_WORKERS * (len(FACTORS) + len(OUTER_STEPS) - 1)
    sequences_total = seconds / sequence_seconds / worker_runs
    sequences = preset.inner.sequences_per_step
    while sequences > 1 and sequences_total < STEPS_WANTED * sequences:
        sequences //= 2
    steps = min(int(sequences_total / sequences), STEPS_MAX)
    return (steps, sequences) if steps >= STEPS_MIN else (0, 0)


def warmup_of(inner: InnerConfig, steps: int) -> int:
    """Steps of the warm-up, in proportion."""
    return round(max(inner.warmup_steps / inner.total_steps, WARMUP_SHARE_MIN) * steps)


def short_inner(preset: Preset, entry: Entry, learning_rate: float) -> InnerConfig:
    """The preset's inner steps in a trial's length."""
    return msgspec.structs.replace(
        preset.inner,
        learning_rate=learning_rate,
        warmup_steps=entry.warmup_steps,
        total_steps=entry.steps,
        sequences_per_step=entry.sequences,
    )


def short_outer(preset: Preset, steps: int, step: OuterStep) -> OuterConfig:
    """The preset's rounds in a trial's length: the same share of them is warm-up."""
    outer = preset.outer
    share = outer.warmup_rounds * outer.warmup_inner_steps / preset.inner.total_steps
    warm_steps = max(1, round(share * steps))
    inner_steps = max(2, min(outer.inner_steps, (steps - warm_steps) // ROUNDS_WANTED))
    warm_inner_steps = max(1, round(outer.warmup_inner_steps * inner_steps / outer.inner_steps))
    return msgspec.structs.replace(
        outer,
        inner_steps=inner_steps,
        warmup_inner_steps=warm_inner_steps,
        warmup_rounds=max(1, warm_steps // warm_inner_steps),
        **step._asdict(),
    )


def mode_arms(preset: Preset) -> tuple[str, ...]:
    """The settings of `sparse` and `distro` that are tried, the preset's own ones among them."""
    own, published = (
        (p.outer.top_k, p.outer.error_decay, *p.sparse_steps.adamw[:2])
        for p in (preset, PRESETS["150m"])
    )
    sparse = [f"k{k}-e{decay}-{rate}/{momentum}" for k, decay, rate, momentum in (own, published)]
    shared = [adapted(PRESETS[name], "distro") for name in ("1m", preset.name, "150m")]
    distro = [
        *(f"k{p.outer.top_k}-b{p.inner.beta1}-lr{p.inner.learning_rate}" for p in shared),
        "k32-b0.95-lr0.001",
    ]
    names = [f"sparse-{NUM_WORKERS}-{name}" for name in sparse]
    return tuple(dict.fromkeys(names + [f"distro-{NUM_WORKERS}-{name}" for name in distro]))


def train_mode(preset: Preset, entry: Entry, text: Text, seed: int, rate: float, arm: Arm) -> Curve:
    """Two workers in another mode; `rate` is the inner one of `sparse`."""
    outer = short_outer(preset, entry.steps, preset.sparse_steps.adamw)
    shards = range(len(text.index.shards))
    setting = Setting(
        text,
        preset.model,
        short_inner(preset, entry, rate),
        outer,
        preset.sparse_steps.adamw[:2],
        seed,
        lambda worker: shards[worker::NUM_WORKERS],
        points=1,
    )
    if arm.kind == "distro":
        return train_distro(setting, arm)
    return train_sparse(setting, replace(arm, inner_steps=outer.inner_steps))


def train(
    preset: Preset,
    entry: Entry,
    text: Text,
    seed: int,
    learning_rate: float,
    step: OuterStep | None,
    arm: str = "",
) -> Trial:
    """One trial: a worker alone, two with this outer step, or two in another mode."""
    started = time.process_time()
    inner, rounds = short_inner(preset, entry, learning_rate), 0
    if arm:
        curve = train_mode(preset, entry, text, seed, learning_rate, arm_of(arm))
        rounds = curve.rounds
    elif step is None:
        curve = synchronous(text, preset.model, inner, 1, seed, points=1)
    else:
        outer = short_outer(preset, entry.steps, step)
        rounds = rounds_of(outer, entry.steps)
        run = msgspec.structs.replace(preset, inner=inner, outer=outer)
        curve = local_rounds(text, run, NUM_WORKERS, seed, points=1)
    return Trial(
        seed=seed,
        learning_rate=learning_rate,
        outer=step,
        arm=arm,
        rounds=rounds,
        loss=round(curve.final, 4),
        seconds=round(time.process_time() - started, 1),
    )


class Experiment:
    """All trials of one preset, kept in the output as they come."""

    def __init__(self, options: argparse.Namespace, preset: Preset) -> None:
        self._options = options
        self._preset = preset
        self._text: SampledText | None = None
        self._name = preset.name
        if options.warmup_steps:
            self._name += f" warm-up {options.warmup_steps}"
        if options.context:
            self._name += f" context {options.context}"
        if options.steps:
            self._name += f" steps {options.steps}"
        self._entries = load(options.output)
        kept = self._entries.get(self._name)
        if kept is None or options.fresh or kept.settings != settings_of(preset):
            num_parameters = preset.model.num_parameters
            kept = Entry(
                settings=settings_of(preset),
                num_parameters=num_parameters,
                vector_bytes=4 * _VECTORS_OF_A_PEER * num_parameters,
            )
        self.entry = kept

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="gossamer-presets-") as folder:
            self._run(Path(folder))
        self._keep()

    def _text_in(self, folder: Path) -> SampledText:
        """Prepared when it is needed first: with all trials kept it is not."""
        if self._text is None:
            self._text = sampled_text(self._preset, folder)
        return self._text

    def _run(self, folder: Path) -> None:
        preset, entry = self._preset, self.entry
        if entry.vector_bytes > psutil.virtual_memory().available + psutil.swap_memory().free:
            return
        if entry.sequence_seconds is None:
            self._measure(self._text_in(folder))
        if not entry.trials:
            self._plan()
        if not entry.steps:
            return
        own_outer = preset.dense_steps.adamw
        for outer in (None, own_outer):
            for factor in self._options.factors:
                self._try(folder, preset.inner.learning_rate * factor, outer)
        tried = {trial.learning_rate for trial in entry.trials if trial.outer == own_outer}
        best_rate = min(tried, key=lambda rate: entry.mean_loss(rate, own_outer))
        for outer in OUTER_STEPS:
            self._try(folder, best_rate, outer)
        for arm in mode_arms(preset) if self._options.modes else ():
            # `distro` has its own rate; with the name it is said once.
            self._try(folder, arm_of(arm).learning_rate or best_rate, None, arm)

    def _try(
        self, folder: Path, learning_rate: float, outer: OuterStep | None, arm: str = ""
    ) -> None:
        there = {trial.seed for trial in self.entry.get(learning_rate, outer, arm)}
        for seed in self._options.seeds:
            if seed in there:
                continue
            text = self._text_in(folder)
            trial = train(self._preset, self.entry, text, seed, learning_rate, outer, arm)
            self.entry.trials.append(trial)
            self._keep()
            console.print(f"{self._name}: {trial}")

    def _measure(self, text: Text) -> None:
        preset, entry = self._preset, self.entry
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            measured = pool.submit(one_round, preset, text).result()
        entry.micro_batch, seconds, entry.peak_bytes = measured
        entry.sequence_seconds = round(seconds, 4)
        self._keep()

    def _plan(self) -> None:
        preset, entry, options = self._preset, self.entry, self._options
        assert entry.sequence_seconds is not None
        seconds = 60 * options.minutes / len(options.seeds)
        entry.steps, entry.sequences = (
            (options.steps, 1)
            if options.steps
            else plan_of(preset, entry.sequence_seconds, seconds)
        )
        entry.warmup_steps = options.warmup_steps or warmup_of(preset.inner, entry.steps)
        console.print(f"{self._name}: {entry.steps} steps of {entry.sequences} sequences each")

    def _keep(self) -> None:
        self._entries[self._name] = self.entry
        path: Path = self._options.output
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self._entries)) + b"\n")


def load(path: Path) -> dict[str, Entry]:
    """Returns the results that an earlier run kept, by preset."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Entry])
    except FileNotFoundError:
        return {}


def print_entry(preset: Preset, entry: Entry) -> None:
    """Prints the results about a preset, for people."""
    console.print(
        f"\n[bold]{preset.name}[/bold]: {entry.num_parameters:,} parameters; the vectors of a "
        f"peer take {entry.vector_bytes / 1e9:.2f} GB"
    )
    if entry.sequence_seconds is None or entry.peak_bytes is None:
        console.print("not tried: more memory than there is here")
        return
    step_seconds = entry.sequence_seconds * preset.inner.sequences_per_step
    console.print(
        f"a step of the preset's {preset.inner.sequences_per_step} sequences takes one thread "
        f"{step_seconds:,.2f} s; the training process had {entry.peak_bytes / 1e9:.2f} GB at most, "
        f"with {entry.micro_batch} sequences at once"
    )
    if not entry.trials:
        console.print("no trials: too slow for --minutes")
        return
    table = Table(
        title=f"{preset.name}: {entry.steps} steps of {entry.sequences} sequences, "
        f"{entry.warmup_steps} of them warm-up"
    )
    for heading in ("workers", "inner rate", "outer step", "rounds", "nats", "of each seed"):
        table.add_column(heading, justify="right")
    rates = {(trial.arm, trial.outer or (), trial.learning_rate) for trial in entry.trials}
    for arm, outer, learning_rate in sorted(rates):
        trials = entry.get(learning_rate, outer or None, arm)
        table.add_row(
            str(NUM_WORKERS) if outer or arm else "1",
            f"{learning_rate:g}",
            arm or "/".join(map(str, outer)),
            str(trials[0].rounds or ""),
            f"{statistics.fmean(t.loss for t in trials):.4f}",
            " ".join(f"{t.loss:.3f}" for t in trials),
        )
    console.print(table)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=tuple(PRESETS), default=DEFAULT_PRESETS)
    parser.add_argument(
        "--minutes", type=float, default=DEFAULT_MINUTES, help="CPU time of a preset"
    )
    parser.add_argument("--steps", type=int, help="of a single sequence, however long they take")
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1,))
    parser.add_argument("--warmup-steps", type=int, help="of AdamW; else in proportion")
    parser.add_argument("--context", type=int, help="shorter sequences than the preset's")
    parser.add_argument("--modes", action="store_true", help="`sparse` and `distro` as well")
    parser.add_argument("--fresh", action="store_true", help="forget what the output holds")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    for name in options.presets:
        preset = PRESETS[name]
        # All that was found here before Muon was the default has to stay comparable.
        inner = msgspec.structs.replace(preset.inner, optimizer="adamw")
        preset = msgspec.structs.replace(preset, inner=inner)
        if options.context:
            model = msgspec.structs.replace(preset.model, context=options.context)
            preset = msgspec.structs.replace(preset, model=model)
        experiment = Experiment(options, preset)
        experiment.run()
        print_entry(preset, experiment.entry)
    console.print(f"results: {options.output}")


if __name__ == "__main__":
    main()
