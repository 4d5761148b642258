"""What does an audit find, and how often does it blame honest work?

    python -m tests.benchmarks.audits --words --seeds 1 2     # soon little is left to learn
    python -m tests.benchmarks.audits --words --early         # the state comes in mid-round
    python -m tests.benchmarks.audits --seeds 1 2 3           # the preset as it is, with overlap
    python -m tests.benchmarks.audits --small --epochs --uneven
    python -m tests.benchmarks.audits --seeds 1 2 3 --no-overlap --uneven --topics
    python -m tests.benchmarks.audits --words --heldout       # of work that names no data

Four peers train the preset `tiny` in this process, with `trust = "open"` and int8. In some rounds
each member is audited by three auditors. An auditor draws 16 sequences of the data that the member
consumed in this round, and measures what the member's update does to the loss of each. The honest
work of the member is measured, and what liars would send instead, in this round and the one before:

    zero      nothing
    noise     random values, as long as the work
    flipped   the opposite of the work
    other     another member's work, which was done on other data than the member declares
    stale     the member's own work of the round before
    tenth     a tenth of the work
    ALIE      the others' mean less one standard deviation
    bias      -0.5 times the others' mean

The rules are those of `protocol/policy/auditing/audits.py`. Gains are nats a token: loss before
less loss after, of a quarter of the update on the state before the round, and of the whole one from
where the training began if the state came late. "Without the start" leaves out the second, and
"before" is the rule of decision 95.

With `--words` there soon is little to learn: a very small model and text of ten words. `--small` is
that model on the default corpus, and with `--epochs` each peer has 40 batches of it, again and
again. `tests.benchmarks.audits_start` reads what `--keep` writes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.payloads import payloads_of
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.robust_average import robust_average, robust_weights
from gossamer.protocol.manifest import InnerOptimizer
from gossamer.protocol.policy.auditing.audits import (
    AUDITORS,
    HELDOUT_SHARE,
    SCALE,
    SHARE,
    can_judge,
    falls_short,
    gain_of,
    helps_from_start,
    least_from_start,
)
from gossamer.protocol.rounds.ring.set_parts import ring_average
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.outer_momentum import rates_of_round
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.wire.audit_messages import SEQUENCES
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.modes import adapted
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text.data import Batch, DataQueue, Tokens
from gossamer.trainer.text.shard_folder import cut_text
from gossamer.trainer.train import Worker

PEERS = 4
ROUNDS = (5, 15, 25, 35, 45, *range(52, 81, 3))
UNEVEN = (8, 20, 20, 40)
"""Inner steps of each peer where the preset has 20."""
WORDS_ROUNDS = tuple(range(31, 111, 4))
EPOCH_BATCHES = 40
"""Batches that a peer has with `--epochs`: two rounds after the warm-up."""
SETTLED_AFTER = 80
"""The round with which the learning rate has come to its floor."""
APPLIED = QUARTER, AVERAGE, START = range(3)
"""What is applied: a quarter of the update, a quarter of the round's average with it, and the
update from where the training began."""
WORDS = ("red", "green", "blue", "one", "two", "three", "cat", "dog", "runs", "sleeps")
WORDS_SHAPE = {"num_layers": 1, "width": 32, "num_heads": 2, "num_kv_heads": 2, "hidden_width": 64}
WORK = ("honest", "zero", "noise", "flipped", "other", "stale", "tenth", "ALIE", "bias")

Sequences = NDArray[np.int64]
Losses = NDArray[np.float64]


class Remembering(DataQueue):
    """A queue that keeps the sequences of a round, and may begin again after some batches."""

    def __init__(self, run: Preset, token_bytes: int, epoch_batches: int = 0) -> None:
        super().__init__(run.model.context, token_bytes, run.model.vocabulary)
        self.taken: list[Sequences] = []
        self._epoch: list[Batch] = []
        self._epoch_batches = epoch_batches
        self._num_taken = 0

    def take(self, num_sequences: int) -> Batch | None:
        if self._num_taken < self._epoch_batches or not self._epoch_batches:
            batch = super().take(num_sequences)
            if batch is not None and self._epoch_batches:
                self._epoch.append(batch)
        else:
            batch = self._epoch[self._num_taken % self._epoch_batches]
        self._num_taken += 1
        if batch is not None:
            self.taken.append(batch.sequences)
        return batch


class Auditor:
    """Measures the loss of each sequence."""

    def __init__(self, run: Preset) -> None:
        self._decoder = Decoder(run.model)

    @torch.no_grad()
    def losses(self, parameters: Float32Array, sequences: Sequences) -> Losses:
        """(nats a token) of each of (num_sequences, context + 1) sequences."""
        self._decoder.flat.copy_(torch.from_numpy(parameters))
        tokens = torch.from_numpy(sequences)
        logits = self._decoder(tokens[:, :-1])
        each = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        return each.view(len(tokens), -1).mean(1).double().numpy()


class Trial:
    """One training of the swarm, with audits."""

    uneven: tuple[int, ...] = UNEVEN
    rounds: tuple[int, ...] = WORDS_ROUNDS
    """Rounds with audits where the model is very small."""

    def __init__(self, options: argparse.Namespace, run: Preset, folder: Path, seed: int) -> None:
        text = cut_text(options.text, folder, run.tokenizer, run.model, seed)
        peers = len(self.uneven)
        self._run, self._overlap = run, run.outer.overlap
        self._steps = self.uneven if options.uneven else (20,) * peers
        self._payloads = payloads_of(options.sync, run.outer, "open")
        self._plan = ChunkPlan(run.model.num_parameters, run.outer.chunk_elements)
        self._workers = [Worker(run, text.token_bytes, "cpu") for _ in range(peers)]
        batches = EPOCH_BATCHES if options.epochs else 0
        self._queues = [Remembering(run, text.token_bytes, batches) for _ in range(peers)]
        n = len(text.index.shards)
        for number, (worker, queue) in enumerate(zip(self._workers, self._queues, strict=True)):
            worker.queue = queue
            near = range(number * n // peers, (number + 1) * n // peers)
            text.push_shards(queue.push, near if options.topics else range(number, n, peers))
        self._draw = np.random.default_rng(seed)
        self._is_early = options.early
        heldout = text.heldout(run.model.vocabulary) if options.heldout else ()
        self._heldout = [sequence for shard in heldout for sequence in _cut(shard, run)]
        self._rounds = self.rounds if options.words or options.small else ROUNDS
        self._auditor = Auditor(run)
        decoder = Decoder(run.model)
        decoder.initialise(seed)
        self._parameters = decoder.flat.numpy().copy()
        self._momentum = np.zeros_like(self._parameters)

    def gains(self, rounds: int) -> Losses:
        """(audits, auditors, kinds of work, `APPLIED`, sequences)."""
        found: list[Losses] = []
        starts = [self._parameters] * PEERS
        sent: list[Float32Array] = []
        stale: list[Float32Array] = []
        due: list[tuple[Float32Array, ...]] = []
        first_step = 0
        for number in range(1, rounds + 1):
            older, stale, outer = stale, sent, self._run.outer
            goes_on = self._overlap and not outer.is_warmup(number)
            # The state that the last round's work led to comes while this one's is done.
            tokens = self._train(starts, number, first_step, due if goes_on else [])
            first_step += outer.inner_steps_of(number)
            sent, norms = self._sent(), [norm_of(worker.pending) for worker in self._workers]
            if number in self._rounds:
                works = Works(sent, stale, older, robust_weights(tokens), goes_on)
                found += [self._audit(member, works) for member in range(PEERS)]
            average = ring_average(
                [worker.pending for worker in self._workers],
                tokens,
                self._plan,
                self._payloads,
                outer.error_decay,
            )
            if goes_on:
                due.append((average, np.array(norms, np.float32)))
                starts = [self._parameters - each for each in sent]
            else:
                self._outer_step(number, average, np.array(norms, np.float32))
                starts = [self._parameters] * PEERS
        return np.stack(found)

    def _train(
        self,
        starts: Sequence[Float32Array],
        number: int,
        first_step: int,
        due: list[tuple[Float32Array, ...]],
    ) -> list[int]:
        """Trains a round, in whose middle or after which the state of the round before comes."""
        early = [
            max(1, self._run.outer.inner_steps_of(number) * steps // 20) for steps in self._steps
        ]
        late = [steps // 2 if self._is_early and due else 0 for steps in early]
        early = [steps - others for steps, others in zip(early, late, strict=True)]
        carried = [worker.pending.copy() for worker in self._workers]
        for queue in self._queues:
            queue.taken.clear()
        tokens = [
            worker.train(start, first_step, steps)
            for worker, start, steps in zip(self._workers, starts, early, strict=True)
        ]
        if due:
            self._outer_step(number - 1, *due.pop())
        for place, worker in enumerate(self._workers):
            if late[place]:
                local = self._parameters - (worker.pending - carried[place])
                tokens[place] += worker.train(local, first_step + early[place], late[place])
        return tokens

    def _sent(self) -> list[Float32Array]:
        """What the others decode of each member's work."""
        ranges = [self._plan.range_of(chunk) for chunk in range(self._plan.num_chunks)]
        coder = self._payloads
        assert isinstance(coder, RecordPayloads)
        return [
            np.concatenate(
                [
                    coder.decode(coder.encode(worker.pending[each]), each.stop - each.start)
                    for each in ranges
                ]
            )
            for worker in self._workers
        ]

    def _outer_step(self, number: int, average: Float32Array, norms: Float32Array) -> None:
        outer, total = self._run.outer, self._run.inner.total_steps
        chunks = [self._plan.range_of(chunk) for chunk in range(self._plan.num_chunks)]
        pieces = ((average[chunk], self._momentum[chunk]) for chunk in chunks)
        rates = rates_of_round(outer, total, number, pieces, [float(norm) for norm in norms])
        self._parameters, before = self._parameters.copy(), self._parameters
        rate, mu, average = rates.learning_rate, rates.momentum, rates.of_average(average)
        nesterov(before, self._momentum, average, rate, mu, self._parameters, self._momentum)

    def _audit(self, member: int, works: Works) -> Losses:
        judged = np.stack(self._heldout or [*np.concatenate(self._queues[member].taken)])
        kinds = self._work_of(member, works.sent, works.stale)
        earlier = self._work_of(member, works.stale, works.older)
        averages = [self._average(_with(works.sent, member, each), works.weights) for each in kinds]
        starts = [
            self._parameters + self._average(_with(works.stale, member, each), works.weights) - each
            for each in earlier
        ]
        found = np.stack([self._gains(judged, kinds, averages, starts) for _ in range(AUDITORS)])
        if not works.goes_on:
            found[:, :, START] = 0.0  # no auditor looks there
        return found

    def _average(self, sent: Sequence[Float32Array], weights: Sequence[int]) -> Float32Array:
        chunks = [self._plan.range_of(chunk) for chunk in range(self._plan.num_chunks)]
        return np.concatenate([robust_average([each[c] for each in sent], weights) for c in chunks])

    def _work_of(
        self, member: int, sent: Sequence[Float32Array], stale: Sequence[Float32Array]
    ) -> list[Float32Array]:
        own = sent[member]
        noise = self._draw.standard_normal(own.size).astype(np.float32)
        noise *= np.float32(norm_of(own) / norm_of(noise))
        others = np.stack([each for number, each in enumerate(sent) if number != member])
        mean = others.mean(axis=0)
        return [
            own,
            np.zeros_like(own),
            noise,
            -own,
            sent[member - 1],
            stale[member],
            own * np.float32(0.1),
            mean - others.std(axis=0),
            mean * np.float32(-0.5),
        ]

    def _gains(
        self,
        judged: Sequences,
        work: Sequence[Float32Array],
        averages: Sequence[Float32Array],
        starts: Sequence[Float32Array],
    ) -> Losses:
        drawn = self._draw.choice(len(judged), SEQUENCES, replace=len(judged) < SEQUENCES)
        sequences, state = judged[drawn], self._parameters
        before = self._auditor.losses(state, sequences)

        def losses(parameters: Float32Array) -> Losses:
            return self._auditor.losses(parameters, sequences)

        scale = np.float32(SCALE)
        return np.stack(
            [
                np.stack(
                    [
                        before - losses(state - each * scale),
                        before - losses(state - average * scale),
                        losses(start) - losses(start - each),
                    ]
                )
                for each, average, start in zip(work, averages, starts, strict=True)
            ]
        )


def _cut(shard: Tokens, run: Preset) -> Sequences:
    """Whole sequences of a shard, (num_sequences, context + 1)."""
    length = run.model.context + 1
    return shard[: len(shard) // length * length].reshape(-1, length).astype(np.int64)


class Works(NamedTuple):
    """What the members sent, by member, and their weights."""

    sent: Sequence[Float32Array]
    stale: Sequence[Float32Array]
    """In the round before."""
    older: Sequence[Float32Array]
    """In the one before that."""
    weights: Sequence[int]
    goes_on: bool
    """Whether members trained from other parameters than the state before the round."""


def _with(works: Sequence[Float32Array], member: int, work: Float32Array) -> list[Float32Array]:
    return [*works[:member], work, *works[member + 1 :]]


def poor(gains: Losses, share: float, *, from_start: bool) -> bool | None:
    """What an auditor says of gains (`APPLIED`, sequences); None if nothing can be told. All
    members count as if they had trained on equally much."""
    nothing = [0.0] * gains.shape[-1]
    own, average, start = ((-gains[which]).tolist() for which in APPLIED)
    control = gain_of(nothing, average)
    if not can_judge(control):
        return None
    if not falls_short(nothing, average, own, share):
        return False
    return not (from_start and helps_from_start(nothing, start, least_from_start(control, share)))


def poor_before(gains: Losses) -> bool | None:
    """What an auditor said by the rule of decision 95."""
    nothing = [0.0] * gains.shape[-1]
    own, average, _ = ((-gains[which]).tolist() for which in APPLIED)
    if not gain_of(nothing, average).is_above(1.0):
        return None
    return not gain_of(nothing, own).is_above(1.0)


def table_of(gains: Losses, share: float, *, overlap: bool) -> Table:
    """The table of what `Trial.gains` returns.

    Args:
        share: part of the average's gain that good work has.
    """
    means = gains.mean(axis=-1)
    table = Table(
        "work", "gain", "from its start", "undecided", "poor of verdicts", "two of three",
        "without the start", "before", "two of three", title=f"{len(gains)} audits",
    )  # fmt: skip
    rules: tuple[Callable[[Losses], bool | None], ...] = (
        lambda each: poor(each, share, from_start=overlap),
        lambda each: poor(each, share, from_start=False),
        poor_before,
    )
    for place, work in enumerate(WORK):
        words = [[[rule(each) for each in audit[:, place]] for audit in gains] for rule in rules]
        flat = [[word for audit in each for word in audit] for each in words]
        blamed = [f"{each.count(True)} of {len(each) - each.count(None)}" for each in flat]
        found = [
            f"{np.mean([audit.count(True) > AUDITORS // 2 for audit in each]):.0%}"
            for each in words
        ]
        table.add_row(
            work,
            f"{means[:, :, place, QUARTER].mean():+.4f}",
            f"{means[:, :, place, START].mean():+.4f}",
            f"{flat[0].count(None) / len(flat[0]):.0%}",
            blamed[0],
            found[0],
            blamed[1],
            blamed[2],
            found[2],
        )
    return table


def add_trial_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which runs are trained (`Trial`)."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--no-overlap", action="store_true")
    parser.add_argument("--uneven", action="store_true", help="peers of different speed")
    parser.add_argument("--small", action="store_true", help="a very small model")
    parser.add_argument("--epochs", action="store_true", help="each peer has little text")
    parser.add_argument("--topics", action="store_true", help="each peer has neighbouring shards")
    parser.add_argument("--words", action="store_true", help="ten words and a very small model")
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="files and folders")
    parser.add_argument("--codec", choices=("fp32", "int8", "int4"), default="int8")
    parser.add_argument("--sync", choices=("diloco", "sparse"), default="diloco")


def preset_of(options: argparse.Namespace) -> Preset:
    """The preset that all trials train, with the outer step of its page."""
    preset = adapted(PRESETS["tiny"], options.sync, "adamw")
    outer = replace(preset.outer, codec=options.codec, overlap=not options.no_overlap)
    preset = replace(preset, outer=outer)
    if options.words or options.small:
        preset = replace(preset, model=replace(preset.model, **WORDS_SHAPE))
    return preset


def main() -> None:
    """Trains all seeds and prints a table."""
    parser = argparse.ArgumentParser("tests.benchmarks.audits", description=__doc__.split("\n")[0])
    add_trial_options(parser)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--early", action="store_true", help="states come in mid-round")
    parser.add_argument("--heldout", action="store_true", help="judge all work on held-out text")
    parser.add_argument("--optimizer", choices=get_args(InnerOptimizer), default="adamw")
    parser.add_argument("--keep", type=Path, help="a file for all gains, as npy")
    parser.add_argument("--kept", type=Path, nargs="+", default=(), help="show the gains of files")
    options = parser.parse_args()
    share = HELDOUT_SHARE if options.heldout else SHARE
    if options.kept:
        kept = np.concatenate([np.load(path) for path in options.kept])
        Console().print(table_of(kept, share, overlap=not options.no_overlap))
        return
    torch.set_num_threads(1)
    preset = preset_of(options)
    preset = replace(preset, inner=replace(preset.inner, optimizer=options.optimizer))
    if options.words or options.small:
        options.rounds = max(options.rounds, WORDS_ROUNDS[-1])
    found = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            if options.words:
                options.text = [write_words(Path(folder) / "text", seed)]
            trial = Trial(options, preset, Path(folder), seed)
            found.append(trial.gains(options.rounds))
            if options.keep:
                np.save(options.keep, np.concatenate(found))
    tables = [found]
    if options.words or options.small:
        unsettled = PEERS * sum(number <= SETTLED_AFTER for number in WORDS_ROUNDS)
        tables = [[each[:unsettled] for each in found], [each[unsettled:] for each in found]]
    for each in tables:
        table = table_of(np.concatenate(each), share, overlap=not options.no_overlap)
        Console(width=140).print(table)


def write_words(folder: Path, seed: int) -> Path:
    """Writes text of ten words in random order into a new folder, and returns it."""
    folder.mkdir()
    draw = np.random.default_rng(seed)
    for number in range(8):
        text = " ".join(draw.choice(WORDS, 200_000))
        (folder / f"{number}.txt").write_text(text)
    return folder


if __name__ == "__main__":
    main()
