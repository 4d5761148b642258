"""Model sizes with settings to start from. Pure data; a manifest file may override every value.

Sources: the shapes and AdamW of `150m` and `1.1b` are OpenDiLoCo's (arXiv 2407.07852, section 3):
inner 4e-4, betas 0.9/0.95, weight decay 0.1, clip 1.0, sequences of 1,024 tokens, H 500; outer
Nesterov 0.7/0.9 as in DiLoCo (arXiv 2311.08105). Published were 88,000 steps with a batch of 512
and 2,048 sequences, and for the larger model H 125. A card of 24 GB takes minutes for the larger
step, so the batch is 128 and 64 here: a step takes less than ten seconds, and a round, which has
fewer tokens than the published one, ends before its time limit, by an estimate that no card has
shown. They count the tokens of all peers (WSD), as many as were published: devices differ most at
these sizes. H=30 between them and the small sizes, and the cosine's end at 5 %, are those of the
DiLoCo scaling laws (arXiv 2503.09799).

Below some 10 million parameters 0.7/0.9 is not safe from a cold start, so every preset begins with
rounds of few inner steps and plain averaging, about a fifth of a small run's steps.

`_inner` says Muon (decision 125; modes.py: where not). All that is said below of rates, warm-up and
outer steps was found with AdamW. With Muon only the outer step was looked for again (decision 135);
that of `150m` and `1.1b` is the one that MuLoCo's authors run with 8 workers. At the presets' rates
Muon ended below AdamW: with `tiny`, also at a quarter of its size, `1m` and `10m`
(docs/benchmarks/training.md, cards.md).

Tuned here: `tiny` only (tests/benchmarks/parity.py). Its settings were picked on a model of a
quarter of its size, one seed each: 4 peers, H=20, 50 warm rounds of 4 steps gave 1.4445 nats with
outer 1.0/0.8, 1.4503 with 1.0/0.7 and 1.4537 with 0.7/0.9; 0.8 also beat 0.7 at H=50 and 0.5 with 2
peers. Its inner rate suits 4 peers; a peer that stays alone learns better with 3e-3.

`sparse` was tuned on that smaller model too (`losses.py --small`, the numbers are in its results,
losses_tuning.json): 4 peers, H=20, 30 rounds after the warm-up, outer rate 1, one seed, held-out
nats. `diloco` with fp32 has 1.584.

    values of 4096  momentum  decay  warm-up
               64        0.0   0.95  sparse   1.979    as SparseLoCo
               64        0.0   0.95  dense    1.912
              512        0.0   0.95  dense    1.775
              512        0.8   0.95  dense    1.672
              512        0.8   0.8   dense    1.639
              512        0.9   0.5   dense    1.657
             1024        0.8   0.5   dense    1.589
             1024        0.8   0.5   sparse   1.556
              512        0.8   0.5   sparse   1.598

So a short run needs the momentum that SparseLoCo does without (`diloco` without it: 1.733), error
feedback that soon forgets what is out of date, and no dense warm-up. And every value needs its turn
often enough: here 7 times after the warm-up. `top_k` of the other presets up to `10m` follows from
that; the larger ones are as published.

With 8 peers that was 1.5 % behind `diloco` (three seeds). With one seed, where `diloco` has 1.496:
0.9 of momentum and 0.8 of the errors gave 1.531 and 1.530, half as many values again 1.498, and a
longer outer step as much for no bytes at all:

    outer rate  8 peers  4 peers
           1.0    1.510    1.556
           1.2    1.496    1.561
           1.4    1.490    1.567

So it is 1.2, with three seeds 0.7 % behind `diloco` with 8 peers and 0.8 % ahead with 4.

With Muon, the same model, 4 peers, H=20, inner rate 6e-3, one seed (losses_muon_outer.json):

    outer rate  momentum  diloco  sparse
    AdamW's own            1.501   1.542
           0.8       0.6   1.460   1.499
           1.0       0.6   1.460   1.485
           1.2       0.5           1.488
           1.0       0.4   1.472   1.510
        chosen (1.4)       1.465

So it is 1.0/0.6 for `tiny` and `sparse`, with three seeds 2.5 % below AdamW's outer step, and 2.3 %
below AdamW with `sparse`. A chosen momentum suits both.

What 1,024 values of a block leave out costs Muon 2.5 % against `diloco`, three seeds, where AdamW
gains 1 %. All 4,096 of two bits each cost Muon 0.1 %, and 2,048 of them 0.5 %
(docs/benchmarks/training.md). With all values there are no places to send, so that is as many bits
as 2,048 take. AdamW loses with them. With `1m`, 400 steps and one seed, 2,048 cost Muon 0.7 %, and
the 384 that AdamW has 11 %.

Tried here: `1m`, `5m`, `10m`, and the others a little, in short trials
(tests/benchmarks/presets.py; all numbers are in its results). Held-out nats of one worker alone,
then of two with outer 1.0/0.8, 0.7/0.9, and with a momentum that each round chooses (`displacement`
1.4), all at the inner rate that was best for two with 1.0/0.8 (`40m`: 0.7/0.9). H and AdamW's
warm-up are shorter than the preset's, but for the warm-up in the first line:

    preset  steps x sequences  warm-up  inner rate   alone   1.0/0.8  0.7/0.9  chosen
    1m            252 x 8        100    3e-3         4.65     4.62     4.58     4.43
    1m            229 x 8         23    1.5e-3       5.04     4.67     4.71     4.67
    5m             54 x 8          5    1e-3         6.39     6.66     6.78     6.28
    10m            60 x 1          6    7.5e-4       6.86     7.32     8.11     6.59
    40m            41 x 1          4    5e-4         7.12     7.60     8.01     7.08
    150m           16 x 1          2    4e-4         7.65     8.57     8.78     7.41
    1.1b            8 x 1          1    4e-4         9.61        -     8.96        -

One seed each; the second line's first three are means of two. `10m` had an eighth of its batch,
`40m` a thirty-second part, and `150m` a 512th. With a constant momentum two workers did worse than
one from `5m` on (not with `1.1b`, eight steps of 128 tokens: it had hardly begun): steps are few
there, and the warm-up is short. So these presets choose it, but for the last two, whose 0.7/0.9 was
found in runs of 88,000 steps. In `tiny`'s longer runs the constant is better by up to 1 %
(docs/benchmarks),
and its other figures were made with it.

The other modes in the same trials, two workers (`--modes`): `sparse` as the preset has it and as
published, `distro` with 3e-3 and 1e-3 (decay 0.95, 32 values of a chunk) and as published (4e-4,
0.999, 4 values). `diloco` chooses its momentum (`1.1b`: 0.7/0.9), and has like `sparse` the inner
rate that was best for it; the first line is with the long warm-up:

    preset   diloco   sparse  published   distro 3e-3    1e-3   published
    1m         4.43     4.66       5.02          4.72    5.19        6.39
    1m         4.64     4.70       5.16          5.27    5.31        6.37
    5m         6.28     6.50       6.54          6.29    6.51        6.96
    10m        6.59     6.84       7.11          6.62    6.67        7.05
    40m        7.05     7.41       7.41          6.91    6.90        7.32
    150m       7.41     8.70       8.70          7.20    7.08        7.66
    1.1b       8.96     9.47       9.47             -       -        8.80

`sparse` as published sends a value once in 64 rounds, and `150m` had nine. `distro` with 1e-3 was
the best of all that were tried there, and as published no worse than one worker alone. The
published one stays: it has an eighth of the bytes, and was found in runs that were long enough for
its decay.

`1m` needs its long warm-up: with it 3e-3 did better than half of that, with 23 steps far worse; a
run that is much shorter should halve the rate. Twice the preset's inner rate was the worst for two
workers with 1.0/0.8 (with a chosen momentum the middle one of three for `5m`, the worst for `10m`),
but was never tried with a long warm-up.

As real swarms of two daemons with 1.0/0.8, `1m` went from 7.64 to 4.49 nats of training loss in
some 50 rounds (4 minutes of a busy machine); `10m` ran a few rounds, too few to say anything.

The inner rate of `40m` lies between its neighbours'; forty steps of one sequence say little more
than that it trains, and sixteen of `150m` less. `150m` and `1.1b` are as published. One CPU thread
needs 69 s for a step of `40m` and 2.3 hours for one of `150m`, by the time of two steps of one
micro-batch, in which the training process had 4.2 and 11.6 GB. The eleven vectors of a peer with
`1.1b` and AdamW, trainer and daemon, take 48 GB; its trials (10.4 nats would be random) had 24 GB
of memory, up to 66 of swap space, and took up to two hours.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gossamer.protocol.manifest import InnerConfig, OuterConfig, RoundConfig, TokenSchedule
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.chunk_plan import default_chunk_elements
from gossamer.trainer.presets.preset import OuterStep, OuterSteps, Preset
from gossamer.trainer.text.tokenizers.tokens import BYTES_VOCABULARY

DEFAULT_PRESET = "tiny"


class _Sparse(NamedTuple):
    """The settings that only `sync = "sparse"` has."""

    steps: OuterSteps
    top_k: int
    """Of AdamW."""
    muon_top_k: int
    error_decay: float


def _for_both(step: OuterStep) -> OuterSteps:
    return OuterSteps(adamw=step, muon=step)


# DiLoCo's (arXiv 2311.08105), and what the authors of MuLoCo (arXiv 2505.23725) run with 8 workers.
_PUBLISHED_OUTER = OuterSteps(adamw=OuterStep(0.7, 0.9), muon=OuterStep(0.9, 0.8))
_SMALL_OUTER = OuterSteps(adamw=OuterStep(1.0, 0.8), muon=OuterStep(1.0, 0.6))
_SELF_TUNING = _for_both(OuterStep(1.0, 0.9, displacement=1.4))
"""Each round chooses its momentum (`protocol.state.outer_momentum`). This is for sizes with which
no trial was long enough to find a constant."""

# SparseLoCo (arXiv 2508.15706): no momentum.
_PUBLISHED_SPARSE = _Sparse(
    _for_both(OuterStep(1.0, 0.0)), top_k=64, muon_top_k=64, error_decay=0.95
)


def _small_sparse(top_k: int, muon_top_k: int | None = None) -> _Sparse:
    """The settings that were tuned for `tiny`, with another `top_k`.

    Args:
        muon_top_k: None: the same.
    """
    steps = OuterSteps(adamw=OuterStep(1.2, 0.8), muon=OuterStep(1.0, 0.6))
    return _Sparse(steps, top_k, muon_top_k or top_k, error_decay=0.5)


def _model(
    shape: tuple[int, int, int, int, int], *, vocabulary: int, context: int, tied: bool = True
) -> ModelConfig:
    """`shape`: layers, width, heads, key-value heads, hidden width."""
    num_layers, width, num_heads, num_kv_heads, hidden_width = shape
    return ModelConfig(
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        hidden_width=hidden_width,
        vocabulary=vocabulary,
        context=context,
        tied_embeddings=tied,
    )


def _inner(
    learning_rate: float,
    *,
    sequences: int,
    warmup_steps: int,
    total_steps: int,
    schedule: TokenSchedule | msgspec.UnsetType = msgspec.UNSET,
) -> InnerConfig:
    return InnerConfig(
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        total_steps=total_steps,
        final_fraction=0.05,
        beta1=0.9,
        beta2=0.95,
        epsilon=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
        sequences_per_step=sequences,
        ends=True,
        optimizer="muon",
        schedule=schedule,
    )


def _outer(
    model: ModelConfig,
    step: OuterStep,
    *,
    inner_steps: int,
    warmup_rounds: int,
    warmup_inner_steps: int,
    sparse: _Sparse,
) -> OuterConfig:
    return OuterConfig(
        inner_steps=inner_steps,
        learning_rate=step.learning_rate,
        momentum=step.momentum,
        displacement=step.displacement,
        warmup_rounds=warmup_rounds,
        warmup_inner_steps=warmup_inner_steps,
        # Half the bytes of fp32 without loss (OpenDiLoCo); rounding errors are carried.
        codec="fp16",
        chunk_elements=default_chunk_elements(model.num_parameters),
        overlap=True,
        top_k=sparse.top_k,
        error_decay=sparse.error_decay,
        widening=True,
        sparse_sums=True,
        packing=True,
    )


def _rounds(round_seconds: float, gather_seconds: float, attempt_seconds: float) -> RoundConfig:
    return RoundConfig(
        round_seconds=round_seconds,
        gather_seconds=gather_seconds,
        attempt_seconds=attempt_seconds,
        stale_rounds=5,
    )


def _preset(
    name: str,
    summary: str,
    origin: str,
    model: ModelConfig,
    inner: InnerConfig,
    rounds: RoundConfig,
    outer_steps: OuterSteps,
    *,
    inner_steps: int,
    warmup_rounds: int,
    warmup_inner_steps: int,
    sparse: _Sparse,
) -> Preset:
    return Preset(
        name=name,
        summary=summary,
        origin=origin,
        tokenizer="bytes" if model.vocabulary == BYTES_VOCABULARY else "bpe",
        model=model,
        inner=inner,
        outer=_outer(
            model,
            outer_steps.muon,
            inner_steps=inner_steps,
            warmup_rounds=warmup_rounds,
            warmup_inner_steps=warmup_inner_steps,
            sparse=sparse,
        ),
        dense_steps=outer_steps,
        sparse_steps=sparse.steps,
        muon_top_k=sparse.muon_top_k,
        rounds=rounds,
    )


_TRIED = "were tried with AdamW in short runs, and nothing spoke against them"
_TRIED_WITH_BOTH = "were tried with AdamW in short runs, in which Muon then learnt more"
_PUBLISHED = (
    "are as published for AdamW, with a warm-up, a schedule and smaller steps of our own, and "
    "{tried}: watch the first rounds"
)


def _by_tokens(published_sequences: int) -> TokenSchedule:
    """The published number of tokens (88,000 steps of so many sequences of 1,024), here of all
    peers together, of which the last fifth is the cool-down. The warm-up is that of 1,000 steps of
    512 sequences: with 8 peers 500 steps of `150m` each, and 1,000 of `1.1b`."""
    total = 88_000 * published_sequences * 1024
    return TokenSchedule(
        warmup_tokens=1_000 * 512 * 1024, total_tokens=total, cooldown_tokens=total // 5
    )


_ALL = (
    _preset(
        "tiny",
        "0.47 million parameters on plain bytes: seconds a round on one CPU core",
        "were tuned on a quarter of its size: with AdamW, and the outer step with Muon too",
        _model((4, 96, 4, 4, 256), vocabulary=BYTES_VOCABULARY, context=64),
        _inner(4e-3, sequences=8, warmup_steps=40, total_steps=800),
        _rounds(20.0, 5.0, 3.0),
        _SMALL_OUTER,
        inner_steps=20,
        warmup_rounds=50,
        warmup_inner_steps=4,
        sparse=_small_sparse(1024, muon_top_k=4096),
    ),
    _preset(
        "1m",
        "1 million parameters: a CPU core",
        _TRIED_WITH_BOTH,
        _model((4, 128, 4, 4, 352), vocabulary=2048, context=128),
        _inner(3e-3, sequences=8, warmup_steps=100, total_steps=2_000),
        _rounds(30.0, 5.0, 3.0),
        _SELF_TUNING,
        inner_steps=20,
        warmup_rounds=100,
        warmup_inner_steps=4,
        sparse=_small_sparse(384, muon_top_k=2048),
    ),
    _preset(
        "5m",
        "5 million parameters: a few CPU cores",
        _TRIED,
        _model((6, 256, 8, 4, 640), vocabulary=4096, context=256),
        _inner(2e-3, sequences=8, warmup_steps=200, total_steps=5_000),
        _rounds(60.0, 10.0, 5.0),
        _SELF_TUNING,
        inner_steps=20,
        warmup_rounds=100,
        warmup_inner_steps=5,
        sparse=_small_sparse(128),
    ),
    _preset(
        "10m",
        "10 million parameters: many CPU cores or any GPU",
        _TRIED_WITH_BOTH,
        _model((5, 384, 6, 2, 896), vocabulary=8192, context=512),
        _inner(1.5e-3, sequences=8, warmup_steps=400, total_steps=10_000),
        _rounds(120.0, 15.0, 5.0),
        _SELF_TUNING,
        inner_steps=30,
        warmup_rounds=100,
        warmup_inner_steps=10,
        sparse=_small_sparse(128),
    ),
    _preset(
        "40m",
        "40 million parameters: any GPU",
        "lie between those of its neighbours and were tried for forty small steps of AdamW only: "
        "watch the first rounds",
        _model((12, 512, 8, 4, 1280), vocabulary=16_384, context=512),
        _inner(1e-3, sequences=32, warmup_steps=500, total_steps=20_000),
        _rounds(300.0, 30.0, 10.0),
        _SELF_TUNING,
        inner_steps=30,
        warmup_rounds=100,
        warmup_inner_steps=10,
        sparse=_PUBLISHED_SPARSE,
    ),
    _preset(
        "150m",
        "OpenDiLoCo's 150 million (and 66 million of embeddings): 2.6 GiB on a GPU, 6.0 beside",
        _PUBLISHED.format(tried="were tried for sixteen small steps only"),
        _model((12, 1024, 16, 16, 2688), vocabulary=32_000, context=1024, tied=False),
        _inner(
            4e-4, sequences=128, warmup_steps=1_000, total_steps=88_000, schedule=_by_tokens(512)
        ),
        _rounds(3_600.0, 120.0, 30.0),
        _PUBLISHED_OUTER,
        inner_steps=500,
        warmup_rounds=20,
        warmup_inner_steps=50,
        sparse=_PUBLISHED_SPARSE,
    ),
    _preset(
        "1.1b",
        "TinyLlama's 1.1 billion: 12.8 GiB on a GPU, 29.1 beside",
        _PUBLISHED.format(tried="were tried for eight small steps only"),
        _model((22, 2048, 32, 4, 5632), vocabulary=32_000, context=1024, tied=False),
        _inner(
            4e-4, sequences=64, warmup_steps=1_000, total_steps=88_000, schedule=_by_tokens(2_048)
        ),
        _rounds(7_200.0, 300.0, 60.0),
        _PUBLISHED_OUTER,
        inner_steps=500,
        warmup_rounds=20,
        warmup_inner_steps=50,
        sparse=_PUBLISHED_SPARSE,
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
"""All presets by name, from the smallest to the largest."""
