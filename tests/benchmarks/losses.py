"""Measures the cost for the model of sending less, or of not waiting. All modes in one process.

    python -m tests.benchmarks.losses             # codecs, overlap, sparse, distro; three seeds
    python -m tests.benchmarks.losses --arms codecs sizes --seeds 1
    python -m tests.benchmarks.losses --arms diloco-4-h20-int8 diloco-4-h50-int4-o50
    python -m tests.benchmarks.losses --small     # a quarter of the model: a minute an arm
    python -m tests.benchmarks.losses --preset 10m --steps 800 --device cuda:0 --processes 4

The peers of an arm are `LocalTrainer`s in this process; what they agree on is computed by the code
of the daemon (residuals, codecs, additions in ring order, outer step, shared step), only without
the network. tests/e2e/rounds/test_replay.py, and test_replay_shared.py beside it, show real swarms
that reach the same bits. All arms of a seed begin with the same weights and do the same number of
inner steps per peer, `sequences_per_step` sequences each, on the default corpus: so arms with the
same number of peers see the same tokens. The loss is of the whole held-out text, at the end.

An arm is named by what it does, e.g. `diloco-4-h20-int4-o50-topics`:
    sync-K, alone   AdamW at every step with K times the batch of a peer; with the batch of one
    diloco-K        K peers, AdamW, the dense ring and Nesterov
    sparse-K        K peers, AdamW, top-k with error feedback (SparseLoCo)
    distro-K        K peers, decoupled momentum and signs at every step (DeMo, DisTrO)
    hH              H inner steps a round; a warm-up of short rounds comes before, unless `cold`
    fp32 ... int4   the ring's codec
    oP, oPw         overlap: the new state arrives after P % of the next round's steps; w: in the
                    warm-up as well
    fN              streaming in N fragments
    aX              overlap, streaming: local parameters stay behind by this part (mixing)
    topics          each peer has text of its own kind
    uneven          each peer is twice as fast as the one before it (1 : 2 : 4 : 8); distro: the
                    slow ones are in every second, fourth, eighth step
    grow, shrink    from 1 to K peers, from K to 1
    R/M             outer learning rate and momentum
    dD              each round chooses its momentum, so that the outer step has D times the length
                    of what a peer did
    kN              sparse, distro: values kept of a block or chunk
    sN              sparse: sets of at most N members, more are sums (outer.sparse_sums)
    eX, dense       sparse: part of what was not sent that is carried; dense rounds as warm-up
    bX, look        distro: decay of the momentum; gradients with lookahead
    muon            hidden matrices by Muon, the rest by AdamW (MuLoCo)
    lrX             inner learning rate
    wsdP            diloco: the learning rate stays, and falls in the last P % of the steps
Groups for --arms: codecs, overlap, sparse, distro, sizes, h50, muon, schedules, topics, speeds,
peers, tuning.

Results are kept in --output (JSON, beside it a picture) as they come; arms that are in it are not
run again, unless --fresh is given.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from gossamer.node.runs.planning.draft import Draft, draft_of_preset
from gossamer.protocol.manifest import TokenSchedule
from gossamer.trainer.presets.table import PRESETS
from tests.benchmarks._losses_arms import GROUPS, Arm, arm_of
from tests.benchmarks._losses_diloco import Setting, train_diloco
from tests.benchmarks._losses_distro import train_distro
from tests.benchmarks._losses_report import draw, table_of
from tests.benchmarks._losses_sparse import train_sparse
from tests.benchmarks._losses_text import Dealt, by_topic, mixed
from tests.benchmarks._parity_training import Curve, synchronous
from tests.benchmarks._results import (
    Result,
    Results,
    Settings,
    load_results,
    of_all_arms,
    without_widening,
)

DEFAULT_ARMS = ("codecs", "overlap", "sparse", "distro")
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "losses.json"
CURVE_POINTS = 8

# Tuned for `tiny` and K = 4 in parity.py.
SYNC_RATE = 4e-3
ALONE_RATE = 3e-3

console = Console(width=None if sys.stdout.isatty() else 150)


class Experiment:
    """All arms of one seed."""

    def __init__(self, options: argparse.Namespace, seed: int, folder: Path) -> None:
        self._draft = msgspec.structs.replace(draft_of(options), seed=seed)
        self._sparse_rates = PRESETS[options.preset].sparse_steps.adamw[:2]
        self._folder = folder
        self._device: str = options.device
        self._made: dict[tuple[bool, int], Dealt] = {}

    def _dealt(self, arm: Arm) -> Dealt:
        key = (arm.topics, arm.num_peers)
        if key not in self._made:
            deal = by_topic if arm.topics else mixed
            self._made[key] = deal(self._draft, self._folder / "text", arm.num_peers)
        return self._made[key]

    def prepare(self, arm: Arm) -> None:
        """Cuts the arm's text, which arms with as many peers share."""
        self._dealt(arm)

    def run(self, arm: Arm) -> Result:
        """Trains one arm. Raises ValueError if it cannot be trained."""
        started = time.monotonic()
        dealt = self._dealt(arm)
        curve = self._train(arm, dealt)
        return Result(
            arm=arm.name,
            seed=self._draft.seed,
            loss=curve.final,
            bits_per_byte=curve.final / math.log(2) / dealt.text.bytes_per_token,
            tokens=curve.tokens,
            rounds=curve.rounds,
            seconds=time.monotonic() - started,
            steps=curve.steps,
            losses=curve.losses,
            momenta=[round(value, 3) for value in curve.momenta],
        )

    def _train(self, arm: Arm, dealt: Dealt) -> Curve:
        draft = self._draft
        inner = draft.inner
        if arm.muon:
            inner = msgspec.structs.replace(inner, optimizer="muon")
        if arm.cooldown:
            inner = msgspec.structs.replace(inner, schedule=schedule_of(draft, arm))
        if arm.learning_rate:
            inner = msgspec.structs.replace(inner, learning_rate=arm.learning_rate)
        if arm.kind in ("sync", "alone"):
            rate = arm.learning_rate or (SYNC_RATE if arm.kind == "sync" else ALONE_RATE)
            inner = msgspec.structs.replace(inner, learning_rate=rate)
            return synchronous(
                dealt.text,
                draft.model,
                inner,
                arm.num_peers,
                draft.seed,
                points=CURVE_POINTS,
                device=self._device,
            )
        setting = Setting(
            dealt.text,
            draft.model,
            inner,
            draft.outer,
            self._sparse_rates,
            draft.seed,
            dealt.shards.__getitem__,
            CURVE_POINTS,
            self._device,
        )
        match arm.kind:
            case "diloco":
                return train_diloco(setting, arm)
            case "sparse":
                return train_sparse(setting, arm)
            case "distro":
                return train_distro(setting, arm)
        raise ValueError(f"{arm.kind} cannot be trained here")


def schedule_of(draft: Draft, arm: Arm) -> TokenSchedule:
    """The steps of an arm as tokens of all its peers."""
    inner = draft.inner
    step_tokens = arm.num_peers * inner.sequences_per_step * draft.model.context
    return TokenSchedule(
        warmup_tokens=inner.warmup_steps * step_tokens,
        total_tokens=inner.total_steps * step_tokens,
        cooldown_tokens=round(arm.cooldown * inner.total_steps) * step_tokens,
    )


def draft_of(options: argparse.Namespace) -> Draft:
    """The preset with what the options change. Overlap and the optimiser are the arms' matter."""
    draft = draft_of_preset(options.preset, name="losses", optimizer="adamw")
    change = msgspec.structs.replace
    draft = change(draft, outer=change(draft.outer, overlap=False))
    if options.small:
        small = change(draft.model, num_layers=4, width=48, num_heads=4, num_kv_heads=4)
        draft = change(draft, model=change(small, hidden_width=128))
    if options.text:
        paths = tuple(map(str, options.text))
        corpus = change(draft.corpus, paths=paths, max_bytes=options.text_bytes)
        draft = change(draft, corpus=corpus)
    if options.steps:
        # The warm-ups keep their parts of the whole.
        part = options.steps / draft.inner.total_steps
        warmup_steps = round(part * draft.inner.warmup_steps)
        inner = change(draft.inner, total_steps=options.steps, warmup_steps=warmup_steps)
        outer = change(draft.outer, warmup_rounds=round(part * draft.outer.warmup_rounds))
        draft = change(draft, inner=inner, outer=outer)
    return draft


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", nargs="+", default=list(DEFAULT_ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--small", action="store_true", help="half the preset's width")
    parser.add_argument("--steps", type=int, help="inner steps instead of the preset's")
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="instead of the default")
    parser.add_argument("--text-bytes", type=int, default=0, help="of --text at most")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="arms that train at once")
    parser.add_argument("--fresh", action="store_true", help="forget what the output holds")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument("--table", action="store_true", help="only show what is there")
    options = parser.parse_args(arguments)
    names = [name for each in options.arms for name in GROUPS.get(each, (each,))]
    options.arms = [arm_of(name) for name in dict.fromkeys(names)]
    return options


def settings_of(options: argparse.Namespace) -> Settings:
    draft = draft_of(options)
    sparse_rate, sparse_momentum = PRESETS[options.preset].sparse_steps.adamw[:2]
    return Settings(
        model=draft.model,
        inner=of_all_arms(draft.inner),
        outer=without_widening(draft.outer),
        options={
            "sync_rate": SYNC_RATE,
            "alone_rate": ALONE_RATE,
            "sparse_rate": sparse_rate,
            "sparse_momentum": sparse_momentum,
        },
    )


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    results = load_results(options.output, settings_of(options), fresh=options.fresh)
    if not options.table:
        run_missing(options, results)
    names = [arm.name for arm in options.arms]
    if not any(results.of(name, options.seeds) for name in names):
        raise SystemExit(f"{options.output} has no results of these arms and seeds")
    console.print(table_of(results, options.seeds, names))
    picture = options.output.with_suffix(".png")
    draw(results, options.seeds, names, picture)
    console.print(f"curves: {picture}\nresults: {options.output}")


def run_missing(options: argparse.Namespace, results: Results) -> None:
    """Arm by arm, so that what comes first is whole first, whenever this is stopped."""
    processes = ProcessPoolExecutor(
        options.processes,
        mp_context=multiprocessing.get_context("spawn"),  # CUDA refuses forked processes
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    with tempfile.TemporaryDirectory(prefix="gossamer-losses-") as folder, processes:
        experiments = {
            seed: Experiment(options, seed, Path(folder) / str(seed)) for seed in options.seeds
        }
        trainings = []
        for arm in options.arms:
            for seed, experiment in experiments.items():
                if results.get(arm.name, seed) is None:
                    experiment.prepare(arm)
                    trainings.append(processes.submit(experiment.run, arm))
        for training in as_completed(trainings):
            result = training.result()
            results.results.append(result)
            results.save(options.output)
            console.print(
                f"seed {result.seed} {result.arm}: {result.loss:.4f} nats, "
                f"{result.tokens:,} tokens, {result.seconds:.0f} s"
            )


if __name__ == "__main__":
    main()
