"""What does a minority of liars do to a model, under each way to average the members' work?

    python -m tests.benchmarks.robust                     # 8 peers, 3 of them hostile
    python -m tests.benchmarks.robust --uneven --topics   # steps of 4 to 16, text of own kinds
    python -m tests.benchmarks.robust --codec sparse
    python -m tests.benchmarks.robust --codec distro      # signs of every step
    python -m tests.benchmarks.robust --optimizer muon --momentum 0 --averages robust

The peers train in this process, with the model of `losses.py --small` on the default corpus and
fewer sequences a step. What they send is averaged chunk by chunk:

    mean      weighted with tokens capped at twice the lower median
    clipped   likewise, each contribution clipped to the lower median norm (`contributions.reduce`)
    robust    `robust_average`
    alone     the mean of the honest members, without the others

Hostile members claim tokens without end. The loss is held-out nats a token after the last round.
Behind the mean of the seeds stands the largest excess over `alone`, each seed compared with itself.

With `distro` the average is that of signs, in which tokens have no weight. The attacks are made of
dense signs, and the codec sends the strongest coefficients of the result, so -10 times the work is
the same as -1 times it.

    signs      every part counts (`trust = "members"`)
    agreeing   those whose signs do not agree have no part (`sign_agreement`, `"open"`)

Three more attacks are on that rule: `sleeper` works in four steps and lies in four, `flicker` takes
turns, and `partial` turns 45 % of its signs, the same ones in all liars. In the other modes `sly`
is an attack on the measure of agreement of `robust_average` (`_robust_sly`). `ALIE noisy` and
`sly noisy` hide from the comparison of what members add: each liar adds noise of its own, as long
as the spread of the honest members.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from gossamer.protocol.codecs.chunk_values import Float32Array, is_usable
from gossamer.protocol.codecs.contributions import clip_factors
from gossamer.protocol.codecs.inner_products import inner_product
from gossamer.protocol.codecs.robust_average import robust_average, robust_weights
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.manifest import InnerOptimizer
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.state.sign_agreement import SignAgreement
from gossamer.protocol.sync_modes import SyncMode
from gossamer.protocol.token_caps import capped_tokens
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.modes import adapted
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text.shard_folder import ShardFolder, cut_text
from gossamer.trainer.train import Worker
from tests.benchmarks._robust_distro import SharedSwarm, dense, strongest
from tests.benchmarks._robust_sly import sly
from tests.support import lies
from tests.support.lies import ATTACKS, MIXED, Attack, alie

Aggregate = Callable[[Sequence[Float32Array], Sequence[int]], Float32Array]

HOSTILE = (1, 4, 6)
CLAIM = 10**9
STEPS = 8
"""Inner steps of a round."""
UNEVEN = (16, 8, 4, 8, 8, 4, 8, 12)
EVEN = (STEPS,) * 8


def mean(parts: Sequence[Float32Array], tokens: Sequence[int]) -> Float32Array:
    """The weighted mean."""
    weights = capped_tokens(tokens)
    average = np.zeros_like(parts[0])
    for part, weight in zip(parts, weights, strict=True):
        average += part * np.float32(weight / sum(weights))
    return average


def clipped(parts: Sequence[Float32Array], tokens: Sequence[int]) -> Float32Array:
    """The weighted mean of parts of at most the lower median norm."""
    clips = clip_factors([inner_product(part, part) for part in parts])
    return mean([p * np.float32(clip) for p, clip in zip(parts, clips, strict=True)], tokens)


def robust(parts: Sequence[Float32Array], tokens: Sequence[int]) -> Float32Array:
    """See `robust_average`."""
    return robust_average(parts, robust_weights(tokens))


AVERAGES: dict[str, Aggregate] = {"mean": mean, "clipped": clipped, "robust": robust}

SIGN_ATTACKS = ("sleeper", "flicker", "partial")
"""Attacks on the rule that leaves out members, see `signs_of_liar`."""

TURNED_SHARE = 0.45
"""Share of its signs that a `partial` liar turns: less than half, so that it still agrees."""

AGREEING = "agreeing"
SIGN_AVERAGES = ("signs", AGREEING)
"""The averages of signs: of all members, and of those that agree with the others."""


def noisy(attack: Attack) -> Attack:
    """The attack with noise of each liar's own, as long as the spread of the honest members."""

    def hidden(own: Float32Array, others: Float32Array, draw: np.random.Generator) -> Float32Array:
        noise = others.std(axis=0) * draw.standard_normal(own.size, np.float32)
        return np.asarray(attack(own, others, draw) + noise, np.float32)

    return hidden


EVASIONS: dict[str, Attack] = {"sly": sly, "ALIE noisy": noisy(alie), "sly noisy": noisy(sly)}
"""Made against the rules of `robust_average`. They are none of those in the mixed attack."""

SYNC: dict[str, SyncMode] = {"sparse": "sparse", "distro": "distro"}
"""The modes whose name stands for the codec; all other codecs are of `diloco`."""


def attack_of(name: str, number: int, member: int) -> Attack | None:
    """What a hostile member does in a round."""
    if name in EVASIONS:
        return EVASIONS[name]
    return lies.attack_of(name, number, HOSTILE.index(member))


def signs_of_liar(attack: str, step: int, signs: Float32Array) -> Float32Array:
    """What a hostile member makes of its signs in one of `SIGN_ATTACKS`."""
    if attack == "partial":
        turned = signs.copy()
        sent = signs.nonzero()[0]
        turned[sent[: int(TURNED_SHARE * len(sent))]] *= -1
        return turned
    lies = step % STEPS >= STEPS // 2 if attack == "sleeper" else bool(step % 2)
    return -signs if lies else signs


def small_run(
    codec_name: str, optimizer: InnerOptimizer = "adamw", momentum: float | None = None
) -> Preset:
    # AdamW's outer step for both: their tables compare attacks, and were made with it.
    run = adapted(PRESETS["tiny"], SYNC.get(codec_name, "diloco"), "adamw")
    model = replace(run.model, width=48, hidden_width=128, num_layers=2, context=32)
    inner = replace(run.inner, sequences_per_step=8, optimizer=optimizer)
    outer = run.outer if momentum is None else replace(run.outer, momentum=momentum)
    return replace(run, model=model, inner=inner, outer=outer)


class Trial:
    """One training of the whole swarm."""

    def __init__(
        self, options: argparse.Namespace, run: Preset, text: ShardFolder, seed: int
    ) -> None:
        self._run, self._codec = run, options.codec
        self._steps = UNEVEN if options.uneven else EVEN
        self._workers = [Worker(run, text.token_bytes, "cpu") for _ in range(8)]
        for number, worker in enumerate(self._workers):
            text.push_shards(worker.queue.push, shards_of(text, number, options.topics))
        self._heldout = list(text.heldout(run.model.vocabulary))
        self._draw = np.random.default_rng(seed)
        decoder = Decoder(run.model)
        decoder.initialise(seed)
        self._parameters = decoder.flat.numpy().copy()
        self._plan = ChunkPlan(self._parameters.size, 16_384)

    def loss(self, average_name: str, attack: str, members: Sequence[int], rounds: int) -> float:
        """The loss after so many rounds of these members."""
        aggregate = AVERAGES[average_name]
        parameters, momentum = self._parameters, np.zeros_like(self._parameters)
        outer = self._run.outer
        honest = [member for member in members if member not in HOSTILE]
        first_step = 0
        for number in range(rounds):
            for member in members:
                self._workers[member].train(parameters, first_step, self._steps[member])
            first_step += self._steps[1]
            if not all(is_usable(self._workers[member].pending) for member in members):
                return float("inf")
            sent = {m: self._sent(self._workers[m], outer.error_decay) for m in members}
            tokens = [self._steps[m] for m in members]
            others = np.stack([sent[m] for m in honest])
            for place, member in enumerate(members):
                lie = attack_of(attack, number, member) if member in HOSTILE else None
                if lie is not None:
                    sent[member] = self._lies(lie, sent[member], others)
                    tokens[place] = CLAIM
            average = np.empty_like(parameters)
            for chunk in range(self._plan.num_chunks):
                where = self._plan.range_of(chunk)
                average[where] = aggregate([sent[m][where] for m in members], tokens)
            rate, mu = (1.0, 0.0) if number < rounds // 4 else (outer.learning_rate, outer.momentum)
            with np.errstate(over="ignore", invalid="ignore"):
                nesterov(parameters, momentum, average, rate, mu, parameters, momentum)
            if not np.isfinite(parameters).all():
                return float("inf")
        return self._workers[members[0]].loss(parameters, self._heldout)

    def _lies(self, lie: Attack, own: Float32Array, others: Float32Array) -> Float32Array:
        """What a hostile member sends: chunk by chunk, as it is averaged."""
        lies = np.empty_like(own)
        for chunk in range(self._plan.num_chunks):
            where = self._plan.range_of(chunk)
            lies[where] = lie(own[where], others[:, where], self._draw)
        return lies

    def _sent(self, worker: Worker, error_decay: float) -> Float32Array:
        """What the others decode of a worker's work; it keeps what the codec left out."""
        decoded = np.empty_like(worker.pending)
        for chunk in range(self._plan.num_chunks):
            where = self._plan.range_of(chunk)
            values = worker.pending[where]
            if self._codec == "sparse":
                sparse = SparseCodec(self._run.outer.top_k)
                decoded[where] = sparse.decode(sparse.encode(values), values.size).dense(
                    values.size
                )
            else:
                dense = codec(self._codec)
                decoded[where] = dense.decode(dense.encode(values), values.size)
        worker.pending -= decoded
        if self._codec == "sparse":
            worker.pending *= np.float32(error_decay)
        return decoded


class SharedTrial:
    """One training of the whole swarm, in which every step is shared."""

    def __init__(
        self, options: argparse.Namespace, run: Preset, text: ShardFolder, seed: int
    ) -> None:
        self._swarm = SharedSwarm(run, text.token_bytes, 8, seed)
        for number, trainer in enumerate(self._swarm.trainers):
            text.push_shards(trainer.push, shards_of(text, number, options.topics))
        self._reader = Worker(run, text.token_bytes, "cpu")
        self._heldout = list(text.heldout(run.model.vocabulary))
        self._draw = np.random.default_rng(seed)

    def loss(self, average_name: str, attack: str, members: Sequence[int], rounds: int) -> float:
        """The loss after as many steps as so many rounds have in the other modes."""
        swarm, agreement = self._swarm, None
        swarm.begin(members, rounds * STEPS)
        for step in range(rounds * STEPS):
            if average_name == AGREEING and step % STEPS == 0:
                agreement = SignAgreement()
            offered = swarm.offers(members)
            signs = {m: dense(each, swarm.codec) for m, each in offered.items()}
            others = np.stack([each for m, each in signs.items() if m not in HOSTILE])
            for member in sorted(set(members) & set(HOSTILE)):
                if attack in SIGN_ATTACKS:
                    wanted = signs_of_liar(attack, step, signs[member])
                    offered[member] = strongest(wanted, swarm.codec)
                elif lie := attack_of(attack, step // STEPS, member):
                    wanted = lie(signs[member], others, self._draw)
                    offered[member] = strongest(wanted, swarm.codec)
            swarm.take_step(step, offered, agreement)
        return self._reader.loss(swarm.parameters, self._heldout)


def shards_of(text: ShardFolder, number: int, has_topics: bool) -> range:
    """The shards of one of eight peers: neighbouring ones, or each eighth."""
    shards = range(len(text.index.shards))
    if has_topics:
        return shards[number * len(shards) // 8 : (number + 1) * len(shards) // 8]
    return shards[number::8]


def main() -> None:
    """Trains all arms and prints a table."""
    names = [*ATTACKS, MIXED, *EVASIONS, *SIGN_ATTACKS]
    parser = argparse.ArgumentParser("tests.benchmarks.robust", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--codec", default="int8", help="of the ring, or sparse or distro")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--uneven", action="store_true", help="peers of different speed")
    parser.add_argument("--topics", action="store_true", help="each peer has neighbouring shards")
    parser.add_argument("--attacks", nargs="+", choices=names, help="default: all that there are")
    parser.add_argument(
        "--averages",
        nargs="+",
        choices=[*AVERAGES, *SIGN_AVERAGES],
        help="default: all of the codec's",
    )
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="files and folders")
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="adamw")
    parser.add_argument("--momentum", type=float, help="of the outer step; default: the preset's")
    options = parser.parse_args()
    is_shared = options.codec == "distro"
    if is_shared and (options.optimizer == "muon" or options.momentum is not None):
        parser.error("distro has an optimiser of its own, and no outer step")
    if is_shared and options.uneven:
        parser.error("with distro all peers take the same steps")
    if options.attacks is None:
        options.attacks = [
            each for each in names if each not in (EVASIONS if is_shared else SIGN_ATTACKS)
        ]
    elif not is_shared and {*options.attacks} & {*SIGN_ATTACKS}:
        parser.error(f"{', '.join(SIGN_ATTACKS)} are attacks on the signs of distro")
    elif is_shared and {*options.attacks} & {*EVASIONS}:
        parser.error(f"{', '.join(EVASIONS)} are attacks on the robust average")
    possible = SIGN_AVERAGES if is_shared else [*AVERAGES]
    averages = options.averages or possible
    if not {*averages} <= {*possible}:
        parser.error(f"with {options.codec} the averages are {', '.join(possible)}")
    with tempfile.TemporaryDirectory() as folder:
        _print_table(options, averages, SharedTrial if is_shared else Trial, Path(folder))


def _print_table(
    options: argparse.Namespace,
    averages: Sequence[str],
    kind: type[Trial] | type[SharedTrial],
    folder: Path,
) -> None:
    run = small_run(options.codec, options.optimizer, options.momentum)
    texts: dict[int, ShardFolder] = {}
    for seed in options.seeds:
        (folder / str(seed)).mkdir()
        texts[seed] = cut_text(options.text, folder / str(seed), run.tokenizer, run.model, seed)

    def losses(average: str, attack: str, members: Sequence[int]) -> list[float]:
        return [
            kind(options, run, texts[seed], seed).loss(average, attack, members, options.rounds)
            for seed in options.seeds
        ]

    everybody = tuple(range(8))
    honest = [member for member in everybody if member not in HOSTILE]
    # The mean of members that all are honest and take equally many steps needs no protection.
    alone = losses("mean", "nobody", honest)
    print("alone", *(f"{each:.3f}" for each in alone), flush=True)
    table = Table("", *averages, title=f"{options.codec}, alone {np.mean(alone):.3f}")
    for attack in options.attacks:
        row = []
        for average in averages:
            found = losses(average, attack, everybody)
            excess = max(each / reference - 1 for each, reference in zip(found, alone, strict=True))
            row.append(f"{np.mean(found):.3f} ({excess:+.1%})")
            print(attack, average, *(f"{each:.3f}" for each in found), flush=True)
        table.add_row(attack, *row)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
