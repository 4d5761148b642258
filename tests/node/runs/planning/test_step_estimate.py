"""The presets are for cards that people have: no step and no round is too long for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gossamer.node.machine.capacity import DeviceMemory
from gossamer.node.runs.planning.device_fit import device_fit
from gossamer.node.runs.planning.manifest_file import parse_manifest_file
from gossamer.node.runs.planning.step_estimate import (
    CARD_BYTES,
    MUON_ITERATIONS,
    operations_of_muon,
    operations_of_token,
    step_seconds,
)
from gossamer.trainer.inner_step import muon
from gossamer.trainer.presets.table import PRESETS

STEP_SECONDS_MAX = 10.0


@pytest.mark.parametrize(
    ("preset", "sync"),
    [
        (preset, sync)
        for preset in PRESETS
        for sync in ("diloco", "sparse", "distro")
        if (preset, sync) != ("1.1b", "distro")  # parts of too few peers fit one message
    ],
)
def test_steps_and_rounds_of_a_preset_suit_a_card_of_24_gb(preset: str, sync: str) -> None:
    draft = parse_manifest_file(f'preset = "{preset}"\nsync = "{sync}"', Path("."))
    seconds = step_seconds(draft)
    assert 0 < seconds < STEP_SECONDS_MAX
    # A round that is cut off by its time limit leaves a part of what it plans undone.
    assert draft.outer.round_steps_max * seconds < draft.rounds.round_seconds
    assert device_fit(draft, DeviceMemory("card", CARD_BYTES, CARD_BYTES)).sequences > 0


def test_operations_follow_from_the_matrices() -> None:
    model = PRESETS["1.1b"].model
    plain, twice = (operations_of_token(model, twice=twice) for twice in (False, True))
    matrices = model.num_parameters - model.vocabulary * model.width  # an embedding is looked up
    assert plain == pytest.approx(6 * matrices, rel=0.05)  # and the attention
    assert 1.25 < twice / plain < 1.34


def test_an_update_of_muon_counts_in_a_step() -> None:
    assert muon._ITERATIONS == MUON_ITERATIONS
    # 13.9 and 108.9 ms on an H200 (docs/benchmarks/cards.md), of whose 989e12 these are 29 to 45 %.
    assert operations_of_muon(PRESETS["150m"].model) == pytest.approx(4.0e12, rel=0.05)
    assert operations_of_muon(PRESETS["1.1b"].model) == pytest.approx(48e12, rel=0.05)
    draft = parse_manifest_file('preset = "150m"', Path("."))
    adamw = replace(draft, inner=replace(draft.inner, optimizer="adamw"))
    assert 1.02 < step_seconds(draft) / step_seconds(adamw) < 1.03
