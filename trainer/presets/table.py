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

`_inner` says Muon (decision 125; modes.py: where not). The other rates, the warm-up and most outer
steps were found with AdamW. With Muon only the outer step was looked for again (decision 135); that
of `150m` and `1.1b` is the one that MuLoCo's authors run with 8 workers. At the presets' rates Muon
ended below AdamW: with `tiny`, also at a quarter of its size, `1m` and `10m`.

The trials behind the other values, with their numbers: docs/benchmarks/presets.md.
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


def _preset(
    name: str,
    summary: str,
    origin: str,
    model: ModelConfig,
    inner: InnerConfig,
    seconds: tuple[float, float, float],
    outer_steps: OuterSteps,
    *,
    inner_steps: int,
    warmup_rounds: int,
    warmup_inner_steps: int,
    sparse: _Sparse,
) -> Preset:
    """`seconds`: of a round, of gathering, and of an attempt."""
    round_seconds, gather_seconds, attempt_seconds = seconds
    return Preset(
        name=name,
        summary=summary,
        origin=origin,
        tokenizer="bytes" if model.vocabulary == BYTES_VOCABULARY else "bpe",
        model=model,
        inner=inner,
        outer=OuterConfig(
            inner_steps=inner_steps,
            **outer_steps.muon._asdict(),
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
        ),
        dense_steps=outer_steps,
        sparse_steps=sparse.steps,
        muon_top_k=sparse.muon_top_k,
        rounds=RoundConfig(
            round_seconds=round_seconds,
            gather_seconds=gather_seconds,
            attempt_seconds=attempt_seconds,
            stale_rounds=5,
        ),
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
        (20.0, 5.0, 3.0),
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
        (30.0, 5.0, 3.0),
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
        (60.0, 10.0, 5.0),
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
        (120.0, 15.0, 5.0),
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
        (300.0, 30.0, 10.0),
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
        (3_600.0, 120.0, 30.0),
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
        (7_200.0, 300.0, 60.0),
        _PUBLISHED_OUTER,
        inner_steps=500,
        warmup_rounds=20,
        warmup_inner_steps=50,
        sparse=_PUBLISHED_SPARSE,
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
"""All presets by name, from the smallest to the largest."""
