"""What does an audit find, and how often does it blame honest work?

    python -m tests.benchmarks.audits --seeds 1 2 3              # the preset as it is, with overlap
    python -m tests.benchmarks.audits --seeds 1 2 3 --no-overlap
    python -m tests.benchmarks.audits --seeds 1 2 3 --no-overlap --uneven --topics

Four peers train the preset `tiny` in this process, with `trust = "open"` and int8. In some rounds
two members are audited by three auditors each. An auditor draws 16 sequences of the data that the
member consumed in this round and 16 held-out ones, and measures what the member's update does to
the loss of each. The honest work of the member is measured, and what liars would send instead:

    zero      nothing
    noise     random values, as long as the work
    flipped   the opposite of the work
    other     another member's work, which was done on other data than the member declares
    stale     the member's own work of the round before
    tenth     a tenth of the work
    ALIE      the others' mean less one standard deviation
    bias      -0.5 times the others' mean

Gains are nats a token, with a quarter of the update: loss before less loss after. An auditor
*blames* work whose mean gain on the declared sequences is not above the margin of
`protocol/policy/audits.py`. The last columns are other measures: the whole update, and whether the
gain on declared data is no greater than on held-out data.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

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
from gossamer.protocol.policy.audits import AUDITORS, SCALE, Gain
from gossamer.protocol.rounds.ring_parts import ring_average
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.outer_momentum import rates_of_round
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.wire.audit_messages import SEQUENCES
from gossamer.trainer.evaluate import batches_of
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text.data import Batch, DataQueue
from gossamer.trainer.text.shard_folder import cut_text
from gossamer.trainer.train import Worker

PEERS = 4
AUDITED = (0, 2)
ROUNDS = (5, 15, 25, 35, 45, *range(52, 81, 3))
UNEVEN = (8, 20, 20, 40)
"""Inner steps of each peer where the preset has 20."""
SCALES = (1.0, SCALE)
"""Parts of an update that are applied."""
WORK = ("honest", "zero", "noise", "flipped", "other", "stale", "tenth", "ALIE", "bias")

Sequences = NDArray[np.int64]
Losses = NDArray[np.float64]


class Remembering(DataQueue):
    """A queue that keeps the sequences of a round."""

    def __init__(self, run: Preset, token_bytes: int) -> None:
        super().__init__(run.model.context, token_bytes, run.model.vocabulary)
        self.taken: list[Sequences] = []

    def take(self, num_sequences: int) -> Batch | None:
        batch = super().take(num_sequences)
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

    def __init__(self, options: argparse.Namespace, run: Preset, folder: Path, seed: int) -> None:
        text = cut_text(options.text, folder, run.tokenizer, run.model, seed)
        self._run, self._overlap = run, run.outer.overlap
        self._steps = UNEVEN if options.uneven else (20,) * PEERS
        self._payloads = payloads_of("diloco", run.outer, "open")
        self._plan = ChunkPlan(run.model.num_parameters, run.outer.chunk_elements)
        self._workers = [Worker(run, text.token_bytes, "cpu") for _ in range(PEERS)]
        self._queues = [Remembering(run, text.token_bytes) for _ in range(PEERS)]
        n = len(text.index.shards)
        for number, (worker, queue) in enumerate(zip(self._workers, self._queues, strict=True)):
            worker.queue = queue
            near = range(number * n // PEERS, (number + 1) * n // PEERS)
            text.push_shards(queue, near if options.topics else range(number, n, PEERS))
        heldout = batches_of(text.heldout(run.model.vocabulary), run.model.context, 64, 10**6)
        self._heldout = np.concatenate([b for b in heldout if b.shape[1] == run.model.context + 1])
        self._draw = np.random.default_rng(seed)
        self._auditor = Auditor(run)
        decoder = Decoder(run.model)
        decoder.initialise(seed)
        self._parameters = decoder.flat.numpy().copy()
        self._momentum = np.zeros_like(self._parameters)

    def gains(self, rounds: int) -> Losses:
        """The gains, (audits, auditors, kinds of work, scales, declared or held-out, sequences)."""
        found: list[Losses] = []
        starts = [self._parameters] * PEERS
        sent: list[Float32Array] = []
        due: list[tuple[Float32Array, ...]] = []
        first_step = 0
        for number in range(1, rounds + 1):
            stale, outer = sent, self._run.outer
            goes_on = self._overlap and not outer.is_warmup(number)
            tokens = self._train(starts, number, first_step)
            first_step += outer.inner_steps_of(number)
            if goes_on and due:
                # The state that the last round's work led to came while this one's was done.
                self._outer_step(number - 1, *due.pop())
            sent, norms = self._sent(), [norm_of(worker.pending) for worker in self._workers]
            if number in ROUNDS:
                found += [self._audit(member, sent, stale) for member in AUDITED]
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

    def _train(self, starts: Sequence[Float32Array], number: int, first_step: int) -> list[int]:
        tokens = []
        for worker, queue, start, steps in zip(
            self._workers, self._queues, starts, self._steps, strict=True
        ):
            queue.taken.clear()
            num_steps = max(1, self._run.outer.inner_steps_of(number) * steps // 20)
            tokens.append(worker.train(start, first_step, num_steps))
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

    def _audit(
        self, member: int, sent: Sequence[Float32Array], stale: Sequence[Float32Array]
    ) -> Losses:
        declared = np.concatenate(self._queues[member].taken)
        work = self._work_of(member, sent, stale)
        return np.stack([self._gains(declared, work) for _ in range(AUDITORS)])

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

    def _gains(self, declared: Sequences, work: Iterable[Float32Array]) -> Losses:
        pick = self._draw.choice
        sequences = np.concatenate(
            [
                declared[pick(len(declared), SEQUENCES, replace=len(declared) < SEQUENCES)],
                self._heldout[pick(len(self._heldout), SEQUENCES, replace=False)],
            ]
        )
        state = self._parameters
        before = self._auditor.losses(state, sequences)
        return np.stack(
            [
                np.stack(
                    [
                        (
                            before
                            - self._auditor.losses(state - each * np.float32(scale), sequences)
                        ).reshape(2, SEQUENCES)
                        for scale in SCALES
                    ]
                )
                for each in work
            ]
        )


def table_of(gains: Losses) -> Table:
    """The table of (audits, auditors, kinds of work, scales, declared or held-out, sequences)."""
    means = gains.mean(axis=-1)
    errors = gains.std(axis=-1, ddof=1) / np.sqrt(SEQUENCES)
    blamed = np.vectorize(lambda mean, error: Gain(mean, error).is_poor)(means, errors)[..., 0]
    table = Table(
        "work", "declared", "held-out", "one blames", "two of three", "whole update", "no less",
        title=f"{len(gains)} audits",
    )  # fmt: skip

    def two(words: NDArray[np.bool_]) -> str:
        return f"{(words.sum(axis=1) > AUDITORS // 2).mean():.0%}"

    for place, work in enumerate(WORK):
        declared, heldout = (means[:, :, place, 1, which] for which in (0, 1))
        table.add_row(
            work,
            f"{declared.mean():+.4f}",
            f"{heldout.mean():+.4f}",
            f"{blamed[:, :, place, 1].mean():.0%}",
            two(blamed[:, :, place, 1]),
            two(blamed[:, :, place, 0]),
            two(declared <= heldout),
        )
    ratios = means[:, :, 0, 1, 0] / errors[:, :, 0, 1, 0]
    table.caption = f"least gain of honest work, in standard errors: {ratios.min():.1f}"
    return table


def main() -> None:
    """Trains all seeds and prints a table."""
    parser = argparse.ArgumentParser("tests.benchmarks.audits", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--no-overlap", action="store_true")
    parser.add_argument("--uneven", action="store_true", help="peers of different speed")
    parser.add_argument("--topics", action="store_true", help="each peer has neighbouring shards")
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="files and folders")
    parser.add_argument("--keep", type=Path, help="a file for all gains, as npy")
    parser.add_argument("--kept", type=Path, nargs="+", default=(), help="show the gains of files")
    options = parser.parse_args()
    if options.kept:
        Console().print(table_of(np.concatenate([np.load(path) for path in options.kept])))
        return
    torch.set_num_threads(1)
    preset = PRESETS["tiny"]
    outer = replace(preset.outer, codec="int8", overlap=not options.no_overlap)
    found = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(options, replace(preset, outer=outer), Path(folder), seed)
            found.append(trial.gains(options.rounds))
            if options.keep:
                np.save(options.keep, np.concatenate(found))
    Console().print(table_of(np.concatenate(found)))


if __name__ == "__main__":
    main()
