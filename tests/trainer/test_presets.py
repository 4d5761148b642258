from typing import cast, get_args

import msgspec
import pytest

from gossamer.protocol.limits import CHUNKS_MAX
from gossamer.protocol.manifest import InnerOptimizer, RoundConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.sync_modes import SyncMode
from gossamer.trainer.presets.modes import adapted, default_optimizer
from gossamer.trainer.presets.preset import OuterStep, Preset
from gossamer.trainer.presets.table import DEFAULT_PRESET, PRESETS

# What the names promise, in parameters. OpenDiLoCo's "150 M" are those of the layers.
PROMISED = {
    "tiny": 0.47e6,
    "1m": 1e6,
    "5m": 5e6,
    "10m": 10e6,
    "40m": 40e6,
    "150m": 150e6,
    "1.1b": 1.1e9,
}


def test_presets_are_sorted_by_size_and_start_with_the_default() -> None:
    sizes = [preset.model.num_parameters for preset in PRESETS.values()]
    assert sizes == sorted(sizes)
    assert list(PRESETS) == list(PROMISED)
    assert DEFAULT_PRESET == "tiny"


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_preset_has_the_size_of_its_name(preset: Preset) -> None:
    size = preset.model.num_parameters
    if preset.name == "150m":
        size -= 2 * preset.model.vocabulary * preset.model.width
    assert size == pytest.approx(PROMISED[preset.name], rel=0.08)


def test_shapes_that_were_published() -> None:
    shape_of = {
        name: (m.num_layers, m.width, m.num_heads, m.num_kv_heads, m.hidden_width)
        for name, m in ((name, preset.model) for name, preset in PRESETS.items())
    }
    assert shape_of["1.1b"] == (22, 2048, 32, 4, 5632)
    assert PRESETS["1.1b"].model.num_parameters == 1_100_048_384  # TinyLlama's own count
    assert shape_of["150m"][:2] == (12, 1024)
    assert PRESETS["tiny"].model.context == 64
    for name, sequences in (("150m", 512), ("1.1b", 2_048)):
        preset = PRESETS[name]
        schedule = preset.inner.schedule
        assert schedule
        assert schedule.total_tokens == 88_000 * sequences * preset.model.context
        assert preset.outer.inner_steps == 500
        assert (preset.inner.learning_rate, preset.inner.warmup_steps) == (4e-4, 1_000)
        assert preset.dense_steps == (OuterStep(0.7, 0.9), OuterStep(0.9, 0.8))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_runs_of_all_weights_among_members_are_muons(preset: Preset) -> None:
    assert preset.inner.uses_muon
    modes: dict[SyncMode, str] = {"diloco": "muon", "sparse": "muon", "distro": "adamw"}
    for sync, expected in modes.items():
        assert default_optimizer(sync) == adapted(preset, sync).inner.optimizer == expected
        assert default_optimizer(sync, trust="open") == "adamw"
        assert default_optimizer(sync, lora=True) == "adamw"
        assert default_optimizer(sync, from_weights=True) == "adamw"


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
@pytest.mark.parametrize("optimizer", get_args(InnerOptimizer))
def test_an_inner_optimizer_has_its_outer_step(preset: Preset, optimizer: InnerOptimizer) -> None:
    assert adapted(preset, "diloco").outer == preset.outer
    for sync, steps in (("diloco", preset.dense_steps), ("sparse", preset.sparse_steps)):
        outer = adapted(preset, cast(SyncMode, sync), optimizer).outer
        step = OuterStep(outer.learning_rate, outer.momentum, outer.displacement)
        assert step == steps.of(optimizer)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_run_starts_warm_and_then_averages_at_least_forty_times(preset: Preset) -> None:
    outer, inner = preset.outer, preset.inner
    warm_steps = outer.warmup_rounds * outer.warmup_inner_steps
    assert inner.warmup_steps < inner.total_steps
    assert outer.warmup_inner_steps < outer.inner_steps
    if preset.model.num_parameters < 10e6:  # REFERENCE: a fifth pays at this size
        assert 0.1 <= warm_steps / inner.total_steps <= 0.25
    rounds_later = (inner.total_steps - warm_steps) / outer.inner_steps
    assert outer.warmup_rounds + rounds_later >= 40


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_sparse_run_sends_every_value_seven_times(preset: Preset) -> None:
    outer, inner = preset.outer, preset.inner
    warm_steps = outer.warmup_rounds * outer.warmup_inner_steps
    rounds_later = (inner.total_steps - warm_steps) / outer.inner_steps
    if preset.model.num_parameters < 20e6:
        assert 7 <= rounds_later * outer.top_k / 4096 <= 10
    else:  # as published
        assert (outer.top_k, outer.error_decay) == (64, 0.95)
        assert set(preset.sparse_steps) == {OuterStep(1.0, 0.0)}


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_small_models_are_cut_into_some_32_chunks(preset: Preset) -> None:
    plan = ChunkPlan(preset.model.num_parameters, preset.outer.chunk_elements)
    assert 24 <= plan.num_chunks <= CHUNKS_MAX


def test_what_a_manifest_file_may_leave_out_has_the_same_value_everywhere() -> None:
    # A file without a preset falls back to these defaults.
    for preset in PRESETS.values():
        for section, struct in ((preset.model, ModelConfig), (preset.rounds, RoundConfig)):
            for field in msgspec.structs.fields(struct):
                if not field.required:
                    assert getattr(section, field.name) == field.default
