"""A run of adapters on a folder, with real daemons: founder, joiner, export, generated text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.trainer.pretrained.folder import open_pretrained
from tests.support.daemons import (
    PATIENCE_SECONDS,
    gossamer,
    in_rounds_of,
    refused,
    said,
    shared_rounds,
    wait_for_round,
)
from tests.support.model_folders import config_of_family, make_folder

pytestmark = pytest.mark.e2e

ROUNDS = 4

MANIFEST = """\
preset = "tiny"
[model]
context = 32
[model.lora]
rank = 4
alpha = 8
targets = ["q_proj", "v_proj", "down_proj"]
[inner]
learning_rate = 1e-2
warmup_steps = 10
total_steps = 2_000
sequences_per_step = 8
[outer]
codec = "int4"
inner_steps = 10
warmup_rounds = 0
[rounds]
gather_seconds = 5.0
attempt_seconds = 2.0
checkpoint_rounds = 5
"""


def test_adapters_are_trained_by_two_and_merged(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path
) -> None:
    folder, manifest = tmp_path / "model", tmp_path / "run.toml"
    make_folder(folder, config_of_family("llama"))
    manifest.write_text(MANIFEST)
    options = ("--manifest", manifest, "--corpus", corpus)
    assert "model.lora is set, and there is no model" in refused(
        "start", *options, "--state-dir", tmp_path / "none"
    )

    founder = swarm.add()
    founder.start("start", "--init-from", str(folder), *map(str, options), "--wait-for-peers", "1")
    other = swarm.join(founder.address())
    founder.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    for node in (founder, other):
        wait_for_round(node, ROUNDS)
    assert said(other, "frozen weights")
    for node in (founder, other):
        assert node.leave() == 0, node.tail()
        assert "Traceback" not in node.tail(10_000)
    shared = shared_rounds(founder, other)
    assert len(shared) >= ROUNDS

    # From the other machine, which has never seen the folder.
    newest = str(max(shared))
    better, adapter = tmp_path / "better", tmp_path / "adapter"
    of_other = ("--round", newest, "--state-dir", other.root)
    for command in (("export", better), ("export", adapter, "--adapter")):
        answer = gossamer(*command, *of_other)
        assert answer.status == 0, answer
    before, after = (open_pretrained(each).weights.read() for each in (folder, better))
    names = {tensor.name for tensor, _ in open_pretrained(folder).weights.tensors}
    changed = {
        tensor.name
        for tensor, _ in open_pretrained(folder).weights.tensors
        if not np.array_equal(before[tensor.range], after[tensor.range])
    }
    assert changed == {
        name for name in names if name.split(".")[-2] in ("q_proj", "v_proj", "down_proj")
    }
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 4
    text = gossamer("generate", "peer ring", "--tokens", "8", *of_other)
    assert text.status == 0, text
    assert text.out.startswith("peer ring")
